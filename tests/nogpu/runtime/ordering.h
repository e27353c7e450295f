// SPDX-License-Identifier: Apache-2.0
//
// NOGPU_STREAMS=1: finds copies, fills and NCCL calls that touch the same memory from two streams
// with nothing between them that orders the two. Everything here runs at once and in order, so such
// a program computes what it should; a device runs the two beside each other.
//
// Each stream, and the host, is a timeline: a number per operation, and of every other timeline the
// last number that surely came before. Events, synchronisation and the legacy stream pass this on.
// What kernels touch is not known. A recorded graph is looked at while it is recorded.
#pragma once
#include <driver_types.h>
#include "device.h"

// A point in all timelines; events keep one. Indexed by Timeline, 0 being the host.
typedef u64 Timeline;
struct Moment;

bool ordering_on();
const Timeline HOST_TIMELINE = 0, LEGACY_TIMELINE = 1;
void order_operation(Timeline);                // one more, after what the host has waited for
void order_after(Timeline later, Timeline t);  // all of t so far comes before what is next in later
Moment* order_moment(Timeline);                // what t has done so far
void order_after(Timeline later, const Moment*);
void order_drop(Moment*);
// The timeline's latest operation reads or writes these bytes.
void order_access(Timeline, const void* p, size_t bytes, bool write, const char* what);
void order_forget(const void* p);  // an allocation is gone
