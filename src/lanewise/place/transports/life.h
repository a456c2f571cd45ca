// The thread of a session between processes, and how the session begins and ends.
#pragma once
#include "tcp.h"

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
  if (send(p->life, frame, sizeof head + head.bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;  // A lost peer is seen.
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
    // After all values: a place that waits for another is in error, and must not wait for ever.
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
    const int files[] = {s->net->peer[i].values, s->net->peer[i].life, s->net->peer[i].came};
    for (int k = 0; k < 3; ++k)
      if (files[k] >= 0) close(files[k]);
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
    lw_unmap(&p->ours), lw_unmap(&p->theirs);
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
    p->ours.slots = credit[i], p->theirs.slots = limit[i], p->came = -1;
    p->near = p->values >= 0 && lw_is_near(p->values);
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
