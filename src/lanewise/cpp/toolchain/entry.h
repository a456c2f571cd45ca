// What XLA calls a kernel by on a CPU (`foreign.py`). It follows the kernel's text, of which it needs `lanewise_work`.
#pragma once
#include "../runtime/kernel.h"
#include "calls.h"

#include <fenv.h>

extern "C" void lanewise_work(lw_run* run);

// Outlives the call: a thread may come when all examples are taken. `working` threads have some of them; `wanted` is
// how many more are to be called; `held` counts what has a pointer to this.
struct lw_shared_run {
  lw_run run;
  XLA_FFI_CallFrame* frame;
  int working, wanted, held;
  long long busy, came, arrivals;  // threads that came, and, in nanoseconds, their work and the sum of when they came
  fenv_t rounding;
  pthread_mutex_t guard;
  pthread_cond_t idle;
};

static void lw_release(lw_shared_run* shared) {
  if (__atomic_sub_fetch(&shared->held, 1, __ATOMIC_ACQ_REL)) return;
  pthread_mutex_destroy(&shared->guard);
  pthread_cond_destroy(&shared->idle);
  free(shared);
}

static void lw_call_for_help(lw_shared_run* shared, int most);

static long long lw_now() {
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  return clock.tv_sec * 1000000000ll + clock.tv_nsec;
}

static timespec lw_after(long long nanoseconds, clockid_t clock) {
  timespec until;
  clock_gettime(clock, &until);
  nanoseconds += until.tv_nsec;
  until.tv_sec += nanoseconds / 1000000000ll;
  until.tv_nsec = nanoseconds % 1000000000ll;
  return until;
}

// How long threads have been at work here, all together: what has worked long is worth the optimized library
// (`host.py`). The sum of the times at which they ended less those at which they began, so known while they work.
static long long lw_worked, lw_at_work;
static bool lw_hurries, lw_asleep;
static pthread_mutex_t lw_counting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t lw_begun = PTHREAD_COND_INITIALIZER;

static void lw_note_work(int workers) {
  pthread_mutex_lock(&lw_counting);
  lw_worked -= workers * lw_now();
  lw_at_work += workers;
  if (lw_asleep && workers > 0) pthread_cond_signal(&lw_begun);
  pthread_mutex_unlock(&lw_counting);
}

// Returns when threads have worked for this long, or `lanewise_hurry` was called. Wakes up at most twenty times a
// second, and never while no thread works.
extern "C" void lanewise_await_work(long long nanoseconds) {
  const long long least = 50000000ll;
  pthread_mutex_lock(&lw_counting);
  while (!lw_hurries) {
    const long long left = nanoseconds - lw_worked - lw_at_work * lw_now();
    if (left <= 0) break;
    lw_asleep = !lw_at_work;
    const timespec until = lw_after(left > least ? left : least, CLOCK_REALTIME);
    if (lw_asleep)
      pthread_cond_wait(&lw_begun, &lw_counting);
    else
      pthread_cond_timedwait(&lw_begun, &lw_counting, &until);
  }
  lw_asleep = false;
  pthread_mutex_unlock(&lw_counting);
}

extern "C" void lanewise_hurry() {
  pthread_mutex_lock(&lw_counting);
  lw_hurries = true;
  pthread_cond_broadcast(&lw_begun);
  pthread_mutex_unlock(&lw_counting);
}

// What works on examples: this library's own function, until that of a better one takes over (`host.py`).
static void (*lw_worker)(lw_run*) = lanewise_work;

extern "C" void lanewise_take_over(void (*better)(lw_run*)) {
  __atomic_store_n(&lw_worker, better, __ATOMIC_RELEASE);
  __atomic_store_n(&lw_superseded, 1, __ATOMIC_RELEASE);
}

static void lw_take_part(lw_run* run) {
  void (*work)(lw_run*);
  lw_note_work(1);
  do {
    work = __atomic_load_n(&lw_worker, __ATOMIC_ACQUIRE);
    work(run);
  } while (work != __atomic_load_n(&lw_worker, __ATOMIC_ACQUIRE));
  lw_note_work(-1);
}

static void lw_work(lw_shared_run* shared) {
  const long long began = lw_now();
  lw_take_part(&shared->run);
  __atomic_add_fetch(&shared->busy, lw_now() - began, __ATOMIC_RELAXED);
  __atomic_add_fetch(&shared->arrivals, began, __ATOMIC_RELAXED);
  __atomic_add_fetch(&shared->came, 1, __ATOMIC_RELAXED);
}

static void lw_help(void* data) {
  lw_shared_run* shared = (lw_shared_run*)data;
  pthread_mutex_lock(&shared->guard);
  const bool late = (long long)__atomic_load_n(&shared->run.next, __ATOMIC_RELAXED) >= shared->run.examples;
  shared->working += !late;
  pthread_mutex_unlock(&shared->guard);
  if (!late) {
    fenv_t own;
    fegetenv(&own);
    fesetenv(&shared->rounding);
    lw_call_for_help(shared, 2);
    lw_work(shared);
    fesetenv(&own);
    pthread_mutex_lock(&shared->guard);
    if (!--shared->working) pthread_cond_signal(&shared->idle);
    pthread_mutex_unlock(&shared->guard);
  }
  lw_release(shared);
}

// Every thread that works calls two others: many threads are called in a short time, and none spends long on it.
static void lw_call_for_help(lw_shared_run* shared, int most) {
  const XLA_FFI_Api* api = shared->frame->api;
  for (; most && __atomic_fetch_sub(&shared->wanted, 1, __ATOMIC_RELAXED) > 0; --most) {
    __atomic_add_fetch(&shared->held, 1, __ATOMIC_RELAXED);
    XLA_FFI_ThreadPool_Schedule_Args task = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, shared->frame->ctx,
                                             lw_help, shared};
    XLA_FFI_Error* error = api->XLA_FFI_ThreadPool_Schedule(&task);
    if (!error) continue;
    XLA_FFI_Error_Destroy_Args about = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    api->XLA_FFI_Error_Destroy(&about);
    lw_release(shared);
    return;
  }
}

// The runs that are watched, by their numbers: a thread of Python asks how far they are.
struct lw_watched_run {
  int number;
  lw_run* run;
  lw_watched_run* after;
};
static lw_watched_run* lw_watched;
static pthread_mutex_t lw_watching = PTHREAD_MUTEX_INITIALIZER;

extern "C" long long lanewise_done(int number) {
  long long done = -1;
  pthread_mutex_lock(&lw_watching);
  for (lw_watched_run* one = lw_watched; one; one = one->after)
    if (one->number == number) done = __atomic_load_n(&one->run->done, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lw_watching);
  return done;
}

static void lw_watch(lw_watched_run* one) {
  pthread_mutex_lock(&lw_watching);
  one->after = lw_watched;
  lw_watched = one;
  pthread_mutex_unlock(&lw_watching);
}

static void lw_unwatch(lw_watched_run* one) {
  pthread_mutex_lock(&lw_watching);
  lw_watched_run** at = &lw_watched;
  while (*at != one) at = &(*at)->after;
  *at = one->after;
  pthread_mutex_unlock(&lw_watching);
}

static XLA_FFI_Error* lw_no_memory(XLA_FFI_CallFrame* frame) {
  return lw_failed(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                   "lanewise: no memory for a lane; set max_depth to fewer frames.");
}

// What the library of signals offers, if it was loaded before this.
extern "C" {
extern __attribute__((weak)) int lanewise_signals;
__attribute__((weak)) void lanewise_stoppable(void (*work)(void*), void* data, int begun);
}

extern "C" XLA_FFI_Error* lanewise_ffi(XLA_FFI_CallFrame* frame) {
  if (lw_asks_version(frame)) return nullptr;
  // A watcher gives the run's number, and may want the steps and frames of each example: then they are results.
  const bool watched = lw_attribute(frame, "watched"), each = lw_attribute(frame, "each");
  const int given = frame->args.size - watched, made = frame->rets.size - (each ? 3 : 1);
  const long long examples = lw_attribute(frame, "examples"), threads = lw_attribute(frame, "threads");
  long long* steps = (long long*)malloc(examples * sizeof(long long));
  int* deepest =
      each ? (int*)((XLA_FFI_Buffer*)frame->rets.rets[made + 2])->data : (int*)malloc(examples * sizeof(int));
  lw_shared_run* shared = (lw_shared_run*)calloc(1, sizeof(lw_shared_run));
  if (!steps || !deepest || !shared) {
    free(steps);
    if (!each) free(deepest);
    free(shared);
    return lw_no_memory(frame);
  }
  void* arguments[given + made + 2];
  for (int i = 0; i < given; ++i) arguments[i] = ((XLA_FFI_Buffer*)frame->args.args[i])->data;
  for (int i = 0; i < made; ++i) arguments[given + i] = ((XLA_FFI_Buffer*)frame->rets.rets[i])->data;
  arguments[given + made] = steps;
  arguments[given + made + 1] = deepest;

  shared->run.arguments = arguments;
  shared->run.examples = examples;
  shared->run.lane_bytes = lw_attribute(frame, "lane_bytes");
  shared->run.capacity = lw_attribute(frame, "capacity");
  shared->run.threads = threads < examples ? threads : examples;
  shared->run.lanes = lw_attribute(frame, "lanes");
  const bool stops = lw_attribute(frame, "stops") && &lanewise_stoppable;
  shared->run.begun = stops ? __atomic_load_n(&lanewise_signals, __ATOMIC_RELAXED) : 0;
  shared->run.stoppable = stops ? lanewise_stoppable : nullptr;
  shared->frame = frame;
  shared->wanted = shared->run.threads - 1;
  shared->held = 1;
  fegetenv(&shared->rounding);
  pthread_mutex_init(&shared->guard, nullptr);
  pthread_cond_init(&shared->idle, nullptr);
  lw_watched_run seen = {watched ? *(int*)((XLA_FFI_Buffer*)frame->args.args[given])->data : 0, &shared->run, nullptr};
  if (watched) lw_watch(&seen);
  lw_call_for_help(shared, 2);
  lw_work(shared);
  pthread_mutex_lock(&shared->guard);
  while (shared->working) pthread_cond_wait(&shared->idle, &shared->guard);
  // A thread that has no memory for a lane takes no example. If none had, examples are left.
  const bool all_taken = (long long)shared->run.next >= examples;
  // A thread that comes from here on is late: the buffers of a run that failed or was cut short are no longer its own.
  __atomic_store_n(&shared->run.next, examples, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&shared->guard);
  const float64 busy = 1e-9 * shared->busy, room = 1e-9 * (lw_now() * shared->came - shared->arrivals);
  const bool cut = stops && __atomic_load_n(&lanewise_signals, __ATOMIC_RELAXED) != shared->run.begun;
  if (watched) lw_unwatch(&seen);
  lw_release(shared);

  float64 all = 0;
  int most = 0;
  for (long long i = 0; i < examples; ++i) {
    all += steps[i];
    most = deepest[i] > most ? deepest[i] : most;
  }
  if (each) {
    int* kept = (int*)((XLA_FFI_Buffer*)frame->rets.rets[made + 1])->data;
    for (long long i = 0; i < examples; ++i) kept[i] = steps[i] < 0x7fffffff ? steps[i] : 0x7fffffff;
  }
  float32* totals = (float32*)((XLA_FFI_Buffer*)frame->rets.rets[made])->data;
  totals[0] = all;
  totals[1] = most;
  totals[2] = busy;
  totals[3] = room;
  free(steps);
  if (!each) free(deepest);
  if (cut) return lw_failed(frame, XLA_FFI_Error_Code_CANCELLED, "lanewise: interrupted");
  return all_taken ? nullptr : lw_no_memory(frame);
}
