// How a host's threads share the examples of a run, and take those that come while it goes on.
#pragma once
#include "keywords.h"

#ifndef __CUDACC__
// Examples that come and go while a run goes on: the numbers of those that wait for a lane, and of those that have
// ended, each in a ring that has room for all. `come`, `taken`, `gone` and `reported` only grow.
struct lw_feed {
  pthread_mutex_t guard;
  pthread_cond_t arrival, end;
  int *waiting, *ended, closed;
  unsigned size, come, taken, gone, reported;
  unsigned enough;  // of those that have ended, for the host to look
};
// Whether there is an example to take, or none will come.
static inline bool lw_feed_stirs(lw_feed* feed) {
  return __atomic_load_n(&feed->come, __ATOMIC_RELAXED) != __atomic_load_n(&feed->taken, __ATOMIC_RELAXED) ||
         __atomic_load_n(&feed->closed, __ATOMIC_RELAXED);
}
// Nothing calls a thread out of its kernel while it has the lock.
static void lw_feed_lock(lw_feed* feed, sigset_t* before) {
  sigset_t urgent;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_BLOCK, &urgent, before);
  pthread_mutex_lock(&feed->guard);
}
static void lw_feed_unlock(lw_feed* feed, const sigset_t* before) {
  pthread_mutex_unlock(&feed->guard);
  pthread_sigmask(SIG_SETMASK, before, nullptr);
}
static void lw_feed_wait(lw_feed* feed) {
  sigset_t before;
  lw_feed_lock(feed, &before);
  while (!lw_feed_stirs(feed)) pthread_cond_wait(&feed->arrival, &feed->guard);
  lw_feed_unlock(feed, &before);
}

// A run over all examples, and one thread's share of it: a few examples at a time, enough that taking them costs
// little, and few enough that no thread has much left when the others have nothing.
struct lw_run {
  void** arguments;
  long long examples, lane_bytes;
  // The frames of a stack, the threads, and the most lanes that each may have under way.
  int capacity, threads, lanes;
  unsigned long long next, done;
  // Whether a thread adds its sums to those of all. If an interrupt may end the run: how many had come before it, and
  // what runs a thread's part so.
  int adding, begun;
  void (*stoppable)(void (*work)(void*), void* data, int begun);
  lw_feed* feed;
};
// What a thread has, for one lane.
struct lw_thread {
  lw_run* run;
  char *scratch, *sums;
};
// Set when better code has taken over from this: threads take no more examples here.
static int lw_superseded;
struct lw_share {
  lw_run* run;
  long long at, end, chunk, since, held;
  void (*idle)();  // what to do while there is no example; none: to wait
};
#define LW_IDLE nullptr
// The next example of a feed, and word that the last one has ended.
static long long lw_fed(lw_share* share) {
  lw_run* run = share->run;
  lw_feed* feed = run->feed;
  for (long long next = -1;;) {
    sigset_t before;
    lw_feed_lock(feed, &before);
    if (share->held) {
      feed->ended[feed->gone++ % feed->size] = share->at;
      if (feed->gone - feed->reported >= feed->enough) pthread_cond_signal(&feed->end);
    }
    share->held = 0;
    const bool over = __atomic_load_n(&lw_superseded, __ATOMIC_RELAXED) || feed->closed;
    if (!over && feed->come != feed->taken) next = feed->waiting[feed->taken++ % feed->size];
    lw_feed_unlock(feed, &before);
    if (over) return run->examples;
    if (next >= 0) {
      share->held = 1;
      return share->at = next;
    }
    if (share->idle) share->idle();
    else lw_feed_wait(feed);
  }
}
static void lw_take(lw_share* share) {
  lw_run* run = share->run;
  // A thread that comes for more has ended what it had (lanes in step: all but the last few of it).
  __atomic_add_fetch(&run->done, share->held, __ATOMIC_RELAXED);
  share->held = 0;
  if (__atomic_load_n(&lw_superseded, __ATOMIC_RELAXED)) return;
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  const long long now = clock.tv_sec * 1000000000ll + clock.tv_nsec;
  share->chunk = now - share->since < 5000 ? 2 * share->chunk : (share->chunk + 1) / 2;
  share->since = now;
  const long long left = run->examples - (long long)__atomic_load_n(&run->next, __ATOMIC_RELAXED);
  const long long most = left / (4 * run->threads) + 1;
  if (share->chunk > most) share->chunk = most > 0 ? most : 1;
  share->at = __atomic_fetch_add(&run->next, share->chunk, __ATOMIC_RELAXED);
  share->end = share->at + share->chunk;
  if (share->end > run->examples) share->end = share->at < run->examples ? run->examples : share->at;
  share->held = share->end - share->at;
}
static inline long long lw_next(lw_share* share) {
  if (share->run->feed) return lw_fed(share);
  if (share->at == share->end) lw_take(share);
  return share->at == share->end ? share->run->examples : share->at++;
}
#endif
