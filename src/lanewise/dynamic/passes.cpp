// What the host does for every minibatch, a call of a table at a time: levels, who reads what, and the index tables.
//
// Each function is the compiled form of one in `pack.py` or `recorded.py` and gives the same numbers; those say what
// they mean. Calls come after the calls whose results they read, so each pass goes through them once, in order.
// Compiled by the host's C++ compiler as kernels are, without C++'s own headers.

#include <string.h>

typedef int int32;
typedef long long int64;

// The pieces of a table and the types of its rows. `operand_at[p]` and `result_at[p]` are where those of piece p begin.
struct lw_pieces {
  const int32 *arity, *results, *operand_at, *result_at;
  const int32 *operand_type, *differentiable;
  int64 pieces, types;
};

struct lw_table {
  const int32 *piece, *operands, *level;
  const int32 *first_operand, *first_value;
  int64 calls, values;
  // The calls of each piece, one piece after the other, and where those of a piece begin.
  const int32 *by_piece, *piece_start;
  // Of each type: rows of payload, rows that are carried, and the number of the first of these after all values.
  const int32 *payload, *carried, *carried_from;
  // Wanted values of all types, and how many there are of each.
  const int32 *wanted, *num_wanted;
};

// Where the first operand and the first value of each call are, its level if that is not known, and the calls of each
// piece. Gives the number of levels. `of_value` has room for one more than all values: what is no value is at level -1.
extern "C" int64 lw_numbered(const lw_pieces* p, int64 calls, const int32* piece, const int32* operands,
                             int32* first_operand, int32* first_value, int32* level, int known, int32* of_value,
                             int32* by_piece, int32* piece_start) {
  int32 operand = 0, value = 0, height = 0;
  memset(piece_start, 0, sizeof(int32) * (p->pieces + 1));
  if (!known) *of_value++ = -1;
  for (int64 c = 0; c < calls; ++c) {
    const int32 q = piece[c], arity = p->arity[q], results = p->results[q];
    first_operand[c] = operand, first_value[c] = value;
    ++piece_start[q + 1];
    int32 own = known ? level[c] : 0;
    if (!known) {
      for (int32 k = 0; k < arity; ++k) {
        const int32 read = operands[operand + k], after = of_value[read < 0 ? -1 : read] + 1;
        own = after > own ? after : own;
      }
      level[c] = own;
      for (int32 j = 0; j < results; ++j) of_value[value + j] = own;
    }
    height = own >= height ? own + 1 : height;
    operand += arity, value += results;
  }
  first_operand[calls] = operand, first_value[calls] = value;
  for (int64 q = 0; q < p->pieces; ++q) piece_start[q + 1] += piece_start[q];
  for (int64 c = 0; c < calls; ++c) by_piece[piece_start[piece[c]]++] = (int32)c;
  for (int64 q = p->pieces; q > 0; --q) piece_start[q] = piece_start[q - 1];
  piece_start[0] = 0;
  return height;
}

// An adjoint flows by an edge: from an operand of a call, or from a wanted value. Edges are numbered by piece, operand
// and call, then wanted values by type; those from payload have numbers that nobody uses.
struct lw_edge {
  int32 target;  // a value, or after all values a carried row; -1 where no adjoint flows
  int32 number;
};

static inline int32 lw_target(const lw_pieces* p, const lw_table* t, int32 type, int32 read) {
  const int32 carried = ~read - t->payload[type];
  return !p->differentiable[type] ? -1 : read >= 0 ? read : carried < 0 ? -1 : t->carried_from[type] + carried;
}

// The number of the first edge of a wanted value.
static inline int32 lw_first_wanted(const lw_pieces* p, const lw_table* t) {
  int32 edges = 0;
  for (int64 q = 0; q < p->pieces; ++q) edges += p->arity[q] * (t->piece_start[q + 1] - t->piece_start[q]);
  return edges;
}

// Calls `visit(edge)` for the wanted values by which an adjoint flows.
template <class Visit> static inline void lw_wanted_edges(const lw_pieces* p, const lw_table* t, Visit visit) {
  const int32* wanted = t->wanted;
  int32 number = lw_first_wanted(p, t);
  for (int32 type = 0; type < p->types; ++type) {
    for (int32 i = 0; i < t->num_wanted[type]; ++i, ++wanted, ++number)
      if (p->differentiable[type]) visit(lw_edge{*wanted, number});
  }
}

// Calls `visit(edge)` for all edges in the order of their numbers.
template <class Visit> static inline void lw_edges(const lw_pieces* p, const lw_table* t, Visit visit) {
  int32 number = 0;
  for (int64 q = 0; q < p->pieces; ++q) {
    for (int32 k = 0; k < p->arity[q]; ++k) {
      const int32 type = p->operand_type[p->operand_at[q] + k];
      for (int32 i = t->piece_start[q]; i < t->piece_start[q + 1]; ++i, ++number) {
        const int32 target = lw_target(p, t, type, t->operands[t->first_operand[t->by_piece[i]] + k]);
        if (target >= 0) visit(lw_edge{target, number});
      }
    }
  }
  lw_wanted_edges(p, t, visit);
}

// How many calls of each piece are at each level, what the rows of operands are, and, if `last` is given, the edge that
// reads each value last. Gives how many others there are.
extern "C" int64 lw_survey(const lw_pieces* p, const lw_table* t, int64* counts, int32* fed, int32* last) {
  for (int64 c = 0; c < t->calls; ++c) ++counts[t->level[c] * p->pieces + t->piece[c]];
  int64 edges = 0, read = 0;
  const auto reads = [&](lw_edge e) {
    read += last[e.target] < 0, ++edges;
    last[e.target] = e.number > last[e.target] ? e.number : last[e.target];
  };
  int32 number = 0;
  for (int64 q = 0; q < p->pieces; ++q) {
    const int32 arity = p->arity[q], begin = t->piece_start[q], end = t->piece_start[q + 1];
    const int32* types = p->operand_type + p->operand_at[q];
    int32* flags = fed + p->operand_at[q];
    for (int32 k = 0; k < arity; ++k) flags[k] = 0;
    for (int32 i = begin; i < end; ++i) {
      const int32* own = t->operands + t->first_operand[t->by_piece[i]];
      for (int32 k = 0; k < arity; ++k) {
        flags[k] |= own[k] < 0 && ~own[k] < t->payload[types[k]] ? 1 : 2;
        if (!last) continue;
        const int32 target = lw_target(p, t, types[k], own[k]);
        if (target >= 0) reads({target, number + k * (end - begin) + i - begin});
      }
    }
    number += arity * (end - begin);
  }
  if (!last) return 0;
  lw_wanted_edges(p, t, reads);
  return edges - read;
}

// What the edges read that are not the last to do so, in order.
extern "C" void lw_extra(const lw_pieces* p, const lw_table* t, const int32* last, int32* extra) {
  lw_edges(p, t, [&](lw_edge e) {
    if (last[e.target] != e.number) *extra++ = e.target;
  });
}

// Where things lie, from `layout.py`: by operand, by result, by piece and by type.
struct lw_layout {
  const int32 *index_at, *fed, *adjoint_at;
  const int32 *result_base, *first_at;
  const int32 *rows, *there_at;
  const int32 *joined, *wanted_at, *carried_at;  // `joined`: rows of payload that an arena begins with
};

// The row of each call, the position of each value, and the tables of the forward direction. `next` is where the calls
// of each piece begin at each level.
extern "C" void lw_forward(const lw_pieces* p, const lw_table* t, const lw_layout* l, int32* next, int32* row,
                           int32* position, int32* out) {
  for (int64 c = 0; c < t->calls; ++c) {
    const int32 q = t->piece[c];
    row[c] = next[t->level[c] * p->pieces + q]++;
    for (int32 j = 0; j < p->results[q]; ++j)
      position[t->first_value[c] + j] = row[c] + l->result_base[p->result_at[q] + j];
  }
  for (int64 q = 0; q < p->pieces; ++q) {
    const int32 begin = t->piece_start[q], end = t->piece_start[q + 1];
    if (begin == end) continue;
    for (int32 k = 0; k < p->arity[q]; ++k) {
      const int32 at = p->operand_at[q] + k, type = p->operand_type[at];
      const int32 payload = t->payload[type], gap = l->joined[type] - payload;
      const bool plain = l->fed[at] == 1;
      int32* section = out + l->index_at[at];
      const auto place = [&](int32 call) {
        const int32 read = t->operands[t->first_operand[call] + k], given = ~read;
        if (plain) return given;
        return read >= 0 ? position[read] : given < payload ? given : given + gap;
      };
      // Rows beyond are copies of one that is there.
      const int32 first = place(t->by_piece[begin]);
      for (int32 i = 0; i < l->rows[q]; ++i) section[i] = first;
      for (int32 i = begin; i < end; ++i) section[row[t->by_piece[i]]] = place(t->by_piece[i]);
    }
  }
  const int32* wanted = t->wanted;
  for (int64 type = 0; type < p->types; ++type) {
    for (int32 i = 0; i < t->num_wanted[type]; ++i) out[l->wanted_at[type] + i] = position[*wanted++];
  }
}

// The tables of the reverse direction but for extra users, whose adjoints' places are given in `extra`. `at` is scratch
// memory: where the adjoint of each edge is written.
extern "C" void lw_reverse(const lw_pieces* p, const lw_table* t, const lw_layout* l, const int32* row,
                           const int32* last, int64 extras, int32* at, int32* extra, int32* out) {
  int32* next = at;
  for (int64 q = 0; q < p->pieces; ++q) {
    for (int32 k = 0; k < p->arity[q]; ++k) {
      const int32 base = l->adjoint_at[p->operand_at[q] + k];
      for (int32 i = t->piece_start[q]; i < t->piece_start[q + 1]; ++i) *next++ = row[t->by_piece[i]] + base;
    }
  }
  for (int64 type = 0; type < p->types; ++type) {
    for (int32 i = 0; i < t->num_wanted[type]; ++i) *next++ = i + 1;
  }
  if (extras) {
    lw_edges(p, t, [&](lw_edge e) {
      if (last[e.target] != e.number) *extra++ = at[e.number];
    });
  }
  const auto read = [&](int32 target) { return last[target] < 0 ? 0 : at[last[target]]; };
  for (int64 c = 0; c < t->calls; ++c) {
    const int32 q = t->piece[c];
    for (int32 j = 0; j < p->results[q]; ++j) {
      const int32 first = l->first_at[p->result_at[q] + j];
      if (first >= 0) out[first + row[c]] = read(t->first_value[c] + j);
    }
    out[l->there_at[q] + row[c]] = 1;
  }
  for (int64 type = 0; type < p->types; ++type) {
    for (int32 i = 0; i < t->carried[type]; ++i) out[l->carried_at[type] + i] = read(t->carried_from[type] + i);
  }
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

// Piece, level and operands of all calls. `begin[i]` and `apart[i]` say where rows lie that lanes have as operand i;
// `first_value` and `made` (by piece, zeros at first) are scratch memory.
extern "C" void lw_recorded(const lw_kinds* k, const lw_payload* l, int64 lanes, int64 room, int64 width, const int32* top,
                            const int32* tape, const int32* begin, const int32* apart, int32* first_value, int32* made,
                            int32* piece, int32* level, int32* operands, int32* columns) {
  int32 start = 0, value = 0;
  for (int64 lane = 0; lane < lanes; ++lane) {
    const int32* record = tape + lane * room * width;
    const int32 end = start + top[lane];
    for (int32 c = start; c < end; ++c, record += width) {
      const int32 p = record[0], rows = k->rows[p], words = k->words[p];
      const int32* given = record + k->head;
      piece[c] = p, level[c] = record[1], first_value[c] = value;
      for (int32 i = 0; i < rows; ++i) {
        const int32 read = given[i];
        if (read >= 0) {
          *operands++ = first_value[start + read / k->most_results] + (int32)(read % k->most_results);
        } else {
          *operands++ = ~(begin[-1 - read] + apart[-1 - read] * (int32)lane);
        }
      }
      const int32 number = made[p]++;
      for (int32 i = 0; i < k->arity[p] - rows; ++i)
        *operands++ = ~(l->first_payload[l->payload_at[p] + i] + number);
      memcpy(columns + l->column_at[p] + (int64)number * words, given + rows, sizeof(int32) * words);
      value += k->results[p];
    }
    start = end;
  }
}
