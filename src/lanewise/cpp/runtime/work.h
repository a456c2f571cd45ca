// What a thread of the host calls: it has scratch memory of its own, and takes examples from all that are left. It has
// sums of its own, too, which it adds to those of all in the end. The emitter writes what depends on the program:
// `lw_run_lanes`, `lw_add_sums`, and how many bytes the sums have, if there are any (`LW_SUMS_BYTES`).
#pragma once
#include "kernel.h"
#include "meeting.h"

static void lw_run_lanes(void* data);
static void lw_add_sums(lw_run* run, char* own);

// -- lw_add_up --
#include <sched.h>
template <class T, class S> static void lw_add_up(T* sum, const S* own, long long size) {
  for (long long i = 0; i < size; ++i) sum[i] += (T)own[i];
}
// -- meeting --
#ifdef LW_MEETS
// Several lanes, which meet at products with the arrays of `LW_COMMON` (`meeting.h`).
extern "C" void lanewise_work(lw_run* run) {
  lw_fiber fibers[LW_MOST_LANES] = {};
  lw_thread threads[LW_MOST_LANES] = {};
  char* memory[LW_MOST_LANES] = {};
  lw_common common[] = {LW_COMMON};
  lw_tile tile = {fibers, 0, 0, (int)(sizeof(common) / sizeof(common[0])), common, nullptr, 0, run};
  const long long each = (run->examples + run->threads - 1) / run->threads;
  const long long frame = (run->lane_bytes - LW_FIXED_BYTES) / (run->capacity + 1);
  const long long usual = LW_FIXED_BYTES + frame * (run->capacity < LW_USUAL_FRAMES ? run->capacity : LW_USUAL_FRAMES);
  const long long fit = LW_MEETING_BYTES / (usual + 1);
  const int most = run->lanes < each ? run->lanes : each;
#ifdef LW_SUMS_BYTES
  char* sums = (char*)calloc(LW_SUMS_BYTES + 1, 1);
#else
  char* sums = (char*)run;
#endif
  for (int i = 0; i < most && i < LW_MOST_LANES && (i < fit || !i); ++i) {
    memory[i] = (char*)malloc(run->lane_bytes + 64 + i * LW_STAGGER_BYTES);
    if (!memory[i] || !sums) break;
    threads[i] = {run, memory[i] + i * LW_STAGGER_BYTES + (64 - (size_t)memory[i] % 64), sums};
    fibers[i].thread = &threads[i];
    lw_keep(nullptr, false, &fibers[i].stack);
    ++tile.count;
  }
  if (tile.count) {
    if (run->stoppable) run->stoppable(lw_run_tile, &tile, run->begun);
    else lw_run_tile(&tile);
#ifdef LW_SUMS_BYTES
    lw_add_sums(run, sums);
#endif
  }
  lw_here = nullptr;
  for (int i = 0; i < LW_MOST_LANES; ++i) {
    if (fibers[i].stack) lw_keep(fibers[i].stack, true, nullptr);
    free(memory[i]);
  }
#ifdef LW_SUMS_BYTES
  free(sums);
#endif
}
#endif
// -- alone --
#ifndef LW_MEETS
extern "C" void lanewise_work(lw_run* run) {
  lw_thread own = {run, (char*)malloc(run->lane_bytes + 1), nullptr};
#ifdef LW_SUMS_BYTES
  own.sums = (char*)calloc(LW_SUMS_BYTES + 1, 1);
#else
  own.sums = own.scratch;
#endif
  if (own.scratch && own.sums) {
    if (run->stoppable) run->stoppable(lw_run_lanes, &own, run->begun);
    else lw_run_lanes(&own);
#ifdef LW_SUMS_BYTES
    lw_add_sums(run, own.sums);
#endif
  }
  free(own.scratch);
#ifdef LW_SUMS_BYTES
  free(own.sums);
#endif
}
#endif
