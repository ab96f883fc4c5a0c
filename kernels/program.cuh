// The program kernel: one block runs one worker of the schedule on one lane.
#pragma once
#include "abi.h"
#include "fold.cuh"
#include "link.cuh"

namespace rl {

// A part of the message: elements [begin, end).
struct Span {
  uint64_t begin, end;
};

// Lane `lane`'s part of a chunk. src/schedule/chunk.rs computes the same.
template <class T> __device__ __forceinline__ Span lane_span(const rl_op& op, uint32_t chunk, uint32_t lane) {
  const uint64_t begin = op.bounds[chunk], length = op.bounds[chunk + 1] - begin;
  constexpr uint32_t unit = RL_LINE / sizeof(T);
  const uint32_t lines = uint32_t(length / unit), each = lines / op.lanes, extra = lines % op.lanes;
  const auto at = [&](uint32_t l) { return uint64_t(each * l + min(l, extra)) * unit; };
  return {begin + at(lane), lane + 1 == op.lanes ? begin + length : begin + at(lane + 1)};
}

// A fold as the program's words hold it: the number of its first word. The words are a kernel parameter, read through
// the constant cache.
struct Fold {
  uint32_t word;
  __device__ uint32_t sources(const rl_op& op) const { return op.words[word] & 31; }
  __device__ uint32_t sinks(const rl_op& op) const { return op.words[word] >> 5 & 31; }
  __device__ bool has(const rl_op& op, uint32_t flag) const { return op.words[word] & flag; }
  __device__ uint32_t chunk(const rl_op& op) const { return op.words[word + 1]; }
  __device__ uint32_t kind(const rl_op& op, uint32_t operand) const { return op.words[word + 2 + operand] >> 8; }
  __device__ uint32_t end(const rl_op& op, uint32_t operand) const { return op.words[word + 2 + operand] & 0xff; }
  __device__ Fold next(const rl_op& op) const { return {word + 2 + sources(op) + sinks(op)}; }
};

// Where the program is. Kept in shared memory, not registers: the data path needs those.
struct Cursor {
  uint64_t base;      // the operation's epoch as a counter value
  uint64_t done;      // elements of each chunk in earlier tiles
  uint64_t longest;   // elements of the worker's longest chunk
  Fold first;         // the worker's first fold
  Fold fold;          // the current fold
  uint32_t index;     // its number
  uint32_t folds;
  uint32_t ends;
  uint32_t lane;
  bool deferred;      // the current fold's wait is put off to the end
  bool given_up;      // a peer disagrees or the host aborted
};

// What the block's threads share. The first warp drives: it waits, and it publishes; the others only move data.
struct Block {
  End ends[RL_MAX_ENDS];
  Step step;
  Cursor at;
};

// Reads the program's head, opens the link ends and finds how many tiles there are. Run by the first warp.
template <class T> __device__ __forceinline__ bool begin_program(const rl_op& op, Block& b, uint64_t epoch) {
  const uint32_t thread = threadIdx.x, lane = blockIdx.x / op.workers;
  const uint32_t word = op.first_word[blockIdx.x % op.workers], ends = op.words[word];
  const bool ok = thread >= ends || open_end(op, epoch, op.words[word + 1 + thread], lane, b.ends[thread]);
  if (thread == 0) {
    Cursor& at = b.at;
    at.base = epoch << RL_SLOT_BITS;
    at.done = at.longest = 0;
    at.ends = ends;
    at.folds = op.words[word + 1 + ends];
    at.first = at.fold = Fold{word + 2 + ends};
    at.index = 0;
    at.lane = lane;
    Fold f = at.fold;
    for (uint32_t i = 0; i < at.folds; i++, f = f.next(op)) {
      const Span s = lane_span<T>(op, f.chunk(op), lane);
      at.longest = max(at.longest, s.end - s.begin);
    }
  }
  return !__any_sync(~0u, !ok);
}

// This rank's output where peers write it, else null.
__device__ __forceinline__ char* own_lent_output(const rl_op& op) {
  return op.flags & RL_OP_LENT ? reinterpret_cast<char*>(op.output) : nullptr;
}

// Waits until operand `i` of the fold is ready and says where it is. Run by one thread for each operand. False if the
// operation was given up.
__device__ __forceinline__ bool ready_operand(const rl_op& op, Block& b, Fold fold, uint32_t i, uint64_t byte,
                                              bool deferred) {
  const bool source = i < fold.sources(op);
  const uint32_t kind = fold.kind(op, i);
  char* where;
  if (kind < RL_KIND_LINK) {
    where = reinterpret_cast<char*>(kind == RL_KIND_INPUT ? op.input : op.output) + byte;
  } else {
    End& end = b.ends[fold.end(op, i)];
    // Whose output stands in for the slot, if it was lent.
    char* lent = kind != RL_KIND_PEER ? nullptr : source ? own_lent_output(op) : end.lent;
    // A source waits for its slot to be filled, a sink for one to be free.
    uint32_t slots = end.passed + 1;
    if (!source) slots = lent || slots <= end.depth ? 0 : slots - end.depth;
    if (slots != 0 && !deferred && !wait_for(end.seen, b.at.base + slots, op.abort_word)) return false;
    where = lent ? lent + byte : slot(end, op, byte);
  }
  if (source) b.step.source[i] = where;
  else b.step.sink[i - fold.sources(op)] = where;
  return true;
}

// Fills in how the fold is to be carried out, its operands and its length being known.
template <class T, Op OP> __device__ __forceinline__ void describe_step(const rl_op& op, Step& step, Fold fold) {
  step.sources = fold.sources(op);
  // What a peer wrote straight into this rank's output, the last sink of such a fold, is not written again.
  step.sinks = fold.sinks(op) - (op.flags & RL_OP_LENT && fold.kind(op, 0) == RL_KIND_PEER);
  step.scaled = -1;
  if (OP == Op::Sum && op.flags & RL_OP_SCALE) {
    for (uint32_t s = 0; s < step.sources; s++) {
      if (fold.kind(op, s) == RL_KIND_INPUT) step.scaled = s;
    }
  }
  step.divide = OP == Op::Sum && op.flags & RL_OP_DIVIDE && fold.has(op, RL_FOLD_FINISH) ? op.ranks : 0;
  choose_path<T>(step);
}

// Finds the next fold that has such a tile, waits for its operands and describes it in b.step. Run by the first warp.
template <class T, Op OP> __device__ __forceinline__ void next_step(const rl_op& op, Block& b) {
  // A copy of what moves; the rest of the cursor is read where it is needed.
  uint64_t done = b.at.done;
  uint32_t index = b.at.index;
  Fold fold = b.at.fold;
  Span part;
  bool ok = !b.at.given_up;
  for (;; fold = fold.next(op), index++) {
    if (index == b.at.folds) {
      done += op.tile;
      index = 0;
      fold = b.at.first;
    }
    ok = ok && done < b.at.longest;
    if (!ok) break;
    part = lane_span<T>(op, fold.chunk(op), b.at.lane);
    part.begin += done;
    if (part.begin < part.end) break;
  }
  const uint32_t count = uint32_t(min(part.end - part.begin, uint64_t(op.tile)));
  const bool deferred = ok && op.flags & RL_OP_LENT && fold.has(op, RL_FOLD_DEFER);
  __syncwarp();
  if (threadIdx.x == 0) {
    b.at.done = done;
    b.at.index = index;
    b.at.fold = fold;
    b.at.deferred = deferred;
    b.step.count = count;
  }
  __syncwarp();
  if (ok && threadIdx.x < fold.sources(op) + fold.sinks(op)) {
    ok = ready_operand(op, b, fold, threadIdx.x, part.begin * sizeof(T), deferred);
  }
  ok = !__any_sync(~0u, !ok);
  if (threadIdx.x == 0) {
    b.step.path = END;
    if (ok) describe_step<T, OP>(op, b.step, b.at.fold);
  }
}

// Publishes the fold's sinks and frees its sources. Run by the first warp.
__device__ __forceinline__ void finish_step(const rl_op& op, Block& b) {
  const Fold fold = b.at.fold;
  const uint32_t i = threadIdx.x;
  if (i < fold.sources(op) + fold.sinks(op) && fold.kind(op, i) >= RL_KIND_LINK) {
    End& end = b.ends[fold.end(op, i)];
    end.passed++;
    if (!b.at.deferred) store_release(end.post, b.at.base + end.passed);
  }
  __syncwarp();
  if (i == 0) {
    b.at.fold = fold.next(op);
    b.at.index++;
  }
  __syncwarp();
}

template <class T, Op OP> __device__ __forceinline__ void run_program(const rl_op& op) {
  __shared__ Block b;
  wait_predecessor();
  allow_successor();
  const bool driver = threadIdx.x < 32;
  if (driver) {
    // Only a communicator of one rank has no state; its program has no links either.
    const auto* state = reinterpret_cast<const rl_state*>(op.state);
    const uint64_t epoch = state ? load_relaxed(&state->epoch) + 1 : 0;
    if (state && blockIdx.x == 0) post_headers(op, epoch);
    const bool ok = begin_program<T>(op, b, epoch);
    if (threadIdx.x == 0) b.at.given_up = !ok;
    __syncwarp();
  }
  for (;;) {
    if (driver) next_step<T, OP>(op, b);
    __syncthreads();
    if (b.step.path == END) break;
    fold<T, OP>(op, b.step);
    __syncthreads();
    if (driver) finish_step(op, b);
  }
  if (driver && op.state) {
    // The waits that were put off; the others are already satisfied. A peer that failed ends them by the abort word. A
    // link that nothing went through still shows an earlier operation's count.
    const End& end = b.ends[threadIdx.x];
    if (threadIdx.x < b.at.ends && !end.produces && end.passed != 0) {
      wait_for(end.seen, b.at.base + end.passed, op.abort_word);
    }
    __syncwarp();
    auto* state = reinterpret_cast<rl_state*>(op.state);
    if (threadIdx.x == 0) {
      // The last block to finish completes the operation.
      __threadfence();
      if (atomicAdd(&state->blocks, 1u) + 1 == gridDim.x) {
        state->blocks = 0;
        store_relaxed(&state->epoch, b.at.base >> RL_SLOT_BITS);
      }
    }
  }
}

}  // namespace rl

// Defines the four program kernels of one element type; the unit's name says which.
#define RL_KERNEL(NAME, T, OP)                                                                              \
  extern "C" __global__ void __launch_bounds__(RL_THREADS, 2) NAME(const __grid_constant__ rl_op op) { \
    rl::run_program<T, OP>(op);                                                                             \
  }
#define RL_UNIT(T)                     \
  RL_KERNEL(fold_sum, T, rl::Op::Sum)   \
  RL_KERNEL(fold_prod, T, rl::Op::Prod) \
  RL_KERNEL(fold_min, T, rl::Op::Min)   \
  RL_KERNEL(fold_max, T, rl::Op::Max)
