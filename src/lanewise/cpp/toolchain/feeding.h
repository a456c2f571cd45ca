// What `feeding.py` calls: a run that examples come to while it goes on.
#pragma once
#include "entry.h"

extern "C" {
lw_run* lanewise_feed_open(void** arguments, long long slots, long long lane_bytes, int threads, int lanes) {
  lw_run* run = (lw_run*)calloc(1, sizeof(lw_run));
  lw_feed* feed = (lw_feed*)calloc(1, sizeof(lw_feed));
  int* rings = (int*)calloc(2 * slots, sizeof(int));
  if (!run || !feed || !rings) {
    free(run);
    free(feed);
    free(rings);
    return nullptr;
  }
  pthread_condattr_t about;
  pthread_condattr_init(&about);
#ifdef __linux__
  pthread_condattr_setclock(&about, CLOCK_MONOTONIC);
#endif
  pthread_mutex_init(&feed->guard, nullptr);
  pthread_cond_init(&feed->arrival, nullptr);
  pthread_cond_init(&feed->end, &about);
  feed->waiting = rings;
  feed->ended = rings + slots;
  feed->size = slots;
  run->arguments = arguments;
  run->examples = slots;
  run->lane_bytes = lane_bytes;
  run->capacity = 1;
  run->threads = threads;
  run->lanes = lanes;
  run->feed = feed;
  run->stoppable = &lanewise_stoppable ? lanewise_stoppable : nullptr;
  run->begun = run->stoppable ? __atomic_load_n(&lanewise_signals, __ATOMIC_RELAXED) : 0;
  return run;
}

// After an interrupt has ended all threads' parts: as if no example had come. Whether there was one.
int lanewise_feed_again(lw_run* run) {
  const int begun = run->stoppable ? __atomic_load_n(&lanewise_signals, __ATOMIC_RELAXED) : 0;
  const bool heard = begun != run->begun;
  lw_feed* feed = run->feed;
  run->begun = begun;
  feed->come = feed->taken = feed->gone = feed->reported = 0;
  return heard;
}

void lanewise_feed_push(lw_run* run, const int* slots, int count) {
  lw_feed* feed = run->feed;
  pthread_mutex_lock(&feed->guard);
  for (int i = 0; i < count; ++i) feed->waiting[(feed->come + i) % feed->size] = slots[i];
  __atomic_store_n(&feed->come, feed->come + count, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&feed->arrival);
  pthread_mutex_unlock(&feed->guard);
}

int lanewise_feed_take(lw_run* run, int* slots, int enough, long long nanoseconds) {
  lw_feed* feed = run->feed;
#ifdef __linux__
  const timespec until = lw_after(nanoseconds, CLOCK_MONOTONIC);
#else
  const timespec until = lw_after(nanoseconds, CLOCK_REALTIME);
#endif
  pthread_mutex_lock(&feed->guard);
  feed->enough = enough;
  while (feed->gone - feed->reported < feed->enough && !pthread_cond_timedwait(&feed->end, &feed->guard, &until)) {}
  int count = 0;
  while (feed->reported != feed->gone) slots[count++] = feed->ended[feed->reported++ % feed->size];
  pthread_mutex_unlock(&feed->guard);
  return count;
}

void lanewise_feed_close(lw_run* run) {
  pthread_mutex_lock(&run->feed->guard);
  __atomic_store_n(&run->feed->closed, 1, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&run->feed->arrival);
  pthread_mutex_unlock(&run->feed->guard);
}

void lanewise_feed_free(lw_run* run) {
  pthread_mutex_destroy(&run->feed->guard);
  pthread_cond_destroy(&run->feed->arrival);
  pthread_cond_destroy(&run->feed->end);
  free(run->feed->waiting);
  free(run->feed);
  free(run);
}

// A thread's part, until the feed is closed; it goes on with better code when there is some.
void lanewise_feed_serve(lw_run* run) {
  // As XLA has it on its own threads: numbers below the normal range are zero.
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
  unsigned long long control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control | 1ull << 24));
#endif
  lw_take_part(run);
}
}
