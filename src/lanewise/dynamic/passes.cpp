// What the host does for every minibatch, a call of a table at a time: levels, what reads what, and the index tables.
//
// Each function is the compiled form of one in `pack.py`, `recorded.py` or `balanced.py` and gives the same numbers; those say what
// they mean. Calls come after the calls whose results they read, so each pass visits them once, in order. A table
// takes two passes: `lw_survey`, from which its envelope follows, and `lw_packed`, which writes each index where it
// belongs. Compiled by the host's C++ compiler as kernels are, without C++'s own headers.

#include <string.h>

typedef int int32;
typedef long long int64;

// The pieces of a table and the types of its rows. `operand_at[p]` and `result_at[p]` are where those of piece p begin.
struct lw_pieces {
  const int32 *arity, *results, *operand_at, *result_at;
  const int32 *operand_type, *result_type, *differentiable;
  int64 pieces, types;
};

struct lw_table {
  const int32 *piece, *operands, *wanted;
  // By type: rows of payload, rows that are carried, wanted values, and the number of carried rows before.
  const int32 *payload, *carried, *num_wanted, *carried_from;
  int64 calls, all_carried;
};

// At which level a value is made, and how many edges read it. An adjoint flows by an edge: from an operand of a call, or
// from a wanted value. Carried rows come first, at level -1, and then values.
struct lw_value {
  int32 level, uses;
};

// What the pass over levels reads and writes.
struct lw_levelling {
  const lw_pieces* p;
  const lw_table* t;
  int32* level;
  lw_value* values;
  int64 room;
  int64* counts;
  int32* fed;
  int32 again;  // not 0 where a value has more than one user
};

// Whether all operands of a call are results of calls: most calls read nothing else, or payload alone.
template <int32 few> static inline bool lw_reads_results(const int32* read) {
  int32 all = few ? 0 : -1;
  for (int32 k = 0; k < few; ++k) all |= read[k];
  return all >= 0;
}

// The next call may read this, and waits for it: one store of a register, as vectors take twice as long to arrive.
static inline void lw_make(lw_value& value, int32 level) {
  *(volatile int32*)&value.level = level;
  *(volatile int32*)&value.uses = 0;
}

// Writes only what is new, as what is written has to arrive before it can be read again.
static inline void lw_mark(int32& flags, int32 flag) {
  if (!(flags & flag)) flags |= flag;
}

// A run of calls of piece q, from call c on: their levels, if they are not known, and what the rows of operands are.
// Pieces of few operands have code of their own (`few`: how many; 0: any number). Gives the highest level. There is room
// for two results more than there are.
template <bool known, bool gradient, int32 few>
static int32 lw_run(lw_levelling& w, int32 q, int64 c, int64 end, const int32* read, lw_value* made) {
  const int32 arity = few ? few : w.p->arity[q], results = w.p->results[q], room = (int32)w.room;
  const int32 *types = w.p->operand_type + w.p->operand_at[q], *payload = w.t->payload;
  const int64 pieces = w.p->pieces;
  int32 *flags = w.fed + w.p->operand_at[q], *__restrict level = w.level, height = -1, leaves = 0, again = 0, fast = 0;
  lw_value *const first = w.values + w.t->all_carried;
  int64* __restrict counts = w.counts + q;
  for (; c < end; ++c, read += arity, made += results) {
    int32 own = known ? level[c] : 0;
    const auto reads = [&](lw_value& from) {
      if (!known) own = from.level + 1 > own ? from.level + 1 : own;
      if (gradient) again |= from.uses++;
    };
    if (lw_reads_results<few>(read)) {
      fast = 2;
      for (int32 k = 0; k < few; ++k) reads(first[read[k]]);
    } else {
      for (int32 k = 0; k < arity; ++k) {
        const int32 carried = ~read[k] - payload[types[k]];
        const bool plain = read[k] < 0 && carried < 0;
        lw_mark(flags[k], plain ? 1 : 2);
        if (!plain) reads(read[k] >= 0 ? first[read[k]] : w.values[w.t->carried_from[types[k]] + carried]);
      }
    }
    if (!known) level[c] = own;
    if (!known || gradient) {
      lw_make(made[0], own), lw_make(made[1], own);
      for (int32 j = 2; j < results; ++j) lw_make(made[j], own);
    }
    height = own > height ? own : height;
    // The calls of the lowest level follow one another: they have one sum, in a register.
    if (own == 0) ++leaves;
    else if (own < room) ++counts[own * pieces];
  }
  counts[0] += leaves;
  w.again |= again;
  for (int32 k = 0; k < few; ++k) flags[k] |= fast;
  return height;
}

// All calls, run by run. Gives the number of levels; those beyond `room` are not counted.
template <bool known, bool gradient> static int64 lw_walk(lw_levelling& w) {
  const int32 *piece = w.t->piece, *read = w.t->operands;
  lw_value* made = w.values + w.t->all_carried;
  int32 highest = -1;
  for (lw_value* v = w.values; v < made; ++v) *v = {-1, 0};
  for (int64 c = 0, end; c < w.t->calls; c = end) {
    const int32 q = piece[c], arity = w.p->arity[q];
    for (end = c + 1; end < w.t->calls && piece[end] == q;) ++end;
    const auto run = arity == 1 ? lw_run<known, gradient, 1> : arity == 2 ? lw_run<known, gradient, 2>
                   : arity == 4 ? lw_run<known, gradient, 4> : lw_run<known, gradient, 0>;
    const int32 height = run(w, q, c, end, read, made);
    highest = height > highest ? height : highest;
    read += arity * (end - c), made += w.p->results[q] * (end - c);
  }
  return highest + 1;
}

// What a table asks of an envelope. `counts` are of calls, by level and piece, and then of users beyond the first one
// of what those make; `carried_extra` of users beyond the first one of carried rows. Gives the number of levels; where
// that is more than `room`, no users are counted.
extern "C" int64 lw_survey(const lw_pieces* p, const lw_table* t, int32* level, int64 known, int64 gradient,
                           lw_value* values, int64 room, int64* counts, int32* fed, int32* carried_extra) {
  const auto walk = known ? (gradient ? lw_walk<true, true> : lw_walk<true, false>)
                          : (gradient ? lw_walk<false, true> : lw_walk<false, false>);
  lw_levelling of{p, t, level, values, room, counts, fed, 0};
  const int64 height = walk(of);
  if (!gradient || height > room) return height;
  lw_value* made = values + t->all_carried;
  const int32* wanted = t->wanted;
  for (int64 type = 0; type < p->types; wanted += t->num_wanted[type++])
    for (int32 i = 0; p->differentiable[type] && i < t->num_wanted[type]; ++i) of.again |= made[wanted[i]].uses++;
  if (!of.again) return height;
  for (int64 type = 0; type < p->types; ++type) {
    const lw_value* rows = values + t->carried_from[type];
    for (int32 i = 0; p->differentiable[type] && i < t->carried[type]; ++i)
      *carried_extra += rows[i].uses > 1 ? rows[i].uses - 1 : 0;
  }
  int64* extra = counts + room * p->pieces;
  for (int64 c = 0; c < t->calls; ++c) {
    const int32 q = t->piece[c], *types = p->result_type + p->result_at[q];
    for (int32 j = 0; j < p->results[q]; ++j, ++made)
      if (made->uses > 1 && p->differentiable[types[j]]) extra[level[c] * p->pieces + q] += made->uses - 1;
  }
  return height;
}

// Where things are, from `layout.py`: by operand, by result, by piece and by type. What has no adjoint has -1.
struct lw_layout {
  const int32 *index_at, *adjoint_at, *adjoint_step;
  const int32* result_base;
  const int32 *rows, *there_at;
  const int32 *first_at, *joined, *wanted_at, *arena_from, *carried_from;  // `joined`: rows of payload in the arena
  // The head, by level and piece: capacities, the row at which each begins, and where extra users are.
  const int32 *capacity, *offset, *extra_from, *extra_to, *extra_capacity;
  int64 head;
  // Parts of the array of tables: those by operand, all of the forward direction, all; and adjoints' first users.
  int64 indices, forward, size, first_begin, first_end;
  int64 carried_extra_from, carried_extra_to, carried_extra;
  int64 tail_extra_from, tail_extra_to, tail_extra, extra_start, extra_starts;
  // The tail in both directions: how many levels there are, where they begin, in how many tiles of each width; and how
  // many rows each level has, if that is asked, with those of the tail from `tail_counts` on.
  const int32 *levels_at, *start_at, *tiles_at, *widths;
  int64 num_widths, counts_at, tail_counts;
};

// A user of a row that is not its last: where the adjoint is, and the one before of the same row.
struct lw_user {
  int32 source, before;
};

// Memory of one run: the row at which the calls of each piece begin at each level, and that of the next one; where values
// are; the last user in `users` of each row of arenas (0: none).
struct lw_scratch {
  int64* begin;
  int32 *next, *position, *latest;
  lw_user* users;
};

// Writes the tables of calls, one run after the other.
struct lw_placing {
  const lw_pieces* p;
  const lw_table* t;
  const lw_layout* l;
  const int32* level;
  const lw_scratch* s;
  lw_user* user;  // the last one
  int32* out;

  // `source` is a user of a row, and the last one so far.
  template <bool more> inline void use(int32 slot, int32 source) {
    if (more && out[slot]) {
      int32& latest = s->latest[slot - l->first_begin];
      *++user = {out[slot], latest};
      latest = (int32)(user - s->users);
    }
    out[slot] = source;
  }
};

// A run of calls of piece q, as in `lw_run`: the index of each operand, and the last user of each row.
template <bool gradient, bool more, int32 few>
static void lw_place_run(lw_placing& w, int32 q, int64 c, int64 end, const int32* read, int32* __restrict made) {
  const int32 arity = few ? few : w.p->arity[q], results = w.p->results[q];
  const int32 *types = w.p->operand_type + w.p->operand_at[q], *base = w.l->result_base + w.p->result_at[q];
  const int32 *adjoint_at = w.l->adjoint_at + w.p->operand_at[q], *index_at = w.l->index_at + w.p->operand_at[q];
  const int32* step = w.l->adjoint_step + w.p->operand_at[q];
  const int32 *level = w.level, *position = w.s->position, *payload = w.t->payload, *joined = w.l->joined;
  const int64 pieces = w.p->pieces;
  const int32 base0 = base[0], base1 = base[1];
  int32 *__restrict next = w.s->next + q, *const out = w.out, leaf = next[0];
  int32 firsts[few ? few : 1], indices[few ? few : 1], adjoints[few ? few : 1], steps[few ? few : 1];
  for (int32 k = 0; k < few; ++k)
    firsts[k] = w.l->first_at[types[k]], indices[k] = index_at[k], adjoints[k] = adjoint_at[k], steps[k] = step[k];
  for (; c < end; ++c, read += arity, made += results) {
    const int32 row = level[c] ? next[level[c] * pieces]++ : leaf++;
    made[0] = row + base0, made[1] = row + base1;
    for (int32 j = 2; j < results; ++j) made[j] = row + base[j];
    if (lw_reads_results<few>(read)) {
      for (int32 k = 0; k < few; ++k) {
        const int32 at = position[read[k]];
        out[indices[k] + row] = at;
        if (gradient && adjoints[k] >= 0) w.template use<more>(firsts[k] + at, adjoints[k] + row * steps[k]);
      }
      continue;
    }
    for (int32 k = 0; k < arity; ++k) {
      const int32 type = types[k], given = ~read[k];
      const bool plain = read[k] < 0 && given < payload[type];
      const int32 at = read[k] >= 0 ? position[read[k]] : plain ? given : given + joined[type] - payload[type];
      out[index_at[k] + row] = at;
      if (gradient && !plain && adjoint_at[k] >= 0)
        w.template use<more>(w.l->first_at[type] + at, adjoint_at[k] + row * step[k]);
    }
  }
  next[0] = leaf;
}

// All calls, and what is wanted; users of a row beside the last one go into lists.
template <bool gradient, bool more> static void lw_place(lw_placing w) {
  const int32 *piece = w.t->piece, *read = w.t->operands, *position = w.s->position, *wanted = w.t->wanted;
  int32* made = w.s->position;
  for (int64 c = 0, end; c < w.t->calls; c = end) {
    const int32 q = piece[c], arity = w.p->arity[q];
    for (end = c + 1; end < w.t->calls && piece[end] == q;) ++end;
    const auto run = arity == 1   ? lw_place_run<gradient, more, 1>
                     : arity == 2 ? lw_place_run<gradient, more, 2>
                     : arity == 4 ? lw_place_run<gradient, more, 4>
                                  : lw_place_run<gradient, more, 0>;
    run(w, q, c, end, read, made);
    read += arity * (end - c), made += w.p->results[q] * (end - c);
  }
  for (int64 type = 0; type < w.p->types; ++type) {
    for (int32 i = 0; i < w.t->num_wanted[type]; ++i) {
      const int32 at = position[*wanted++];
      w.out[w.l->wanted_at[type] + i] = at;
      if (gradient && w.l->first_at[type] >= 0) w.template use<more>(w.l->first_at[type] + at, i + 1);
    }
  }
}

// Calls `visit(begin, end, level)` for the rows of a piece at each level.
template <class Visit>
static inline void lw_levels(const lw_pieces* p, const int64* counts, const int64* begin, int64 height, int64 q,
                             Visit visit) {
  for (int64 level = 0; level < height; ++level) {
    const int64 at = level * p->pieces + q;
    visit((int32)begin[at], (int32)(begin[at] + counts[at]), level);
  }
}

// Rows beyond are copies of one that is there.
static void lw_pad(const lw_pieces* p, const lw_layout* l, const int64* counts, const int64* begin, int64 height,
                   int32* out) {
  for (int64 q = 0; q < p->pieces; ++q) {
    for (int32 k = p->operand_at[q]; k < p->operand_at[q] + p->arity[q]; ++k) {
      int32 *section = out + l->index_at[k], done = 0, there = -1;
      lw_levels(p, counts, begin, height, q, [&](int32 from, int32 to, int64) {
        if (from == to) return;
        if (there < 0) there = section[from];
        for (; done < from; ++done) section[done] = there;
        done = to;
      });
      for (there = there < 0 ? 0 : there; done < l->rows[q]; ++done) section[done] = there;
    }
  }
}

// The levels of the tail.
static void lw_pack_tail(const lw_pieces* p, const lw_layout* l, const int64* counts, const int64* begin, int64 height,
                         int64 split, int64 direction, int32* out) {
  out[l->levels_at[direction]] = (int32)(height - split);
  int32 *start = out + l->start_at[direction], *tiles = out + l->tiles_at[direction];
  for (int64 at = split * p->pieces; at < height * p->pieces; ++at) {
    *start++ = (int32)begin[at];
    int64 left = counts[at];
    for (int64 i = 0; i < l->num_widths; ++i) {
      const int64 width = l->widths[i], last = i + 1 == l->num_widths, whole = (left + (last ? width - 1 : 0)) / width;
      *tiles++ = (int32)whole;
      left -= whole * width;
    }
  }
}

// How many rows there are at each level.
static void lw_pack_counts(const lw_pieces* p, const lw_layout* l, const int64* counts, int64 height, int64 split,
                           int32* out) {
  for (int64 at = 0; at < height * p->pieces; ++at) {
    const int64 tail = at - split * p->pieces;
    out[tail < 0 ? l->counts_at + at : l->tail_counts + tail] = (int32)counts[at];
  }
}

// Extra users in the order of the rows that they read, into one part of the tables.
struct lw_extras {
  const lw_scratch* scratch;
  int32 *from, *to;
  int64 room, number;

  // Those of a row, the first one first.
  void add(int64 slot, int32 target) {
    int32 last = scratch->latest[slot];
    int64 users = 0;
    for (int32 i = last; i; i = scratch->users[i].before) ++users;
    number += users;
    for (int64 at = number; last; last = scratch->users[last].before) from[--at] = scratch->users[last].source, to[at] = target;
  }

  // Room that is left adds zeros to the last row.
  void pad() {
    for (int64 i = number; number && i < room; ++i) to[i] = to[number - 1];
  }
};

static void lw_pack_extras(const lw_pieces* p, const lw_table* t, const lw_layout* l, const int64* counts,
                           const int64* extra, const int64* begin, int64 height, int64 split, const lw_scratch* s,
                           int32* out) {
  lw_extras tail{s, out + l->tail_extra_from, out + l->tail_extra_to, l->tail_extra, 0};
  lw_extras carried{s, out + l->carried_extra_from, out + l->carried_extra_to, l->carried_extra, 0};
  int32* starts = out + l->extra_start;
  for (int64 at = 0; at < height * p->pieces; ++at) {
    const int64 q = at % p->pieces;
    const bool head = at < split * p->pieces;
    if (!head) *starts++ = (int32)tail.number;
    if (!extra[at]) continue;
    lw_extras own{s, out, out, 0, 0};
    if (head) own = {s, out + l->extra_from[at], out + l->extra_to[at], l->extra_capacity[at], 0};
    for (int32 j = 0; j < p->results[q]; ++j) {
      const int32 type = p->result_type[p->result_at[q] + j], base = l->result_base[p->result_at[q] + j];
      if (l->first_at[type] < 0) continue;
      for (int64 i = 0; i < counts[at]; ++i) {
        const int64 row = base + begin[at] + i, slot = l->first_at[type] - l->first_begin + row;
        if (head) own.add(slot, (int32)(j * l->capacity[at] + i));
        else tail.add(slot, (int32)(l->arena_from[type] + row));
      }
    }
    if (head) own.pad();
  }
  while (starts < out + l->extra_start + l->extra_starts) *starts++ = (int32)tail.number;
  tail.pad();
  for (int64 type = 0; type < p->types; ++type) {
    for (int32 i = 0; l->first_at[type] >= 0 && i < t->carried[type]; ++i)
      carried.add(l->first_at[type] - l->first_begin + l->joined[type] + i, l->carried_from[type] + i);
  }
  carried.pad();
}

// The tables of the forward direction, and with `gradient` those of the reverse one. Levels from `split` on are in the
// tail.
extern "C" void lw_packed(const lw_pieces* p, const lw_table* t, const lw_layout* l, const int32* level,
                          const int64* counts, const int64* extra, int64 extras, int64 height, int64 split,
                          int64 gradient, const lw_scratch* s, int32* out) {
  const int64 size = gradient ? l->size : l->forward;
  int64* begin = s->begin;
  memset(out + l->indices, 0, sizeof(int32) * (size - l->indices));
  for (int64 q = 0; q < p->pieces; ++q) {
    int64 tail = l->offset[l->head * p->pieces + q];
    for (int64 at = q, i = 0; i < height; ++i, at += p->pieces) {
      begin[at] = i < split ? l->offset[at] : tail;
      tail += i < split ? 0 : counts[at];
      s->next[at] = (int32)begin[at];
    }
  }
  if (extras) memset(s->latest, 0, sizeof(int32) * (l->first_end - l->first_begin));
  const auto place = gradient ? (extras ? lw_place<true, true> : lw_place<true, false>) : lw_place<false, false>;
  place({p, t, l, level, s, s->users, out});
  lw_pad(p, l, counts, begin, height, out);
  for (int64 direction = 0; direction <= (gradient ? 1 : 0) && split < height; ++direction)
    lw_pack_tail(p, l, counts, begin, height, split, direction, out);
  if (l->counts_at >= 0) lw_pack_counts(p, l, counts, height, split, out);
  if (!gradient) return;
  for (int64 q = 0; q < p->pieces; ++q) {
    int32* there = out + l->there_at[q];
    lw_levels(p, counts, begin, height, q, [&](int32 from, int32 to, int64) {
      for (; from < to; ++from) there[from] = 1;
    });
  }
  if (extras) lw_pack_extras(p, t, l, counts, extra, begin, height, split, s, out);
}

// The calls of all lanes from their records: how many there are of each piece.
extern "C" void lw_counted(int64 lanes, int64 room, int64 width, const int32* top, const int32* tape, int32* counts) {
  for (int64 lane = 0; lane < lanes; ++lane) {
    const int32* record = tape + lane * room * width;
    for (int32 c = 0; c < top[lane]; ++c, record += width) ++counts[*record];
  }
}

// Pieces of a program: of `arity[p]` operands the first `rows[p]` are rows, the others payload, which is `words[p]` words
// of a record.
struct lw_kinds {
  const int32 *arity, *rows, *results, *words;
  int64 most_results, head;
};

// Where payload goes: by piece, where in `first_payload` its operands are, which say where their rows begin; and where
// in `columns` the words of its calls are.
struct lw_payload {
  const int32 *payload_at, *first_payload;
  const int64* column_at;
};

// Piece, level and operands of all calls: those that read no rows come first, so that calls of a piece follow one
// another. `counts` has how many there are by piece; `begin[i]` and `apart[i]` say where rows are that lanes have as
// operand i. `first_value` gets the first value of each record; `made` (by piece, zeros at first) is scratch memory.
extern "C" void lw_recorded(const lw_kinds* k, const lw_payload* l, int64 kinds, const int32* counts, int64 lanes,
                            int64 room, int64 width, const int32* top, const int32* tape, const int32* begin,
                            const int32* apart, int32* first_value, int32* made, int32* piece, int32* level,
                            int32* operands, int32* columns) {
  // Of calls that read rows, and of those that do not.
  int32 call[2] = {0, 0}, value[2] = {0, 0};
  int32* next[2] = {operands, operands};
  for (int64 p = 0; p < kinds; ++p) {
    if (k->rows[p]) continue;
    call[0] += counts[p], value[0] += counts[p] * k->results[p], next[0] += (int64)counts[p] * k->arity[p];
  }
  // A row is the number of a call times the most results that one has, plus that of a result: most often a power of two.
  const unsigned most = (unsigned)k->most_results, shift = __builtin_ctz(most), even = (most & (most - 1)) == 0;
  int32 start = 0;
  for (int64 lane = 0; lane < lanes; ++lane) {
    const int32* record = tape + lane * room * width;
    const int32 end = start + top[lane];
    for (int32 c = start; c < end; ++c, record += width) {
      const int32 p = record[0], rows = k->rows[p], words = k->words[p], source = rows == 0, own = call[source]++;
      const int32* given = record + k->head;
      int32* out = next[source];
      piece[own] = p, level[own] = record[1], first_value[c] = value[source];
      for (int32 i = 0; i < rows; ++i) {
        const int32 read = given[i];
        if (read >= 0) {
          const unsigned made_by = even ? (unsigned)read >> shift : (unsigned)read / most;
          *out++ = first_value[start + made_by] + (int32)((unsigned)read - made_by * most);
        } else {
          *out++ = ~(begin[-1 - read] + apart[-1 - read] * (int32)lane);
        }
      }
      const int32 number = made[p]++;
      for (int32 i = 0; i < k->arity[p] - rows; ++i) *out++ = ~(l->first_payload[l->payload_at[p] + i] + number);
      int32* column = columns + l->column_at[p] + (int64)number * words;
      if (words == 1) *column = given[rows];
      else if (words) memcpy(column, given + rows, sizeof(int32) * words);
      value[source] += k->results[p];
      next[source] = out;
    }
    start = end;
  }
}

// -- sums (`balanced.py`) --

struct lw_adding {
  const lw_pieces* p;
  const int32 *adds, *zeros;  // by piece, and by result of each
  const int32 *piece, *operands, *level;
  int64 calls, values;
};

// What is known of a value. Of `flags`: 1 and 2 where additions that can be put off read it, and where others do.
struct lw_term {
  int32 uses, flags, reader, zero, ready, number;
};

// A value that is to be added: when it is there, and its new number.
struct lw_item {
  int32 ready, number;
};

struct lw_added {
  int32 *piece, *level, *operands;
  int64 calls, values;
};

static inline void lw_emit(lw_added& out, int32 piece, int32 level, int32 values) {
  out.piece[out.calls] = piece, out.level[out.calls++] = level, out.values += values;
}

// By when they are there; those at the same time as they were. `spare` has room for as many.
static void lw_sort(lw_item* items, lw_item* spare, int64 n) {
  bool sorted = true;
  for (int64 i = 1; i < n; ++i) sorted = sorted && items[i - 1].ready <= items[i].ready;
  for (int64 width = 1; width < n && !sorted; width *= 2) {
    for (int64 begin = 0; begin < n; begin += 2 * width) {
      const int64 middle = begin + width < n ? begin + width : n, end = middle + width < n ? middle + width : n;
      for (int64 a = begin, b = middle, to = begin; to < end; ++to)
        spare[to] = a < middle && (b == end || items[a].ready <= items[b].ready) ? items[a++] : items[b++];
    }
    memcpy(items, spare, sizeof(lw_item) * n);
  }
}

// Adds some items in pairs, as soon as two are there. Gives the sum.
static lw_item lw_in_pairs(lw_item* items, lw_item* spare, int64 n, int32 piece, lw_added& out) {
  lw_sort(items, spare, n);
  int64 have = 0, next = 0;
  for (int32 time = items[0].ready;; ++time) {
    if (have < 2 && next < n && items[next].ready > time) time = items[next].ready;
    while (next < n && items[next].ready <= time) spare[have++] = items[next++];
    if (have == 1 && next == n) return spare[0];
    int64 left = 0;
    for (int64 i = 0; i < have; i += 2) {
      if (i + 1 == have) {
        spare[left++] = spare[i];
        continue;
      }
      int32* read = out.operands;
      read[0] = spare[i].number, read[1] = spare[i + 1].number, out.operands += 2;
      const lw_item made = {time + 1, (int32)out.values};
      lw_emit(out, piece, time, 1);
      spare[left++] = made;
    }
    have = left;
  }
}

// The last addition of a sum, in place of all that only lead to it; terms are there at `from` at the earliest.
static void lw_sum(const lw_adding* w, lw_term* terms, const int32* first, int64 call, int64 value, int32 from,
                   int32* stack, lw_item* items, lw_item* spare, lw_added& out) {
  int64 depth = 0, n = 0;
  lw_item zero = {0, 0};
  const auto push = [&](int64 c) { stack[depth++] = w->operands[first[c] + 1], stack[depth++] = w->operands[first[c]]; };
  push(call);
  while (depth) {
    const int32 v = stack[--depth];
    if (v >= 0 && terms[v].ready == -1) {
      push(terms[v].number);
      continue;
    }
    const lw_item item = {v < 0 || terms[v].ready < from ? from : terms[v].ready, v < 0 ? v : terms[v].number};
    if (v >= 0 && terms[v].zero) zero = item;
    else items[n++] = item;
  }
  // An operand of the lane is no value of its own.
  if (!n || (n == 1 && items[0].number < 0)) items[n++] = zero;
  const lw_item sum = lw_in_pairs(items, spare, n, w->piece[call], out);
  terms[value].ready = sum.ready, terms[value].number = sum.number;
}

// The calls of a table with its sums in pairs, and for each value its new number. `first` (by call), `late` (by call),
// `terms` (by value; zeros at first but for `uses` by answers), `stack`, `items` and `spare` (all by call, twice) are
// scratch memory. Gives the number of calls.
extern "C" int64 lw_balanced(const lw_adding* w, lw_term* terms, int32* first, int32* late, int32* stack,
                             lw_item* items, lw_item* spare, int32* piece, int32* level, int32* operands,
                             int32* number) {
  int64 read = 0, value = 0;
  for (int64 c = 0; c < w->calls; ++c) {
    const int32 q = w->piece[c];
    first[c] = (int32)read;
    for (int32 j = 0; j < w->p->results[q]; ++j, ++value) {
      terms[value].zero = w->zeros[w->p->result_at[q] + j];
      terms[value].reader = -1;
    }
    for (const int64 end = read + w->p->arity[q]; read < end; ++read) {
      if (w->operands[read] < 0) continue;
      lw_term& term = terms[w->operands[read]];
      ++term.uses;
      if (w->adds[q]) term.reader = (int32)c;
    }
  }
  for (int64 c = w->calls - 1; c >= 0; --c) {
    const int32 q = w->piece[c];
    int32 flags = 0;
    for (int32 j = 0; j < w->p->results[q]; ++j) flags |= terms[--value].flags;
    late[c] = !(flags & 2) && (w->adds[q] || (flags && w->level[c]));
    for (int32 k = 0; k < w->p->arity[q]; ++k) {
      const int32 v = w->operands[first[c] + k];
      if (v >= 0) terms[v].flags |= w->adds[q] && late[c] ? 1 : 2;
    }
    // An addition that only leads to another one: where that is made, it is looked into.
    if (!w->adds[q]) continue;
    lw_term& own = terms[value];
    if (own.uses == 1 && own.reader >= 0) own.ready = -1, own.number = (int32)c;
  }
  lw_added out = {piece, level, operands, 0, 0};
  int32 last = -1;
  // What is not put off, then terms, then sums.
  for (int32 turn = 0; turn < 3; ++turn) {
    const int32 from = turn ? last + 1 : 0;
    value = 0;
    for (int64 c = 0; c < w->calls; value += w->p->results[w->piece[c++]]) {
      const int32 q = w->piece[c], results = w->p->results[q];
      if (turn != (late[c] ? w->adds[q] ? 2 : 1 : 0)) continue;
      if (w->adds[q]) {
        if (terms[value].ready >= 0) lw_sum(w, terms, first, c, value, from, stack, items, spare, out);
        continue;
      }
      int32 at = from;
      for (int32 k = 0; k < w->p->arity[q]; ++k) {
        const int32 v = w->operands[first[c] + k];
        if (v >= 0 && terms[v].ready > at) at = terms[v].ready;
        *out.operands++ = v < 0 ? v : terms[v].number;
      }
      for (int32 j = 0; j < results; ++j)
        terms[value + j].ready = at + 1, terms[value + j].number = (int32)out.values + j;
      lw_emit(out, q, at, results);
    }
    for (int64 i = 0; i < out.calls; ++i) last = level[i] > last ? level[i] : last;
  }
  for (int64 v = 0; v < w->values; ++v) number[v] = terms[v].ready < 0 ? -1 : terms[v].number;
  return out.calls;
}
