// Lanes of one thread that meet at products with a matrix they share.
//
// A lane on its own reads a whole matrix for each of its rows, and a core waits for memory. Rows of several lanes share
// what is read: products of 16 rows by 128 x 512 weights take a third of the time for each row. So a thread has several
// lanes under way. Each has a stack of its own and runs on its own, as usual, up to a product of few rows with a large
// matrix that all lanes share, and waits there. When all wait, one matrix has its turn, for all lanes that wait for it.
// Nothing else in a kernel knows of that: blocks, recursion and refill are those of a lane on its own. An answer has
// the same bits, since a row's product does not depend on the rows beside it (`rules/rows.py`).
//
// Whose turn it is: the matrix for which lanes have waited most, summed over lanes and turns. Lanes that go through the
// same products in a loop gather in one turn round it; one that waits elsewhere, alone, has its turn too.
//
// Switching stacks takes a few instructions that C++ has no word for: they are written for x86-64, and lanes run one
// after the other elsewhere. What was considered: `swapcontext` calls the system for each switch; with coroutines of
// C++20, all functions up to the product would have to be some; a state machine as in `between.py` keeps every variable
// in memory.
#pragma once
#include "kernel.h"

// The most lanes of a thread that run together.
#define LW_MOST_LANES 16
// The most memory that they may have, with stacks of this many frames: those that hold more have room for it, which
// costs nothing where it is not used.
#define LW_MEETING_BYTES 268435456ll
#define LW_USUAL_FRAMES 1024
#define LW_STACK_BYTES 4194304
// The most stacks that a kernel keeps for its next run, and how far each is shifted in a page from the one before.
#define LW_KEPT_STACKS 256
#define LW_STAGGER_BYTES 256
// A matrix of fewer bytes stays near the core for one lane after the other; a lane with this many rows gains little.
#define LW_LARGE_BYTES 32768
#define LW_MANY_ROWS 12

// -- lw_meet --
#if !defined(__CUDACC__) && defined(LW_COMMON) && defined(__x86_64__) && defined(__linux__)
#define LW_MEETS
#undef LW_IDLE
#define LW_IDLE lw_idle
#include <sys/mman.h>
// What a lane waits for: its rows by a matrix.
typedef void (*lw_multiply)(const void* const*, void* const*, int, const void*, int, int);
struct lw_wanted {
  lw_multiply multiply;
  const void* right;
  const char* left;
  char* answer;
  int rows, left_bytes, answer_bytes, terms, columns;
};
struct lw_fiber {
  void* at;  // its stack's top while it does not run
  void* stack;
  lw_thread* thread;
  lw_wanted wanted;
  long long since;  // the turn in which it came to wait
  bool begun, waits, idle, ended;
};
struct lw_common {
  const char *first, *last;
};
struct lw_tile {
  lw_fiber* fibers;
  int count, current, commons;
  lw_common* common;
  void* outside;
  long long turn;
  lw_run* run;
};
static __thread lw_tile* lw_here;

// Go on at the stack `to`, and leave where this one is in `from`.
extern "C" void lw_switch(void** from, void* to) __asm__("lw_switch") __attribute__((visibility("hidden")));
__asm__(R"(
.text
.p2align 4
lw_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

static void lw_run_lanes(void* data);

static void lw_fiber_begins() {
  lw_fiber* own = &lw_here->fibers[lw_here->current];
  lw_run_lanes(own->thread);
  own->ended = true;
  lw_switch(&own->at, lw_here->outside);
}

// Whether others may wait for a product with this matrix too.
static bool lw_meets(const void* right) {
  lw_tile* tile = lw_here;
  if (!tile || tile->count < 2) return false;
  for (int i = 0; i < tile->commons; ++i)
    if ((const char*)right >= tile->common[i].first && (const char*)right < tile->common[i].last) return true;
  return false;
}

static void lw_meet(const lw_wanted& wanted) {
  lw_fiber* own = &lw_here->fibers[lw_here->current];
  own->wanted = wanted;
  own->since = lw_here->turn;
  own->waits = true;
  lw_switch(&own->at, lw_here->outside);
}

// No example is there at the moment, and the other lanes go on.
static void lw_idle() {
  lw_fiber* own = &lw_here->fibers[lw_here->current];
  own->idle = true;
  lw_switch(&own->at, lw_here->outside);
}

// Stacks of runs that have ended wait for the next ones: to map some anew and to touch them takes a tenth of a
// millisecond for a core's lanes. No thread is called out of its kernel while it has the lock.
static void* lw_kept;  // each has the next at its top
static int lw_keeping, lw_kept_count;
static void lw_keep(void* stack, bool put, void** taken) {
  while (__atomic_exchange_n(&lw_keeping, 1, __ATOMIC_ACQUIRE)) {}
  if (put && lw_kept_count < LW_KEPT_STACKS) {
    *(void**)((char*)stack + LW_STACK_BYTES - sizeof(void*)) = lw_kept;
    lw_kept = stack;
    ++lw_kept_count;
    stack = nullptr;
  } else if (!put && lw_kept) {
    *taken = lw_kept;
    lw_kept = *(void**)((char*)lw_kept + LW_STACK_BYTES - sizeof(void*));
    --lw_kept_count;
  }
  __atomic_store_n(&lw_keeping, 0, __ATOMIC_RELEASE);
  if (put && stack) munmap(stack, LW_STACK_BYTES);
}

// Lanes have their arrays at different places of a page: rows that are a multiple of a page apart evict each other
// from the caches.
static bool lw_begin(lw_fiber* fiber, int number) {
  char* stack = (char*)fiber->stack;
  if (!stack) {
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stack = (char*)mmap(nullptr, LW_STACK_BYTES, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (stack == MAP_FAILED) return false;
    fiber->stack = stack;
    // What runs over its end stops there.
    mprotect(stack, 4096, PROT_NONE);
  }
  void** top = (void**)(stack + LW_STACK_BYTES - number * LW_STAGGER_BYTES) - 8;
  memset(top, 0, 8 * sizeof(void*));
  top[6] = (void*)lw_fiber_begins;
  fiber->at = top;
  fiber->begun = true;
  return true;
}

// Whether one product gives the answers of both.
static inline bool lw_same(const lw_wanted& a, const lw_wanted& b) {
  return a.right == b.right && a.multiply == b.multiply && a.terms == b.terms && a.columns == b.columns;
}

// The product that lanes have waited for most, for all of those that wait for it; false if none waits.
static bool lw_take_turn(lw_tile* tile) {
  lw_fiber* const fibers = tile->fibers;
  long long most = 0;
  const lw_wanted* next = nullptr;
  for (int i = 0; i < tile->count; ++i) {
    if (!fibers[i].waits || (next && lw_same(fibers[i].wanted, *next))) continue;
    long long waited = 0;
    for (int j = i; j < tile->count; ++j)
      if (fibers[j].waits && lw_same(fibers[j].wanted, fibers[i].wanted)) waited += tile->turn - fibers[j].since + 1;
    if (waited > most) most = waited, next = &fibers[i].wanted;
  }
  if (!next) return false;
  const lw_wanted chosen = *next;
  const void* left[LW_MOST_LANES * LW_MANY_ROWS];
  void* answer[LW_MOST_LANES * LW_MANY_ROWS];
  int rows = 0;
  for (int i = 0; i < tile->count; ++i) {
    const lw_wanted& one = fibers[i].wanted;
    if (!fibers[i].waits || !lw_same(one, chosen)) continue;
    fibers[i].waits = false;
    for (int r = 0; r < one.rows; ++r) {
      left[rows] = one.left + r * one.left_bytes;
      answer[rows++] = one.answer + r * one.answer_bytes;
    }
  }
  chosen.multiply(left, answer, rows, chosen.right, chosen.terms, chosen.columns);
  ++tile->turn;
  return true;
}

// Whether a lane may run. One without an example does when there are some, or none will come.
static bool lw_may_run(lw_tile* tile, int number) {
  lw_fiber* fiber = &tile->fibers[number];
  if (fiber->ended || fiber->waits) return false;
  if (fiber->begun && !fiber->idle) return true;
  lw_feed* feed = tile->run->feed;
  if (feed && !lw_feed_stirs(feed)) return false;
  return fiber->begun || ((!feed || !feed->closed) && lw_begin(fiber, number));
}

// All lanes until they have ended. Examples are taken when a lane has ended one, and lanes begin while there are some.
static void lw_run_tile(void* data) {
  lw_tile* tile = (lw_tile*)data;
  lw_here = tile;
  for (;;) {
    bool left = false;
    for (int i = 0; i < tile->count; ++i) {
      lw_fiber* fiber = &tile->fibers[i];
      if (lw_may_run(tile, i)) {
        fiber->idle = false;
        tile->current = i;
        lw_switch(&tile->outside, fiber->at);
      }
      left |= fiber->begun && !fiber->ended;
    }
    if (lw_take_turn(tile)) continue;
    if (!tile->run->feed || (!left && lw_feed_stirs(tile->run->feed))) break;
    lw_feed_wait(tile->run->feed);
  }
  lw_here = nullptr;
}
#endif
