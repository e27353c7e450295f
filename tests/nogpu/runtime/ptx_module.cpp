// SPDX-License-Identifier: Apache-2.0
#include "ptx_module.h"
#include <algorithm>
#include <dlfcn.h>
#include <set>
#include <stdlib.h>
#include "compiler.h"
#include "memory.h"
#include "settings.h"

typedef std::string_view View;

static bool is_identifier(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '$';
}
static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static u32 type_size(View t) {
  if (t == "pred") return 1;
  size_t digits = t.find_first_of("0123456789");
  if (digits == View::npos) return 1;
  int bits = atoi(std::string(t.substr(digits)).c_str());
  if (t.size() > 2 && t.substr(t.size() - 2) == "x2") bits *= 2;
  return bits / 8;
}

// Words of a declaration: ".shared" ".align" "4" ".b8" "name[128]" ...
static std::vector<View> words(View s) {
  std::vector<View> out;
  size_t i = 0;
  while (i < s.size()) {
    while (i < s.size() && is_space(s[i])) i++;
    size_t start = i;
    if (i < s.size() && (s[i] == '(' || s[i] == ')' || s[i] == ','))
      i++;
    else
      while (i < s.size() && !is_space(s[i]) && s[i] != '(' && s[i] != ')' && s[i] != ',') i++;
    if (i > start) out.push_back(s.substr(start, i - start));
  }
  return out;
}

struct Declaration {
  std::string name, space;
  u32 element = 1, align = 1;
  u64 size = 0;
  bool array_unsized = false, external = false, pointer = false;
};

// ".visible .global .align 4 .b8 name[12]" or a parameter's ".param .u64 name".
static Declaration parse_declaration(View s) {
  Declaration d;
  auto w = words(s);
  for (size_t i = 0; i < w.size(); i++) {
    View x = w[i];
    if (x == ".extern")
      d.external = true;
    else if (x == ".global" || x == ".const" || x == ".shared" || x == ".param" || x == ".local")
      d.space = x.substr(1);
    else if (x == ".align" && i + 1 < w.size())
      d.align = atoi(std::string(w[++i]).c_str());
    else if (x == ".ptr")
      d.pointer = true;
    else if (x[0] == '.') {
      if (x.substr(0, 10) == ".attribute") {
        while (i + 1 < w.size() && w[i] != ")") i++;
        continue;
      }
      View t = x.substr(1);
      if (t.size() >= 2 && std::string("bsufp").find(t[0]) != std::string::npos &&
          (isdigit((unsigned char)t[1]) || t == "pred")) {
        d.element = type_size(t);
        if (!d.pointer) d.align = max_(d.align, d.element);
      }
    } else if (is_identifier(x[0]) || x[0] == '%') {
      size_t bracket = x.find('[');
      d.name = x.substr(0, bracket);
      u64 count = 1;
      for (size_t b = bracket; b != View::npos; b = x.find('[', b + 1)) {
        u64 n = strtoull(std::string(x.substr(b + 1)).c_str(), nullptr, 10);
        if (x[b + 1] == ']') d.array_unsized = true;
        count *= n;
      }
      d.size = count * d.element;
      break;
    }
  }
  return d;
}

// ---------------------------------------------------------------- index
static size_t skip_comment(View t, size_t i) {  // at '/': past the comment, or i when it is none
  if (i + 1 < t.size() && t[i + 1] == '/') {
    size_t e = t.find('\n', i);
    return e == View::npos ? t.size() : e;
  }
  if (i + 1 < t.size() && t[i + 1] == '*') {
    size_t e = t.find("*/", i);
    return e == View::npos ? t.size() : e + 2;
  }
  return i;
}

void Module::index() {
  if (indexed) return;
  indexed = true;
  const View t = text;
  size_t i = 0;
  auto starts = [&](const char* s) { return t.compare(i, strlen(s), s) == 0; };
  auto end_of_line = [&] {
    size_t e = t.find('\n', i);
    return e == View::npos ? t.size() : e;
  };
  while (i < t.size()) {
    if (is_space(t[i])) {
      i++;
      continue;
    }
    if (t[i] == '/') {
      size_t e = skip_comment(t, i);
      i = e > i ? e : i + 1;
      continue;
    }
    if (starts(".version") || starts(".target") || starts(".address_size")) {
      i = end_of_line();
      continue;
    }
    if (starts(".file")) {
      file_table += "//" + std::string(t.substr(i, end_of_line() - i)) + "\n";
      i = end_of_line();
      continue;
    }
    if (starts(".section")) {
      size_t e = t.find('}', i);
      i = e == View::npos ? t.size() : e + 1;
      continue;
    }
    // A declaration: up to ';', or to '{' for a function with a body.
    const size_t start = i;
    size_t j = i;
    bool function = false, entry = false, initialized = false;
    while (j < t.size() && t[j] != ';' && !(t[j] == '{' && function)) {
      if (t[j] == '/') {
        size_t e = skip_comment(t, j);
        if (e > j) {
          j = e;
          continue;
        }
      }
      if (t[j] == '.' && !initialized) {
        if (t.compare(j, 6, ".entry") == 0)
          function = entry = true;
        else if (t.compare(j, 5, ".func") == 0 && !is_identifier(t[j + 5]))
          function = true;
      }
      if (t[j] == '=') initialized = true;
      j++;
    }
    if (!function) {
      add_variable(t.substr(start, j - start));
      i = j + 1;
      continue;
    }
    if (j >= t.size() || t[j] == ';') {
      add_function(t.substr(start, j + 1 - start), t.substr(start, j - start), View(), entry, true);
      i = j + 1;
      continue;
    }
    const size_t open = j;
    int depth = 0;
    for (; j < t.size(); j++) {
      if (t[j] == '/') {
        size_t e = skip_comment(t, j);
        if (e > j) {
          j = e - 1;
          continue;
        }
      }
      if (t[j] == '{')
        depth++;
      else if (t[j] == '}' && --depth == 0)
        break;
    }
    add_function(t.substr(start, j + 1 - start), t.substr(start, open - start),
                 t.substr(open, j + 1 - open), entry, false);
    i = j + 1;
  }
}

void Module::add_variable(View declaration) {
  size_t equals = declaration.find('=');
  Declaration d = parse_declaration(declaration.substr(0, equals));
  if (d.name.empty() || d.space.empty()) return;
  Item item;
  item.type = Item::VARIABLE;
  item.text = declaration;
  item.space = d.space;
  item.size = d.size;
  item.element = d.element;
  item.align = d.align;
  item.external = d.external || d.array_unsized;
  if (equals != View::npos) item.initializer = declaration.substr(equals + 1);
  if (d.space != "shared") {
    item.index = (int)addresses.size();
    addresses.push_back(0);
  }
  if (items.emplace(d.name, item).second) order.push_back(d.name);
}

void Module::add_function(View whole, View header, View body, bool entry, bool prototype) {
  // Name: the identifier after .entry/.func and an optional (return parameters).
  size_t i = header.find(entry ? ".entry" : ".func") + (entry ? 6 : 5);
  while (i < header.size() && is_space(header[i])) i++;
  if (i < header.size() && header[i] == '(') {
    i = header.find(')', i) + 1;
    while (i < header.size() && is_space(header[i])) i++;
  }
  size_t e = i;
  while (e < header.size() && is_identifier(header[e])) e++;
  std::string name(header.substr(i, e - i));
  Item item;
  item.type = prototype ? Item::PROTOTYPE : entry ? Item::ENTRY : Item::FUNCTION;
  item.text = whole;
  item.body = body;
  auto found = items.find(name);
  if (found != items.end()) {
    if (found->second.type == Item::PROTOTYPE) found->second = item;
    return;
  }
  items.emplace(name, item);
  order.push_back(name);
  if (!entry || prototype) return;

  Kernel k;
  k.module = this;
  k.name = name;
  k.known = true;
  size_t open = header.find('(', e), close = open == View::npos ? open : header.find(')', open);
  if (open != View::npos && close != View::npos) {
    View list = header.substr(open + 1, close - open - 1);
    for (size_t p = 0; p < list.size();) {
      size_t comma = list.find(',', p);
      if (comma == View::npos) comma = list.size();
      Declaration d = parse_declaration(list.substr(p, comma - p));
      if (!d.name.empty()) {
        k.param_bytes = (k.param_bytes + d.align - 1) / d.align * d.align;
        k.param_offsets.push_back(k.param_bytes);
        k.param_sizes.push_back((u32)d.size);
        k.param_bytes += (u32)d.size;
      }
      p = comma + 1;
    }
    View after = header.substr(close);
    size_t m = after.find(".maxntid");
    if (m != View::npos) {
      k.max_threads = 1;
      const char* c = after.data() + m + 8;
      for (int d = 0; d < 3; d++) {
        char* next;
        long v = strtol(c, &next, 10);
        if (next == c) break;
        k.max_threads *= (u32)v;
        c = next;
        while (*c == ',' || is_space(*c)) c++;
      }
    }
  }
  kernels[name] = k;
}

// ---------------------------------------------------------------- units
// Calls visit(identifier) for every identifier of a body that is not a register, label or opcode.
template <class F>
static void each_identifier(View body, F visit) {
  for (size_t i = 0; i < body.size();) {
    char c = body[i];
    if (c == '/') {
      size_t e = skip_comment(body, i);
      if (e > i) {
        i = e;
        continue;
      }
    }
    if (c == '%' || c == '.' || isdigit((unsigned char)c)) {
      i++;
      while (i < body.size() && is_identifier(body[i])) i++;
      continue;
    }
    if (is_identifier(c)) {
      size_t s = i;
      while (i < body.size() && is_identifier(body[i])) i++;
      visit(body.substr(s, i - s));
      continue;
    }
    i++;
  }
}

std::string Module::build_unit(const std::string& root, Kernel* kernel) {
  std::vector<std::string> functions = {root}, used_shared, used_symbols;
  std::set<std::string, std::less<>> seen = {root};
  for (size_t f = 0; f < functions.size(); f++)
    each_identifier(items.find(functions[f])->second.body, [&](View id) {
      auto it = items.find(id);
      if (it == items.end() || seen.count(id)) return;
      seen.insert(std::string(id));
      if (it->second.type == Item::VARIABLE)
        (it->second.space == "shared" ? used_shared : used_symbols).push_back(std::string(id));
      else
        functions.push_back(std::string(id));
    });

  // Static shared memory in order of appearance; dynamic shared memory follows.
  std::string head;
  u64 offset = 0, dynamic_align = 16;
  auto place = [&](const std::string& name, u64 align, u64 size) {
    offset = (offset + align - 1) / align * align;
    head += "//@shared " + name + " " + std::to_string(offset) + "\n";
    offset += size;
  };
  std::string dynamic;
  for (auto& name : used_shared) {
    const Item& v = items.find(name)->second;
    if (v.external || v.size == 0) {
      dynamic += "//@dynamic " + name + "\n";
      dynamic_align = max_<u64>(dynamic_align, v.align);
    } else
      place(name, v.align, v.size);
  }
  u64 local_bytes = 0;
  for (auto& name : functions) {
    View body = items.find(name)->second.body;
    for (const char* space : {".shared", ".local"})
      for (size_t i = body.find(space); i != View::npos; i = body.find(space, i + 1)) {
        if (i == 0 || !is_space(body[i - 1]) || !is_space(body[i + strlen(space)])) continue;
        Declaration d = parse_declaration(body.substr(i, body.find(';', i) - i));
        if (space[1] == 's')
          place(d.name, d.align, d.size);
        else
          local_bytes += d.size;
      }
  }
  const u64 static_size = offset,
            dynamic_offset = (offset + dynamic_align - 1) / dynamic_align * dynamic_align;
  head += dynamic + "//@static " + std::to_string(dynamic_offset) + "\n";
  for (auto& name : used_symbols)
    head += "//@symbol " + name + " " + std::to_string(items.find(name)->second.index) + "\n";

  std::string unit;
  if (kernel) {
    kernel->static_shared = (u32)static_size;
    kernel->dynamic_offset = (u32)dynamic_offset;
    kernel->local_bytes = (u32)local_bytes;
    // Parameter names again, now with their offsets.
    View header = items.find(root)->second.text;
    header = header.substr(0, header.find('{'));
    size_t open = header.find('(', header.find(root) + root.size()),
           close = header.find(')', open == View::npos ? 0 : open), index = 0;
    if (open != View::npos)
      for (size_t p = open + 1; p < close;) {
        size_t comma = min_<size_t>(header.find(',', p), close);
        Declaration d = parse_declaration(header.substr(p, comma - p));
        if (!d.name.empty())
          head +=
              "//@param " + d.name + " " + std::to_string(kernel->param_offsets[index++]) + "\n";
        p = comma + 1;
      }
  }
  unit = head;
  std::set<std::string> callees(functions.begin() + 1, functions.end());
  for (auto& name : order)  // callees in order of declaration, the root last
    if (callees.count(name)) unit += std::string(items.find(name)->second.text) + "\n";
  unit += std::string(items.find(root)->second.text) + "\n";
  if (unit.find("\n.loc") != std::string::npos || unit.find("\t.loc") != std::string::npos)
    unit += file_table;
  return unit;
}

Kernel* Module::kernel(const std::string& name) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  index();
  auto it = kernels.find(name);
  if (it == kernels.end()) return nullptr;
  if (it->second.unit.empty()) it->second.unit = build_unit(name, &it->second);
  return &it->second;
}

std::vector<std::string> Module::kernel_names() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  index();
  std::vector<std::string> names;
  for (auto& k : kernels) names.push_back(k.first);
  return names;
}

// ---------------------------------------------------------------- variables
void Module::prepare_symbols(const std::string& unit) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  for (size_t i = unit.find("//@symbol "); i != std::string::npos;
       i = unit.find("//@symbol ", i + 1)) {
    size_t s = i + 10;
    symbol_address(unit.substr(s, unit.find(' ', s) - s));
  }
}

u64 Module::symbol_address(const std::string& name, u64* bytes) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  index();
  auto it = items.find(name);
  if (it == items.end() || it->second.type != Item::VARIABLE || it->second.index < 0) return 0;
  if (bytes) *bytes = it->second.size;
  u64& address = addresses[it->second.index];
  return address ? address : allocate_symbol(name, it->second);
}

u64 Module::allocate_symbol(const std::string& name, Item& item) {
  if (item.external)
    log_line(
        "variable %s is defined in another translation unit; separable compilation (-rdc=true) is "
        "not emulated",
        name.c_str());
  const bool managed = item.text.find(".managed") != View::npos;  // the host reads it too
  u64 at =
      (u64)arena_allocate(max_<u64>(item.size, 1), managed ? Kind::MANAGED_SYMBOL : Kind::SYMBOL);
  if (!at) {
    log_line("no memory for variable %s", name.c_str());
    abort();
  }
  addresses[item.index] = at;  // before the initializer: it may refer to the variable itself
  DeviceAccess access;
  memset((void*)at, 0, item.size);
  View init = item.initializer;
  u64 offset = 0;
  for (size_t i = 0; i < init.size() && offset < item.size;) {
    while (i < init.size() &&
           (is_space(init[i]) || init[i] == '{' || init[i] == '}' || init[i] == ','))
      i++;
    size_t s = i;
    while (i < init.size() && init[i] != ',' && init[i] != '{' && init[i] != '}') i++;
    View value = init.substr(s, i - s);
    while (!value.empty() && is_space(value.back())) value.remove_suffix(1);
    if (value.empty()) continue;
    u64 word = resolve(value);
    memcpy((char*)at + offset, &word, item.element);
    offset += item.element;
  }
  return at;
}

// A number, 0f/0d float, symbol, generic(symbol), mask(...)(symbol), each with an optional +offset.
u64 Module::resolve(View e) {
  std::string s(e);
  if (s.size() > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd' || s[1] == 'D'))
    return strtoull(s.c_str() + 2, nullptr, 16);
  if (isdigit((unsigned char)s[0]) || s[0] == '-' || s[0] == '+')
    return s[0] == '-' ? (u64)strtoll(s.c_str(), nullptr, 0) : strtoull(s.c_str(), nullptr, 0);
  u64 offset = 0;
  size_t plus = s.rfind('+');
  if (plus != std::string::npos) {
    offset = strtoull(s.c_str() + plus + 1, nullptr, 0);
    s.resize(plus);
  }
  if (s.rfind("generic(", 0) == 0) s = s.substr(8, s.find(')') - 8);
  while (!s.empty() && is_space(s.back())) s.pop_back();
  auto it = items.find(s);
  if (it == items.end()) {
    log_line("initializer refers to unknown symbol %s", s.c_str());
    return 0;
  }
  if (it->second.type == Item::VARIABLE) return symbol_address(s) + offset;
  return function_address(s);
}

u64 Module::function_address(const std::string& name) {
  auto known = function_addresses.find(name);
  if (known != function_addresses.end()) return known->second;
  function_addresses[name] = 0;
  auto it = items.find(name);
  if (it->second.type != Item::FUNCTION) return 0;
  std::string unit = build_unit(name, nullptr);
  if (unit.find("//@shared") != std::string::npos) {
    log_line("function %s is called through a pointer and uses __shared__ variables: not emulated",
             name.c_str());
    return 0;
  }
  Compiled c = compile_unit(name, unit);
  if (!c.handle) {
    log_line("%s: %s", name.c_str(), c.error.c_str());
    return 0;
  }
  prepare_symbols(unit);
  auto names = (const char* const*)dlsym(c.handle, "nogpu_function_names");
  auto functions = (void* const*)dlsym(c.handle, "nogpu_functions");
  for (int i = 0; names && names[i]; i++)
    if (name == names[i]) return function_addresses[name] = (u64)functions[i];
  return 0;
}
