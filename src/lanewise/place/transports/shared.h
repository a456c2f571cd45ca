// Large values between processes of one machine: through memory that both have, with only the frame on the socket.
//
// To copy 256 KB into a socket and out of it costs 20 us of CPU on each side, into memory and out of it 6. The sender
// makes the memory when it has the first large value: a file without a name (memfd), with a slot of that size for each
// credit, which it hands over the Unix socket. A larger value later makes a larger memory in place of it. Message number n
// of an edge is in slot n modulo the credits: while it has not been taken there is no credit to send the one that would
// come there next. So there are no locks and nothing to wait for but frames, which say when a slot is full, and credits,
// which say when it is free. A process that is killed leaves nothing: the memory ends with the last one that has it.
//
// A side that reads such memory says so in each frame; callbacks of Python do not, and get their values by the socket.
#pragma once
#include "frames.h"

#ifdef __linux__
#include <sys/mman.h>
#include <sys/stat.h>
#endif

// Shorter values take longer this way; and how much memory an edge may have.
enum { LW_SHARE = 1 << 15, LW_MOST_SHARED = 1 << 28 };

static char* lw_slot_at(const lw_memory* m, unsigned long long number) { return m->at + number % m->slots * m->room; }

#ifdef __linux__

static bool lw_is_near(int file) {
  int family = 0;
  socklen_t size = sizeof family;
  return !getsockopt(file, SOL_SOCKET, SO_DOMAIN, &family, &size) && family == AF_UNIX;
}

static void lw_unmap(lw_memory* m) {
  if (m->at) munmap(m->at, m->room * m->slots);
  m->at = nullptr, m->room = 0;
}

// Have a file as memory. A child that is forked has none of it.
static bool lw_map(lw_memory* m, int file, long long room, int how) {
  char* at = (char*)mmap(nullptr, room * m->slots, how, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return false;
  madvise(at, room * m->slots, MADV_DONTFORK);
  lw_unmap(m);
  m->at = at, m->room = room;
  return true;
}

// A frame with a file beside it; only if the socket takes it at once.
static bool lw_hand(lw_peer* p, int file, long long room) {
  lw_head head = {LW_MEMORY, 0, (uint64_t)room, 0, 1};
  struct iovec part = {&head, sizeof head};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  struct cmsghdr* about = CMSG_FIRSTHDR(&message);
  about->cmsg_level = SOL_SOCKET, about->cmsg_type = SCM_RIGHTS, about->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(about), &file, sizeof file);
  pthread_mutex_lock(&p->writing);
  const bool sent = !p->queue && sendmsg(p->values, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof head;
  pthread_mutex_unlock(&p->writing);
  return sent;
}

// Where the next value is that goes there, if it goes by shared memory.
static char* lw_slot_for(lw_peer* p, long long bytes) {
  lw_memory* m = &p->ours;
  if (!p->shares || !m->slots || bytes > LW_MOST_SHARED / m->slots) return nullptr;
  if (bytes > m->room) {
    const long long room = (bytes + 4095) / 4096 * 4096;
    const int file = memfd_create("lanewise", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    lw_memory made = {nullptr, 0, m->slots};
    const bool done = file >= 0 && !ftruncate(file, room * m->slots) &&
                      !fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) &&
                      lw_map(&made, file, room, PROT_READ | PROT_WRITE) && lw_hand(p, file, room);
    if (file >= 0) close(file);
    if (!done) return lw_unmap(&made), nullptr;
    lw_unmap(m);
    *m = made;
  }
  return lw_slot_at(m, p->sent);
}

// Take what was handed over. It is sealed, so that the peer cannot make it shorter and end its reader.
static bool lw_map_theirs(lw_peer* p, unsigned long long room) {
  lw_memory* m = &p->theirs;
  struct stat about;
  const int file = p->came;
  p->came = -1;
  const bool fits = m->slots && room && room <= (unsigned long long)(LW_MOST_SHARED / m->slots) + 4096;
  const bool done = file >= 0 && fits && !fstat(file, &about) && about.st_size >= (long long)room * m->slots &&
                    (fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK) && lw_map(m, file, room, PROT_READ);
  if (file >= 0) close(file);
  return done;
}

// Read what has come, and a file beside it.
static ssize_t lw_recv(lw_peer* p, int flags) {
  char* into = p->buffer + p->end;
  if (!p->near) return recv(p->values, into, LW_ROOM - p->end, flags);
  struct iovec part = {into, (size_t)(LW_ROOM - p->end)};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  struct msghdr message = {};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(p->values, &message, flags | MSG_CMSG_CLOEXEC);
  struct cmsghdr* about = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (about && about->cmsg_level == SOL_SOCKET && about->cmsg_type == SCM_RIGHTS) {
    if (p->came >= 0) close(p->came);
    memcpy(&p->came, CMSG_DATA(about), sizeof p->came);
  }
  return got;
}

#else

static bool lw_is_near(int) { return false; }
static void lw_unmap(lw_memory*) {}
static char* lw_slot_for(lw_peer*, long long) { return nullptr; }
static bool lw_map_theirs(lw_peer*, unsigned long long) { return false; }
static ssize_t lw_recv(lw_peer* p, int flags) { return recv(p->values, p->buffer + p->end, LW_ROOM - p->end, flags); }

#endif
