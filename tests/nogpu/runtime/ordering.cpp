// SPDX-License-Identifier: Apache-2.0
#include "ordering.h"
#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <string>
#include <vector>
#include "faults.h"
#include "memory.h"
#include "settings.h"

struct Moment {
  std::map<Timeline, u64> known;
};

namespace {
struct Touch {
  u64 begin, end;
  bool write;
  Timeline timeline;
  u64 number;  // of the operation in its timeline
  const char* what;
};
std::mutex lock;
std::map<Timeline, Moment> now;
std::vector<Touch> touches;
int reports;

void merge(Moment& into, const Moment& from) {
  for (const auto& [timeline, number] : from.known) {
    u64& own = into.known[timeline];
    own = std::max(own, number);
  }
}
bool before(const Touch& earlier, const Moment& later) {
  const auto found = later.known.find(earlier.timeline);
  return found != later.known.end() && found->second >= earlier.number;
}
}  // namespace

bool ordering_on() {
  return settings().streams;
}
void order_operation(Timeline t) {
  if (!ordering_on()) return;
  std::lock_guard<std::mutex> guard(lock);
  merge(now[t], now[HOST_TIMELINE]);
  now[t].known[t]++;
}
void order_after(Timeline later, Timeline t) {
  if (!ordering_on() || later == t) return;
  std::lock_guard<std::mutex> guard(lock);
  merge(now[later], now[t]);
}
Moment* order_moment(Timeline t) {
  if (!ordering_on()) return nullptr;
  std::lock_guard<std::mutex> guard(lock);
  return new Moment(now[t]);
}
void order_after(Timeline later, const Moment* moment) {
  if (!moment) return;
  std::lock_guard<std::mutex> guard(lock);
  merge(now[later], *moment);
}
void order_drop(Moment* moment) {
  delete moment;
}
void order_access(Timeline t, const void* p, size_t bytes, bool write, const char* what) {
  if (!ordering_on() || !bytes || !in_arena(p)) return;
  std::lock_guard<std::mutex> guard(lock);
  const Moment& own = now[t];
  const Touch mine = {(u64)p, (u64)p + bytes, write, t, own.known.at(t), what};
  size_t kept = 0;
  for (const Touch& other : touches) {
    const bool overlaps = other.begin < mine.end && mine.begin < other.end;
    if (overlaps && !before(other, own) && (other.write || write) && reports < 5) {
      reports++;
      char text[512];
      snprintf(text, sizeof text,
               "unordered: %s on stream %llu %s memory that %s on stream %llu %s, %s, and no event "
               "or synchronisation orders the two",
               what, (unsigned long long)t, write ? "writes" : "reads", other.what,
               (unsigned long long)other.timeline, other.write ? "writes" : "reads",
               arena_describe(std::max(mine.begin, other.begin)).c_str());
      note_problem(text);
      log_line("error: %s", text);
    }
    // Whoever is in order with this write is in order with what came before it, and so it is with
    // the later of two equals on one stream.
    const bool covered = mine.begin <= other.begin && other.end <= mine.end;
    const bool replaced = write ? before(other, own) : !other.write && other.timeline == t;
    if (!(covered && replaced)) touches[kept++] = other;
  }
  touches.resize(kept);
  touches.push_back(mine);
}
void order_forget(const void* p) {
  Allocation a;
  if (!ordering_on() || !arena_find((u64)p, &a)) return;
  std::lock_guard<std::mutex> guard(lock);
  touches.erase(std::remove_if(touches.begin(), touches.end(),
                               [&](const Touch& x) {
                                 return x.begin >= a.begin && x.begin < a.begin + a.size;
                               }),
                touches.end());
}
