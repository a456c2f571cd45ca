// Places of several processes: a connection for values and one for signs of life with each peer (`plain_tcp.py` has the frames).
//
// Handlers read and write the sockets of values themselves. A thread of the session does what no handler is there for:
// heartbeats, what a full socket did not take, and credits that nobody has returned for a while.

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { LW_VALUE = 0x4c570001, LW_CREDIT, LW_BEAT, LW_BYE, LW_FAULT };
enum { LW_ROOM = 1 << 16, LW_TICK = 2000000, LW_SOON = 50000, LW_LONG = 20000000 };
// How long to wait for the reason why a connection has closed.
static const int64_t LW_VERDICT = 1000000000ll;

struct lw_head {
  uint32_t kind, number;
  uint64_t bytes;
  uint32_t credits, zero;
};

// Bytes that wait: a message nobody has asked for yet, or what a socket has not taken.
struct lw_bytes {
  lw_bytes* after;
  long long number, bytes, at;
  char data[];
};

struct lw_peer {
  int place, values, life;  // two sockets; -1 where there is none
  // What handlers alone use, one at a time: what was read and not yet looked at, messages, credit for sending.
  char* buffer;
  int begin, end;
  lw_bytes *inbox, *inbox_last;
  long long credit, limit;  // `limit`: how many messages may wait here
  lw_looks looks;
  // What is written, by handlers and by the thread.
  pthread_mutex_t writing;
  lw_bytes *queue, *queue_last;
  long long owed, taken, seen_taken;
  bool shut;
  // What the thread alone uses.
  int64_t seen;
  bool bye_in, bye_out, half, gone;
  char said[sizeof(lw_head) + sizeof(lw_fault)];
  unsigned heard;
};

struct lw_net {
  int peers, wake[2], active;
  lw_peer* peer;
  int* at;  // of a place, its index among the peers or -1
  int64_t timeout, beat;
  int closing, ended;
  pthread_t thread;
};

static void lw_wake(lw_net* net) {
  const char byte = 0;
  if (write(net->wake[1], &byte, 1) < 0) return;  // It is full, so the thread will wake.
}

static void lw_net_fault(lw_session* s) {
  for (int i = 0; i < s->net->peers; ++i)
    if (s->net->peer[i].values >= 0) shutdown(s->net->peer[i].values, SHUT_RDWR);
  lw_wake(s->net);
}

// -- writing -------------------------------------------------------------------------------------------

// Changed with `writing` held, looked at without.
static void lw_owe(lw_peer* p, long long credits) { __atomic_store_n(&p->owed, credits, __ATOMIC_RELAXED); }

// Write a frame, or leave to the thread what the socket does not take. Called with `writing` held.
static int lw_put(lw_net* net, lw_peer* p, uint32_t kind, long long number, const char* data, long long bytes) {
  lw_head head = {kind, (uint32_t)number, (uint64_t)bytes, (uint32_t)p->owed, 0};
  lw_owe(p, 0);
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
  pthread_mutex_lock(&p->writing);
  const int status = kind == LW_CREDIT ? p->owed ? lw_put(s->net, p, kind, 0, nullptr, 0) : (int)LW_DONE
                                       : lw_put(s->net, p, kind, call->number, call->value, call->bytes);
  pthread_mutex_unlock(&p->writing);
  if (status == LW_LATER) return lw_fail(s, LW_BROKE, s->me, 0, "there is no memory for a message");
  return status;
}

// Return what is owed to all: before waiting, for somebody may wait for it.
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
    ssize_t got = recv(p->values, p->buffer + p->end, LW_ROOM - p->end, wait ? 0 : MSG_DONTWAIT);
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
  if ((head.kind != LW_VALUE && head.kind != LW_CREDIT) || head.zero || head.bytes >> 56)
    return lw_fail(s, LW_WRONG, p->place, call->number, "what it sent is no frame");
  const long long bytes = head.kind == LW_VALUE ? head.bytes : 0;
  // Without waiting: whole frames or nothing.
  if (!wait && bytes > LW_ROOM - (long long)sizeof head) return LW_LATER;
  if (!wait && (status = lw_fill(s, p, sizeof head + bytes, wait, call)) != LW_DONE) return status;
  p->begin += sizeof head;
  p->credit += head.credits;
  if (head.kind == LW_CREDIT) return LW_DONE;
  char* into = call->value;
  lw_bytes* message = nullptr;
  *got = call->kind == LW_RECEIVE && !p->inbox && head.number == (uint32_t)call->number && bytes == call->bytes;
  if (!*got) {
    message = (lw_bytes*)malloc(sizeof(lw_bytes) + bytes);
    if (!message) return lw_fail(s, LW_BROKE, s->me, call->number, "there is no memory for a message");
    message->after = nullptr, message->number = head.number, message->bytes = bytes;
    into = message->data;
  }
  const long long there = p->end - p->begin < bytes ? p->end - p->begin : bytes;
  memcpy(into, p->buffer + p->begin, there);
  p->begin += there;
  for (long long at = there; at < bytes;) {
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
  // The thread returns the credit if nobody does: it looks often while something moves.
  else if (!__atomic_exchange_n(&net->active, 1, __ATOMIC_RELAXED)) lw_wake(net);
  return LW_DONE;
}

// -- the thread of a session ---------------------------------------------------------------------------

static void lw_tell(lw_peer* p, uint32_t kind, const lw_fault* fault) {
  char frame[sizeof(lw_head) + sizeof(lw_fault)];
  lw_head head = {kind, 0, 0, 0, 0};
  if (fault) {
    const int text = strlen(fault->message);
    const int32_t about[2] = {fault->kind, fault->place};
    head.number = (uint32_t)fault->number, head.bytes = sizeof about + text;
    memcpy(frame + sizeof head, about, sizeof about);
    memcpy(frame + sizeof head + sizeof about, fault->message, text);
  }
  memcpy(frame, &head, sizeof head);
  if (send(p->life, frame, sizeof head + head.bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;  // Who is gone is seen.
}

// What a peer says of itself or of another.
static void lw_hear(lw_session* s, lw_peer* p, const lw_head* head, const char* said) {
  if (head->kind == LW_BYE) {
    pthread_mutex_lock(&s->guard);
    p->bye_in = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->guard);
  } else if (head->kind == LW_FAULT) {
    int32_t about[2];
    char text[sizeof(lw_fault::message)];
    memcpy(about, said, sizeof about);
    const size_t length = head->bytes - sizeof about;
    memcpy(text, said + sizeof about, length);
    text[length] = 0;
    lw_fail(s, about[0], about[1], head->number, text);
  } else if (head->kind != LW_BEAT) {
    lw_fail(s, LW_WRONG, p->place, 0, "what it said is no frame");
  }
}

static void lw_listen(lw_session* s, lw_peer* p, int64_t now) {
  for (;;) {
    ssize_t got = recv(p->life, p->said + p->heard, sizeof p->said - p->heard, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      p->gone = true;
      if (!p->bye_in) lw_fail(s, LW_DIED, p->place, 0, "its process ended, or its machine closed the connection");
      return;
    }
    p->seen = now, p->heard += got;
    while (p->heard >= sizeof(lw_head)) {
      lw_head head;
      memcpy(&head, p->said, sizeof head);
      const bool fault = head.kind == LW_FAULT;
      if (fault ? head.bytes < 8 || head.bytes >= 8 + sizeof(lw_fault::message) : head.bytes != 0) {
        p->gone = true;
        lw_fail(s, LW_WRONG, p->place, 0, "what it said is no frame");
        return;
      }
      const size_t whole = sizeof head + head.bytes;
      if (p->heard < whole) break;
      lw_hear(s, p, &head, p->said + sizeof head);
      memmove(p->said, p->said + whole, p->heard - whole);
      p->heard -= whole;
    }
  }
}

static void lw_judge(lw_session* s, lw_peer* p, int64_t now) {
  if (p->gone || now - p->seen < s->net->timeout) return;
  p->gone = true;
  if (p->bye_in && p->bye_out) return;
  char text[128];
  snprintf(text, sizeof text, "it gave no sign of life for %.3g s", 1e-9 * s->net->timeout);
  lw_fail(s, LW_HANGS, p->place, 0, text);
}

// Return credits that are owed since the last look, and see whether anything moves.
static void lw_tick(lw_session* s) {
  bool moves = false;
  for (int i = 0; i < s->net->peers; ++i) {
    lw_peer* p = &s->net->peer[i];
    if (p->values < 0) continue;
    pthread_mutex_lock(&p->writing);
    const bool still = p->taken == p->seen_taken;
    moves |= !still;
    p->seen_taken = p->taken;
    if (still && p->owed) lw_put(s->net, p, LW_CREDIT, 0, nullptr, 0);
    pthread_mutex_unlock(&p->writing);
  }
  if (!moves) __atomic_store_n(&s->net->active, 0, __ATOMIC_RELAXED);
}

// Say goodbye; whether all have.
static bool lw_part(lw_net* net) {
  bool all = true;
  for (int i = 0; i < net->peers; ++i) {
    lw_peer* p = &net->peer[i];
    if (p->life < 0) continue;
    if (!p->bye_out) lw_tell(p, LW_BYE, nullptr);
    p->bye_out = true;
    // After all values: whoever waits for another is in error, and must not wait for ever.
    pthread_mutex_lock(&p->writing);
    if (p->values >= 0 && !p->queue && !p->shut) p->shut = true, shutdown(p->values, SHUT_WR);
    pthread_mutex_unlock(&p->writing);
    if (p->bye_in && !p->half) p->half = true, shutdown(p->life, SHUT_WR);
    all &= p->gone;
  }
  return all;
}

static void* lw_serve(void* data) {
  lw_session* s = (lw_session*)data;
  lw_net* net = s->net;
  struct pollfd* look = (struct pollfd*)calloc(2 * net->peers + 1, sizeof(struct pollfd));
  int64_t beat = 0, tick = 0;
  bool reported = false;
  while (look) {
    int64_t now = lw_now();
    if (now >= beat) {
      for (int i = 0; i < net->peers; ++i)
        if (net->peer[i].life >= 0 && !net->peer[i].half && !net->peer[i].gone)
          lw_tell(&net->peer[i], LW_BEAT, nullptr);
      beat = now + net->beat;
    }
    if (lw_is_faulty(s) && !reported) {
      for (int i = 0; i < net->peers; ++i)
        if (net->peer[i].life >= 0) lw_tell(&net->peer[i], LW_FAULT, &s->fault);
      reported = true;
    }
    const bool closing = __atomic_load_n(&net->closing, __ATOMIC_ACQUIRE);
    if (closing && (reported || lw_part(net))) break;

    const bool active = __atomic_load_n(&net->active, __ATOMIC_RELAXED);
    int count = 0;
    look[count].fd = net->wake[0], look[count++].events = POLLIN;
    for (int i = 0; i < net->peers; ++i) {
      lw_peer* p = &net->peer[i];
      look[count].fd = p->gone ? -1 : p->life, look[count++].events = POLLIN;
      pthread_mutex_lock(&p->writing);
      look[count].fd = p->queue && !reported ? p->values : -1, look[count++].events = POLLOUT;
      pthread_mutex_unlock(&p->writing);
    }
    int64_t rest = beat - now;
    if (active && rest > LW_TICK) rest = LW_TICK;
    poll(look, count, (rest + 999999) / 1000000);
    now = lw_now();
    char bytes[256];
    if (look[0].revents && read(net->wake[0], bytes, sizeof bytes) < 0) continue;
    for (int i = 0; i < net->peers; ++i) {
      lw_peer* p = &net->peer[i];
      if (p->life >= 0 && !p->gone) lw_listen(s, p, now);
      if (p->life >= 0 && !reported) lw_judge(s, p, now);
      if (look[2 + 2 * i].revents) lw_drain(p);
    }
    if (active && now >= tick) {
      lw_tick(s);
      tick = now + LW_TICK;
    }
  }
  // Nothing more is said; what was, arrives before the end of the connection.
  for (int i = 0; i < net->peers; ++i)
    if (net->peer[i].life >= 0) shutdown(net->peer[i].life, SHUT_WR);
  pthread_mutex_lock(&s->guard);
  net->ended = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->guard);
  free(look);
  return nullptr;
}

// -- a session -----------------------------------------------------------------------------------------

static void lw_close_files(lw_session* s) {
  if (!s->net) return;
  for (int i = 0; i < s->net->peers; ++i) {
    if (s->net->peer[i].values >= 0) close(s->net->peer[i].values);
    if (s->net->peer[i].life >= 0) close(s->net->peer[i].life);
  }
  close(s->net->wake[0]), close(s->net->wake[1]);
}

static void lw_free_bytes(lw_bytes* list) {
  while (list) {
    lw_bytes* next = list->after;
    free(list);
    list = next;
  }
}

static void lw_free_net(lw_net* net) {
  for (int i = 0; net->peer && i < net->peers; ++i) {
    lw_peer* p = &net->peer[i];
    lw_free_bytes(p->inbox), lw_free_bytes(p->queue);
    free(p->buffer);
    pthread_mutex_destroy(&p->writing);
  }
  free(net->peer), free(net->at), free(net);
}

// A session over sockets that are connected already; from here on they are its own. 0 where there is no memory.
extern "C" int lanewise_connect(int me, int size, int peers, const int32_t* place, const int32_t* values,
                                const int32_t* life, const int32_t* credit, const int32_t* limit, double timeout,
                                double beat) {
  lw_net* net = (lw_net*)calloc(1, sizeof(lw_net));
  if (!net) return 0;
  net->peer = (lw_peer*)calloc(peers + 1, sizeof(lw_peer));
  net->at = (int*)malloc(sizeof(int) * size);
  bool enough = net->peer && net->at && !pipe(net->wake);
  if (!enough) return free(net->peer), free(net->at), free(net), 0;
  for (int i = 0; i < 2; ++i) {
    fcntl(net->wake[i], F_SETFD, FD_CLOEXEC);
    fcntl(net->wake[i], F_SETFL, O_NONBLOCK);
  }
  net->peers = peers, net->timeout = (int64_t)(1e9 * timeout), net->beat = (int64_t)(1e9 * beat);
  for (int i = 0; i < size; ++i) net->at[i] = -1;
  for (int i = 0; i < peers; ++i) {
    lw_peer* p = &net->peer[i];
    p->place = place[i], p->values = values[i], p->life = life[i];
    p->credit = credit[i], p->limit = limit[i], p->seen = lw_now();
    p->buffer = (char*)malloc(LW_ROOM);
    pthread_mutex_init(&p->writing, nullptr);
    net->at[place[i]] = i;
    enough = enough && p->buffer;
  }
  lw_session* s = enough ? lw_made(me, size) : nullptr;
  if (s) {
    s->net = net;
    if (!lw_start(&net->thread, lw_serve, s)) return s->handle;
    lw_forget(s);
    free(s);
  }
  close(net->wake[0]), close(net->wake[1]);
  lw_free_net(net);
  return 0;
}
