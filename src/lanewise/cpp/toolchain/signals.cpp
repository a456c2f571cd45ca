// What calls threads out of kernels that run (`foreign.py`): a small library of its own.

// How many threads at a time can be called out of their kernels; others run on to the end.
#define LW_MOST_THREADS 1024

// A lane that meets others has a stack of its own, which a checked jump would take for a broken one.
#undef _FORTIFY_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

extern "C" {
int lanewise_signals = 0;
}
static struct sigaction lw_before, lw_before_urgent;

// The threads that run lanes, and the way out of the one that this is.
struct lw_worker {
  int taken, works;
  pthread_t thread;
};
static lw_worker lw_workers[LW_MOST_THREADS];
static __thread sigjmp_buf* volatile lw_way_out __attribute__((tls_model("initial-exec")));

static void lw_urgent(int number, siginfo_t* about, void* context) {
  if (lw_way_out) siglongjmp(*lw_way_out, 1);
  if (lw_before_urgent.sa_flags & SA_SIGINFO) lw_before_urgent.sa_sigaction(number, about, context);
  else if (lw_before_urgent.sa_handler != SIG_DFL && lw_before_urgent.sa_handler != SIG_IGN)
    lw_before_urgent.sa_handler(number);
}

static void lw_interrupted(int number, siginfo_t* about, void* context) {
  if (lw_before.sa_flags & SA_SIGINFO) lw_before.sa_sigaction(number, about, context);
  else lw_before.sa_handler(number);
  __atomic_add_fetch(&lanewise_signals, 1, __ATOMIC_SEQ_CST);
  // This thread last: it may be one of them, and would not come back.
  bool mine = false;
  for (int i = 0; i < LW_MOST_THREADS; ++i) {
    if (!__atomic_load_n(&lw_workers[i].works, __ATOMIC_SEQ_CST)) continue;
    if (pthread_equal(lw_workers[i].thread, pthread_self())) mine = true;
    else pthread_kill(lw_workers[i].thread, SIGURG);
  }
  if (mine) pthread_kill(pthread_self(), SIGURG);
}

// Do a thread's part of a run that began after `begun` signals, until the next comes.
extern "C" void lanewise_stoppable(void (*work)(void*), void* data, int begun) {
  lw_worker* own = nullptr;
  for (int i = 0; i < LW_MOST_THREADS && !own; ++i)
    if (!__atomic_exchange_n(&lw_workers[i].taken, 1, __ATOMIC_SEQ_CST)) own = &lw_workers[i];
  if (!own) return work(data);
  sigset_t urgent, before;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_UNBLOCK, &urgent, &before);
  sigjmp_buf way_out;
  own->thread = pthread_self();
  if (!sigsetjmp(way_out, 1)) {
    lw_way_out = &way_out;
    __atomic_store_n(&own->works, 1, __ATOMIC_SEQ_CST);
    // Either the one that counts a signal sees that this thread works, or this thread sees that one was counted.
    if (__atomic_load_n(&lanewise_signals, __ATOMIC_SEQ_CST) == begun) work(data);
  }
  lw_way_out = nullptr;
  __atomic_store_n(&own->works, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&own->taken, 0, __ATOMIC_SEQ_CST);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Hear of interrupts, if anyone does: where they end the process, or are ignored, that stays so.
extern "C" int lanewise_listen() {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now)) return 0;
  if (now.sa_flags & SA_SIGINFO ? now.sa_sigaction == lw_interrupted
                                : now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
    return 0;
  struct sigaction ours = {};
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  ours.sa_sigaction = lw_urgent;
  if (sigaction(SIGURG, &ours, &lw_before_urgent)) return 0;
  lw_before = now;
  ours.sa_flags = now.sa_flags | SA_SIGINFO;
  ours.sa_mask = now.sa_mask;
  ours.sa_sigaction = lw_interrupted;
  return !sigaction(SIGINT, &ours, nullptr);
}

// Have `SIGURG` call threads out; whether it did not before.
extern "C" int lanewise_urgent_on() {
  struct sigaction now, ours = {};
  if (sigaction(SIGURG, nullptr, &now) || (now.sa_flags & SA_SIGINFO && now.sa_sigaction == lw_urgent)) return 0;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  ours.sa_sigaction = lw_urgent;
  return !sigaction(SIGURG, &ours, &lw_before_urgent);
}

extern "C" void lanewise_urgent_off() { sigaction(SIGURG, &lw_before_urgent, nullptr); }

extern "C" void lanewise_unlisten() {
  sigaction(SIGINT, &lw_before, nullptr);
  sigaction(SIGURG, &lw_before_urgent, nullptr);
}
