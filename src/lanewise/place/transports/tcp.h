// Between processes: what a handler writes and reads.
#pragma once
#include "shared.h"

// -- writing -------------------------------------------------------------------------------------------

// Changed with `writing` held, looked at without.
static void lw_owe(lw_peer* p, long long credits) { __atomic_store_n(&p->owed, credits, __ATOMIC_RELAXED); }

// Write a frame, or leave to the thread what the socket does not take. Called with `writing` held.
static int lw_put(lw_net* net, lw_peer* p, uint32_t kind, long long number, const char* data, long long bytes) {
  lw_head head = {kind, (uint32_t)number, (uint64_t)bytes, (uint32_t)p->owed, p->near};
  lw_owe(p, 0);
  if (!data) bytes = 0;  // they are elsewhere
  struct iovec parts[2] = {{&head, sizeof head}, {(void*)data, (size_t)bytes}};
  struct msghdr message = {};
  message.msg_iov = parts, message.msg_iovlen = bytes ? 2 : 1;
  const long long whole = sizeof head + bytes;
  long long done = 0;
  // A peer that reads makes room soon, and as long as it does that is worth waiting for.
  const int64_t until = lw_now() + LW_LONG;
  while (!p->queue && done < whole) {
    ssize_t more = sendmsg(p->values, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return LW_FAILED;
    if (more < 0) {
      struct pollfd room = {p->values, POLLOUT, 0};
      const struct timespec soon = {0, LW_SOON};
      if (lw_now() > until || ppoll(&room, 1, &soon, nullptr) == 0) break;
      continue;
    }
    done += more;
    for (int i = 0; i < 2; ++i) {
      const size_t of = (size_t)more < parts[i].iov_len ? more : parts[i].iov_len;
      parts[i].iov_base = (char*)parts[i].iov_base + of, parts[i].iov_len -= of, more -= of;
    }
  }
  if (done == whole) return LW_DONE;
  lw_bytes* rest = (lw_bytes*)malloc(sizeof(lw_bytes) + whole - done);
  if (!rest) return LW_LATER;
  rest->after = nullptr, rest->bytes = whole - done, rest->at = 0;
  const long long of_head = done < (long long)sizeof head ? sizeof head - done : 0;
  memcpy(rest->data, (char*)&head + sizeof head - of_head, of_head);
  if (bytes) memcpy(rest->data + of_head, data + (bytes - (rest->bytes - of_head)), rest->bytes - of_head);
  if (p->queue) p->queue_last->after = rest;
  else p->queue = rest;
  p->queue_last = rest;
  lw_wake(net);
  return LW_DONE;
}

static int lw_write(lw_session* s, lw_peer* p, uint32_t kind, const lw_call* call) {
  char* slot = kind == LW_VALUE && call->bytes >= LW_SHARE ? lw_slot_for(p, call->bytes) : nullptr;
  if (slot) memcpy(slot, call->value, call->bytes);
  pthread_mutex_lock(&p->writing);
  int status = LW_DONE;
  if (slot) status = lw_put(s->net, p, LW_SHARED, call->number, nullptr, call->bytes);
  else if (kind == LW_VALUE) status = lw_put(s->net, p, kind, call->number, call->value, call->bytes);
  else if (p->owed) status = lw_put(s->net, p, kind, 0, nullptr, 0);
  pthread_mutex_unlock(&p->writing);
  p->sent += kind == LW_VALUE;
  if (status == LW_LATER) return lw_fail(s, LW_BROKE, s->me, 0, "there is no memory for a message");
  return status;
}

// Return what is owed to all: before waiting, as a peer may wait for it.
static void lw_return_credits(lw_session* s) {
  for (int i = 0; i < s->net->peers; ++i)
    if (__atomic_load_n(&s->net->peer[i].owed, __ATOMIC_RELAXED)) lw_write(s, &s->net->peer[i], LW_CREDIT, nullptr);
}

// Write of the queue what the socket takes; -1 if the connection is gone.
static void lw_drain(lw_peer* p) {
  pthread_mutex_lock(&p->writing);
  while (lw_bytes* next = p->queue) {
    ssize_t done = send(p->values, next->data + next->at, next->bytes - next->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    next->at = done < 0 ? next->bytes : next->at + done;
    if (next->at < next->bytes) continue;
    p->queue = next->after;
    free(next);
  }
  pthread_mutex_unlock(&p->writing);
}

// -- reading -------------------------------------------------------------------------------------------

// The connection for values has closed, or what it carries is no frame: find out why.
static int lw_lost(lw_session* s, lw_peer* p, const lw_call* call) {
  const int64_t until = lw_now() + LW_VERDICT;
  pthread_mutex_lock(&s->guard);
  while (!s->faulty && !p->bye_in && lw_wait_until(&s->changed, &s->guard, until)) continue;
  pthread_mutex_unlock(&s->guard);
  if (lw_is_faulty(s)) return LW_FAILED;
  if (p->bye_in) return lw_ended_early(s, p->place, call);
  return lw_fail(s, LW_DIED, p->place, call->number, "its connection for values was closed");
}

// Have `wanted` bytes in the buffer.
static int lw_fill(lw_session* s, lw_peer* p, int wanted, bool wait, const lw_call* call) {
  if (p->begin == p->end) p->begin = p->end = 0;
  if (p->begin + wanted > LW_ROOM) {
    memmove(p->buffer, p->buffer + p->begin, p->end - p->begin);
    p->end -= p->begin, p->begin = 0;
  }
  while (p->end - p->begin < wanted) {
    ssize_t got = lw_recv(p, wait ? 0 : MSG_DONTWAIT);
    if (got > 0) p->end += got;
    else if (got < 0 && errno == EINTR) continue;
    else if (got < 0 && !wait && (errno == EAGAIN || errno == EWOULDBLOCK)) return LW_LATER;
    else return lw_lost(s, p, call);
  }
  return LW_DONE;
}

// Read one frame. The value that a receive waits for goes where it wants it (`got`), others into the inbox.
static int lw_step(lw_session* s, lw_peer* p, bool wait, const lw_call* call, bool* got) {
  int status = lw_fill(s, p, sizeof(lw_head), wait, call);
  if (status != LW_DONE) return status;
  lw_head head;
  memcpy(&head, p->buffer + p->begin, sizeof head);
  const bool shared = head.kind == LW_SHARED;
  const bool known = head.kind == LW_VALUE || head.kind == LW_CREDIT || shared || head.kind == LW_MEMORY;
  if (!known || head.shares > 1 || head.bytes >> 56 || (shared && (long long)head.bytes > p->theirs.room))
    return lw_fail(s, LW_WRONG, p->place, call->number, "what it sent is no frame");
  const long long bytes = head.kind == LW_VALUE || shared ? head.bytes : 0, inside = shared ? 0 : bytes;
  // Without waiting: whole frames or nothing.
  if (!wait && inside > LW_ROOM - (long long)sizeof head) return LW_LATER;
  if (!wait && (status = lw_fill(s, p, sizeof head + inside, wait, call)) != LW_DONE) return status;
  p->begin += sizeof head;
  p->credit += head.credits;
  p->shares = head.shares && p->near;
  if (head.kind == LW_CREDIT) return LW_DONE;
  if (head.kind == LW_MEMORY)
    return lw_map_theirs(p, head.bytes) ? (int)LW_DONE
                                        : lw_fail(s, LW_WRONG, p->place, call->number, "it shares no memory");
  char* into = call->value;
  lw_bytes* message = nullptr;
  *got = call->kind == LW_RECEIVE && !p->inbox && head.number == (uint32_t)call->number && bytes == call->bytes;
  if (!*got) {
    message = (lw_bytes*)malloc(sizeof(lw_bytes) + bytes);
    if (!message) return lw_fail(s, LW_BROKE, s->me, call->number, "there is no memory for a message");
    message->after = nullptr, message->number = head.number, message->bytes = bytes;
    into = message->data;
  }
  const long long there = p->end - p->begin < inside ? p->end - p->begin : inside;
  memcpy(into, p->buffer + p->begin, there);
  p->begin += there;
  if (shared) memcpy(into, lw_slot_at(&p->theirs, p->arrived), bytes);
  ++p->arrived;
  for (long long at = there; at < inside;) {
    ssize_t more = recv(p->values, into + at, bytes - at, MSG_WAITALL);
    if (more > 0) at += more;
    else if (more == 0 || errno != EINTR) {
      free(message);
      return lw_lost(s, p, call);
    }
  }
  if (message) {
    if (p->inbox) p->inbox_last->after = message;
    else p->inbox = message;
    p->inbox_last = message;
  }
  return LW_DONE;
}

// Read a frame if one is there, else return what is owed and wait.
static int lw_next(lw_session* s, lw_peer* p, bool wait, const lw_call* call, bool* got) {
  bool owes = false;
  for (int i = 0; i < s->net->peers; ++i) owes |= __atomic_load_n(&s->net->peer[i].owed, __ATOMIC_RELAXED) > 0;
  if (!wait || owes) {
    const int status = lw_step(s, p, false, call, got);
    if (status != LW_LATER || !wait) return status;
    lw_return_credits(s);
  }
  char first;
  lw_look(&p->looks, [&] { return p->end > p->begin || recv(p->values, &first, 1, MSG_PEEK | MSG_DONTWAIT) >= 0; });
  return lw_step(s, p, true, call, got);
}

static int lw_tcp(lw_session* s, const lw_call* call, bool wait) {
  lw_net* net = s->net;
  const int at = call->peer >= 0 && call->peer < s->size ? net->at[call->peer] : -1;
  lw_peer* p = at < 0 ? nullptr : &net->peer[at];
  if (!p || p->values < 0) return lw_fail(s, LW_WRONG, s->me, call->number, "there is no such edge in this session");
  int status;
  bool got = false;
  if (call->kind == LW_SEND) {
    while (!p->credit)
      if ((status = lw_next(s, p, wait, call, &got)) != LW_DONE) return status;
    if (lw_is_faulty(s)) return LW_FAILED;
    --p->credit;
    status = lw_write(s, p, LW_VALUE, call);
    return status == LW_FAILED ? lw_lost(s, p, call) : status;
  }
  while (!p->inbox && !got)
    if ((status = lw_next(s, p, wait, call, &got)) != LW_DONE) return status;
  if (!got) {
    lw_bytes* message = p->inbox;
    if (message->number != call->number || message->bytes != call->bytes)
      return lw_mismatch(s, p->place, call, message->number, message->bytes);
    memcpy(call->value, message->data, message->bytes);
    p->inbox = message->after;
    free(message);
  }
  pthread_mutex_lock(&p->writing);
  lw_owe(p, p->owed + 1), ++p->taken;
  const bool many = p->limit > 1 && 2 * p->owed > p->limit;
  pthread_mutex_unlock(&p->writing);
  if (many) lw_write(s, p, LW_CREDIT, nullptr);
  // The thread returns the credit if no handler does: it looks often while something moves.
  else if (!__atomic_exchange_n(&net->active, 1, __ATOMIC_RELAXED)) lw_wake(net);
  return LW_DONE;
}
