// Places of one process: a bounded queue for each edge, and a lock for each queue.
#pragma once
#include "core.h"

struct lw_slot {
  long long number, bytes, room;
  char* data;
};

struct lw_edge {
  int source, target, credits;
  unsigned long long sent, received;
  bool source_ended, target_ended;
  pthread_mutex_t guard;
  pthread_cond_t moved;
  lw_looks sending, receiving;
  lw_slot* slots;
};

// What the sessions of one group share, as long as one of them is open.
struct lw_hub {
  int size, edges, open;
  lw_edge* edge;
  lw_session** member;
  int* between;  // the edge from each place to each, or -1
  pthread_mutex_t guard;
};

static void lw_free_hub(lw_hub* hub) {
  for (int e = 0; hub->edge && e < hub->edges; ++e) {
    lw_edge* edge = &hub->edge[e];
    for (int i = 0; edge->slots && i < edge->credits; ++i) free(edge->slots[i].data);
    free(edge->slots);
    pthread_mutex_destroy(&edge->guard);
    pthread_cond_destroy(&edge->moved);
  }
  pthread_mutex_destroy(&hub->guard);
  free(hub->edge), free(hub->member), free(hub->between), free(hub);
}

// A group of places, held by its maker until `lanewise_release`.
extern "C" lw_hub* lanewise_group(int size, int edges, const int32_t* source, const int32_t* target,
                                  const int32_t* credits) {
  lw_hub* hub = (lw_hub*)calloc(1, sizeof(lw_hub));
  if (!hub) return nullptr;
  pthread_mutex_init(&hub->guard, nullptr);
  hub->size = size, hub->edges = edges, hub->open = 1;
  hub->edge = (lw_edge*)calloc(edges + 1, sizeof(lw_edge));
  hub->member = (lw_session**)calloc(size, sizeof(lw_session*));
  hub->between = (int*)malloc(sizeof(int) * size * size);
  bool enough = hub->edge && hub->member && hub->between;
  for (int i = 0; enough && i < size * size; ++i) hub->between[i] = -1;
  for (int e = 0; hub->edge && e < edges; ++e) {
    lw_edge* edge = &hub->edge[e];
    pthread_mutex_init(&edge->guard, nullptr);
    lw_condition(&edge->moved);
    edge->source = source[e], edge->target = target[e], edge->credits = credits[e];
    edge->slots = (lw_slot*)calloc(credits[e], sizeof(lw_slot));
    enough = enough && edge->slots;
    if (enough) hub->between[source[e] * size + target[e]] = e;
  }
  if (enough) return hub;
  lw_free_hub(hub);
  return nullptr;
}

extern "C" void lanewise_release(lw_hub* hub) {
  pthread_mutex_lock(&hub->guard);
  const bool last = !--hub->open;
  pthread_mutex_unlock(&hub->guard);
  if (last) lw_free_hub(hub);
}

extern "C" int lanewise_join(lw_hub* hub, int me) {
  lw_session* s = lw_made(me, hub->size);
  if (!s) return 0;
  pthread_mutex_lock(&hub->guard);
  s->hub = hub, hub->member[me] = s, ++hub->open;
  pthread_mutex_unlock(&hub->guard);
  return s->handle;
}

static void lw_wake_hub(lw_hub* hub) {
  for (int e = 0; e < hub->edges; ++e) {
    pthread_mutex_lock(&hub->edge[e].guard);
    pthread_cond_broadcast(&hub->edge[e].moved);
    pthread_mutex_unlock(&hub->edge[e].guard);
  }
}

// The fault of one place ends the others.
static void lw_hub_fault(lw_session* s, const lw_fault* fault) {
  lw_hub* hub = s->hub;
  pthread_mutex_lock(&hub->guard);
  for (int i = 0; i < hub->size; ++i) {
    lw_session* other = hub->member[i];
    if (!other || other == s) continue;
    pthread_mutex_lock(&other->guard);
    if (!other->faulty) {
      other->fault = *fault;
      __atomic_store_n(&other->faulty, 1, __ATOMIC_RELEASE);
    }
    pthread_cond_broadcast(&other->changed);
    pthread_mutex_unlock(&other->guard);
  }
  lw_wake_hub(hub);
  pthread_mutex_unlock(&hub->guard);
}

// A place has ended: no other waits for it from here on.
static void lw_hub_ended(lw_session* s) {
  for (int e = 0; e < s->hub->edges; ++e) {
    lw_edge* edge = &s->hub->edge[e];
    pthread_mutex_lock(&edge->guard);
    edge->source_ended |= edge->source == s->me, edge->target_ended |= edge->target == s->me;
    pthread_cond_broadcast(&edge->moved);
    pthread_mutex_unlock(&edge->guard);
  }
}

static void lw_hub_left(lw_session* s) {
  pthread_mutex_lock(&s->hub->guard);
  s->hub->member[s->me] = nullptr;
  pthread_mutex_unlock(&s->hub->guard);
  lanewise_release(s->hub);
}

static int lw_local(lw_session* s, const lw_call* call, bool wait) {
  lw_hub* hub = s->hub;
  const bool sends = call->kind == LW_SEND;
  const int e = hub->between[sends ? s->me * hub->size + call->peer : call->peer * hub->size + s->me];
  if (e < 0) return lw_fail(s, LW_WRONG, s->me, call->number, "there is no such edge in this session");
  lw_edge* edge = &hub->edge[e];
  const auto ready = [&] {
    const unsigned long long waiting =
        __atomic_load_n(&edge->sent, __ATOMIC_RELAXED) - __atomic_load_n(&edge->received, __ATOMIC_RELAXED);
    return sends ? waiting < (unsigned)edge->credits : waiting != 0;
  };
  // One thread at a time sends on an edge, and one receives.
  if (wait && !ready()) lw_look(sends ? &edge->sending : &edge->receiving, ready);
  pthread_mutex_lock(&edge->guard);
  while (!ready()) {
    const bool ended = sends ? edge->target_ended : edge->source_ended;
    if (!wait || ended || lw_is_faulty(s)) {
      pthread_mutex_unlock(&edge->guard);
      return lw_is_faulty(s) ? LW_FAILED : ended ? lw_ended_early(s, call->peer, call) : LW_LATER;
    }
    pthread_cond_wait(&edge->moved, &edge->guard);
  }
  lw_slot* slot = &edge->slots[(sends ? edge->sent : edge->received) % edge->credits];
  pthread_mutex_unlock(&edge->guard);
  if (lw_is_faulty(s)) return LW_FAILED;
  // The slot is this side's alone until it is counted.
  if (sends) {
    if (slot->room < call->bytes || !slot->data) {
      free(slot->data);
      slot->data = (char*)malloc(call->bytes + 1);
      slot->room = slot->data ? call->bytes : 0;
      if (!slot->data) return lw_fail(s, LW_BROKE, s->me, call->number, "there is no memory for a message");
    }
    slot->number = call->number, slot->bytes = call->bytes;
    memcpy(slot->data, call->value, call->bytes);
  } else {
    if (slot->number != call->number || slot->bytes != call->bytes)
      return lw_mismatch(s, call->peer, call, slot->number, slot->bytes);
    memcpy(call->value, slot->data, call->bytes);
  }
  pthread_mutex_lock(&edge->guard);
  __atomic_add_fetch(sends ? &edge->sent : &edge->received, 1, __ATOMIC_RELAXED);
  pthread_cond_signal(&edge->moved);
  pthread_mutex_unlock(&edge->guard);
  return LW_DONE;
}
