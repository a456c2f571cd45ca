// Places of several processes: a connection for values and one for signs of life with each peer (`plain_tcp.py` has the frames).
//
// Handlers read and write the sockets of values themselves (`tcp.h`); what is large goes through memory that both
// processes have (`shared.h`). A thread of the session does what no handler is there for: heartbeats, what a full socket
// did not take, and credits that no handler has returned for a while (`life.h`).
#pragma once
#include "core.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { LW_VALUE = 0x4c570001, LW_CREDIT, LW_BEAT, LW_BYE, LW_FAULT, LW_SHARED, LW_MEMORY };
enum { LW_ROOM = 1 << 16, LW_TICK = 2000000, LW_SOON = 50000, LW_LONG = 20000000 };
// How long to wait for the reason why a connection has closed.
static const int64_t LW_VERDICT = 1000000000ll;

struct lw_head {
  uint32_t kind, number;
  uint64_t bytes;
  uint32_t credits, shares;  // `shares`: 1 where the side that says it reads memory that is shared (`shared.h`)
};

// Memory that two processes share, in slots for one message each.
struct lw_memory {
  char* at;
  long long room, slots;
};

// Bytes that wait: a message no receive has asked for yet, or what a socket has not taken.
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
  lw_memory ours, theirs;  // for what goes there, and for what comes
  unsigned long long sent, arrived;
  int came;           // a file that came, until its frame is read; or -1
  bool near, shares;  // whether a Unix socket leads there, and whether the other side reads shared memory
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
