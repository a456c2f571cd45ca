// What every session has: a number that travels in tokens, the fault that ended it, and threads of its own.
//
// `compiled.py` says what the parts are for. Compiled without C++'s own headers, as all C++ here is.
#pragma once
#include "../../cpp/toolchain/calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LW_FAILED = -1, LW_LATER = 0, LW_DONE = 1 };
enum { LW_DIED = 1, LW_HANGS, LW_BROKE, LW_INTERRUPTED, LW_REQUIRED, LW_WRONG };
enum { LW_SEND, LW_RECEIVE, LW_REQUIRE };

struct lw_fault {
  int kind, place;
  long long number;
  char message[1000];
};

// What a call of compiled code asks for.
struct lw_call {
  int kind, peer;
  long long number, bytes;
  char* value;
};

struct lw_session;
struct lw_hub;
struct lw_net;

// A call that waits on a thread of ours, and what reports its end to XLA.
struct lw_job {
  lw_job* after;
  lw_session* session;
  lw_call call;
  int32_t *token, *next_token;
  const XLA_FFI_Api* api;
  XLA_FFI_Future* future;
  fenv_t rounding;
};

struct lw_worker {
  lw_worker* after;
  pthread_t thread;
};

struct lw_session {
  lw_session* after;
  int handle, me, size, inside;
  lw_hub* hub;  // one of these two
  lw_net* net;
  // Guards the fault and the jobs.
  pthread_mutex_t guard;
  pthread_cond_t changed, work;
  lw_fault fault;
  int faulty, quits, idle, working;  // `working`: threads of ours that have not ended
  bool abandoned;                    // the last of them frees the session
  lw_job *first, *last;
  lw_worker* workers;
};

static int64_t lw_now() {
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  return clock.tv_sec * 1000000000ll + clock.tv_nsec;
}

// How long to look for an answer before sleeping: to wake a core that sleeps takes longer than many a round trip.
static const int64_t LW_LOOK = 30000;

// Looking is worth it only while the peer runs on another core. Each time nothing came, as many more waits go by
// without looking, up to 256: on a shared core the peer has it sooner.
struct lw_looks {
  int missed, skipped;
};

template <class Ready>
static void lw_look(lw_looks* looks, Ready ready) {
  if (looks->skipped < (1 << looks->missed) - 1) {
    ++looks->skipped;
    return;
  }
  looks->skipped = 0;
  if (ready()) return;  // it was there already, which says nothing about cores
  for (const int64_t until = lw_now() + LW_LOOK; lw_now() < until;) {
    if (ready()) {
      if (looks->missed) --looks->missed;
      return;
    }
  }
  if (looks->missed < 8) ++looks->missed;
}

static void lw_condition(pthread_cond_t* made) {
  pthread_condattr_t about;
  pthread_condattr_init(&about);
  pthread_condattr_setclock(&about, CLOCK_MONOTONIC);
  pthread_cond_init(made, &about);
  pthread_condattr_destroy(&about);
}

// Wait for a change until a moment; whether that has not come.
static bool lw_wait_until(pthread_cond_t* changed, pthread_mutex_t* guard, int64_t moment) {
  struct timespec when = {moment / 1000000000ll, moment % 1000000000ll};
  return pthread_cond_timedwait(changed, guard, &when) != ETIMEDOUT;
}

// -- the table of sessions -----------------------------------------------------------------------------

static pthread_mutex_t lw_table = PTHREAD_MUTEX_INITIALIZER;
static lw_session* lw_sessions;
static int lw_last_handle;

static lw_session* lw_enter(int handle) {
  pthread_mutex_lock(&lw_table);
  lw_session* found = lw_sessions;
  while (found && found->handle != handle) found = found->after;
  if (found) ++found->inside;
  pthread_mutex_unlock(&lw_table);
  return found;
}

static void lw_leave(lw_session* s) {
  pthread_mutex_lock(&lw_table);
  --s->inside;
  pthread_mutex_unlock(&lw_table);
}

static void lw_close_files(lw_session* s);

static void lw_before_fork() { pthread_mutex_lock(&lw_table); }
static void lw_after_fork() { pthread_mutex_unlock(&lw_table); }

// A child has no threads that beat, and its copies of the sockets would keep a dead parent's connections open.
static void lw_in_child() {
  for (lw_session* s = lw_sessions; s; s = s->after) lw_close_files(s);
  lw_sessions = nullptr;
  pthread_mutex_unlock(&lw_table);
}

static lw_session* lw_made(int me, int size) {
  static int watched;
  lw_session* s = (lw_session*)calloc(1, sizeof(lw_session));
  if (!s) return nullptr;
  s->me = me, s->size = size;
  pthread_mutex_init(&s->guard, nullptr);
  lw_condition(&s->changed), lw_condition(&s->work);
  pthread_mutex_lock(&lw_table);
  if (!watched) watched = !pthread_atfork(lw_before_fork, lw_after_fork, lw_in_child);
  lw_last_handle = lw_last_handle == INT32_MAX ? 1 : lw_last_handle + 1;
  s->handle = lw_last_handle;
  s->after = lw_sessions;
  lw_sessions = s;
  pthread_mutex_unlock(&lw_table);
  return s;
}

// No call finds it from here on.
static void lw_forget(lw_session* s) {
  pthread_mutex_lock(&lw_table);
  lw_session** at = &lw_sessions;
  while (*at && *at != s) at = &(*at)->after;
  if (*at) *at = s->after;
  pthread_mutex_unlock(&lw_table);
}

// -- faults --------------------------------------------------------------------------------------------

static void lw_hub_fault(lw_session* s, const lw_fault* fault);
static void lw_net_fault(lw_session* s);

static bool lw_is_faulty(lw_session* s) { return __atomic_load_n(&s->faulty, __ATOMIC_ACQUIRE); }

// End a session, for the first reason that is given; calls that wait come back.
static int lw_fail(lw_session* s, int kind, int place, long long number, const char* message) {
  pthread_mutex_lock(&s->guard);
  const bool first = !s->faulty;
  if (first) {
    s->fault.kind = kind, s->fault.place = place, s->fault.number = number;
    snprintf(s->fault.message, sizeof s->fault.message, "%s", message);
    __atomic_store_n(&s->faulty, 1, __ATOMIC_RELEASE);
  }
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->guard);
  if (first && s->hub) lw_hub_fault(s, &s->fault);
  if (first && s->net) lw_net_fault(s);
  return LW_FAILED;
}

static int lw_mismatch(lw_session* s, int peer, const lw_call* call, long long number, long long bytes) {
  char text[256];
  snprintf(text, sizeof text, "value %lld of %lld bytes was expected of place %d, and value %lld of %lld bytes came",
           call->number, call->bytes, peer, number, bytes);
  return lw_fail(s, LW_WRONG, s->me, call->number, text);
}

static int lw_ended_early(lw_session* s, int peer, const lw_call* call) {
  char text[256];
  snprintf(text, sizeof text, "it ended before value %lld was %s place %d", call->number,
           call->kind == LW_SEND ? "taken from" : "sent to", s->me);
  return lw_fail(s, LW_BROKE, peer, call->number, text);
}

// -- threads of ours ------------------------------------------------------------------------------------

// Whether this thread is one that may wait: XLA's must not.
static __thread bool lw_ours;

static int lw_do(lw_session* s, const lw_call* call, bool wait);
static void lw_free_session(lw_session* s);

static void* lw_work(void* data) {
  lw_session* s = (lw_session*)data;
  lw_ours = true;
  pthread_mutex_lock(&s->guard);
  for (;;) {
    while (!s->first && !s->quits) {
      ++s->idle;
      pthread_cond_wait(&s->work, &s->guard);
      --s->idle;
    }
    lw_job* job = s->first;
    if (!job) break;
    s->first = job->after;
    pthread_mutex_unlock(&s->guard);

    int status = lw_do(s, &job->call, true);
    XLA_FFI_Error* error = nullptr;
    if (status == LW_DONE) {
      *job->next_token = *job->token;
    } else {
      XLA_FFI_Error_Create_Args about = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, s->fault.message,
                                         XLA_FFI_Error_Code_UNAVAILABLE};
      error = job->api->XLA_FFI_Error_Create(&about);
    }
    lw_leave(s);
    // What comes next in the compiled function runs inside of this call, rounded as it was on the thread it came from.
    fesetenv(&job->rounding);
    XLA_FFI_Error* problem;
    if (error) {
      XLA_FFI_Future_SetError_Args end = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr, job->future, error};
      problem = job->api->XLA_FFI_Future_SetError(&end);
    } else {
      XLA_FFI_Future_SetAvailable_Args end = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr, job->future};
      problem = job->api->XLA_FFI_Future_SetAvailable(&end);
    }
    if (problem) {
      XLA_FFI_Error_Destroy_Args about = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, problem};
      job->api->XLA_FFI_Error_Destroy(&about);
    }
    free(job);
    pthread_mutex_lock(&s->guard);
  }
  const bool last = !--s->working && s->abandoned;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->guard);
  if (last) lw_free_session(s);
  return nullptr;
}

// Start a thread that hears no signals: those are for threads of Python.
static int lw_start(pthread_t* thread, void* (*work)(void*), void* data) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int status = pthread_create(thread, nullptr, work, data);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

// Leave a call to a thread of ours; false where there can be none.
static bool lw_hand_over(lw_session* s, lw_job* job) {
  pthread_mutex_lock(&s->guard);
  bool taken = true;
  int waiting = 1;
  for (lw_job* other = s->first; other; other = other->after) ++waiting;
  if (s->idle < waiting) {
    lw_worker* worker = (lw_worker*)calloc(1, sizeof(lw_worker));
    taken = worker && !lw_start(&worker->thread, lw_work, s);
    if (taken) worker->after = s->workers, s->workers = worker, ++s->working;
    else free(worker);
  }
  if (taken) {
    job->after = nullptr;
    if (s->first) s->last->after = job;
    else s->first = job;
    s->last = job;
    pthread_cond_signal(&s->work);
  }
  pthread_mutex_unlock(&s->guard);
  return taken;
}
