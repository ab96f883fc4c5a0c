// The program kernel: one block runs one worker of the schedule on one lane. Its warps have three roles that overlap:
// waiting for what comes next, moving data, and publishing what was moved.
#pragma once
#include "abi.h"
#include "exchange.cuh"
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

// Named barriers; 0 is __syncthreads. Each role meets the next one only, so waiting, moving and publishing overlap:
//   feeder --FULL--> movers --DONE--> poster --FREE--> feeder, two steps deep.
constexpr uint32_t FULL = 1, DONE = 3, FREE = 5;

// What the block's threads share.
struct Block {
  End ends[RL_MAX_ENDS];
  Step steps[2];       // what the movers do, and what comes next
  Fold folds[2];       // the steps' folds
  bool deferred[2];    // whether a step's wait is put off to the end
};

// This rank's output where peers write it, else null.
__device__ __forceinline__ char* own_lent_output(const rl_op& op) {
  return op.flags & RL_OP_LENT ? reinterpret_cast<char*>(op.output) : nullptr;
}

// Waits until operand `i` of the fold is ready and says where it is. Run by one thread for each operand. False if the
// operation was given up.
__device__ __forceinline__ bool ready_operand(const rl_op& op, Block& b, Step& step, Fold fold, uint32_t i,
                                              uint64_t byte, uint64_t base, bool deferred) {
  const bool source = i < fold.sources(op);
  const uint32_t kind = fold.kind(op, i);
  char* where;
  if (kind < RL_KIND_LINK) {
    where = reinterpret_cast<char*>(kind == RL_KIND_INPUT ? op.input : op.output) + byte;
  } else {
    End& end = b.ends[fold.end(op, i)];
    // Whose output stands in for the slot, if it was lent.
    char* lent = kind != RL_KIND_PEER ? nullptr : source ? own_lent_output(op) : end.lent;
    where = lent ? lent + byte : slot(end, op, byte);
    // A source waits for its slot to be filled, a sink for one to be free.
    uint32_t slots = ++end.passed;
    if (!source) slots = lent || slots <= end.depth ? 0 : slots - end.depth;
    if (slots != 0 && !deferred && !wait_for(end.seen, base + slots, op.abort_word)) return false;
  }
  if (source) step.source[i] = where;
  else step.sink[i - fold.sources(op)] = where;
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

// The feeder: one warp that walks through the worker's folds, tile by tile, waits for the operands of each and hands it
// to the movers. It keeps its place in registers.
template <class T, Op OP> __device__ __forceinline__ void feed(const rl_op& op, Block& b, uint64_t epoch) {
  const uint32_t thread = threadIdx.x % 32, lane = blockIdx.x / op.workers;
  const uint32_t word = op.first_word[blockIdx.x % op.workers], ends = op.words[word];
  const uint32_t folds = op.words[word + 1 + ends];
  const Fold first{word + 2 + ends};
  const uint64_t base = epoch << RL_SLOT_BITS;
  bool ok = thread >= ends || open_end(op, epoch, op.words[word + 1 + thread], lane, b.ends[thread]);
  ok = __all_sync(~0u, ok);

  uint64_t longest = 0;  // elements of the worker's longest chunk
  Fold fold = first;
  for (uint32_t i = 0; i < folds; i++, fold = fold.next(op)) {
    const Span s = lane_span<T>(op, fold.chunk(op), lane);
    longest = max(longest, s.end - s.begin);
  }

  uint32_t steps = 0;
  bool taken = false;  // whether the next step's place is ours
  const auto take = [&]() -> uint32_t {
    if (!taken && steps >= 2) barrier_wait(FREE + steps % 2, 64);
    taken = true;
    return steps % 2;
  };
  const auto hand_on = [&] {
    __syncwarp();
    barrier_arrive(FULL + steps % 2, RL_THREADS + 32);
    taken = false;
    steps++;
  };
  for (uint64_t done = 0; ok && done < longest; done += op.tile) {
    fold = first;
    for (uint32_t i = 0; ok && i < folds; i++, fold = fold.next(op)) {
      const Span part = lane_span<T>(op, fold.chunk(op), lane);
      const uint64_t begin = part.begin + done;
      if (begin >= part.end) continue;
      const uint32_t which = take();
      Step& step = b.steps[which];
      const bool deferred = op.flags & RL_OP_LENT && fold.has(op, RL_FOLD_DEFER);
      if (thread < fold.sources(op) + fold.sinks(op)) {
        ok = ready_operand(op, b, step, fold, thread, begin * sizeof(T), base, deferred);
      }
      ok = __all_sync(~0u, ok);
      if (!ok) break;
      if (thread == 0) {
        b.folds[which] = fold;
        b.deferred[which] = deferred;
        step.count = uint32_t(min(part.end - begin, uint64_t(op.tile)));
        describe_step<T, OP>(op, step, fold);
      }
      hand_on();
    }
  }
  const uint32_t last = take();
  if (thread == 0) b.steps[last].path = END;
  hand_on();

  // The waits that were put off; the others are already satisfied. A peer that failed ends them by the abort word. A link
  // that nothing went through still shows an earlier operation's count.
  if (ok && thread < ends && !b.ends[thread].produces && b.ends[thread].passed != 0) {
    wait_for(b.ends[thread].seen, base + b.ends[thread].passed, op.abort_word);
  }
}

// The movers: the warps that carry out one step after the other.
template <class T, Op OP> __device__ __forceinline__ void move_data(const rl_op& op, Block& b) {
  for (uint32_t which = 0;; which ^= 1) {
    barrier_wait(FULL + which, RL_THREADS + 32);
    const bool end = b.steps[which].path == END;
    if (!end) fold<T, OP>(op, b.steps[which]);
    barrier_arrive(DONE + which, RL_THREADS + 32);
    if (end) return;
  }
}

// The poster: one warp that publishes the sinks of each finished step and frees its sources. The fence this takes costs a
// round trip on the wire, which the movers do not wait for.
__device__ __forceinline__ void post(const rl_op& op, Block& b, uint64_t epoch) {
  const uint32_t i = threadIdx.x % 32;
  const uint64_t base = epoch << RL_SLOT_BITS;
  for (uint32_t which = 0;; which ^= 1) {
    barrier_wait(DONE + which, RL_THREADS + 32);
    if (b.steps[which].path == END) return;
    const Fold fold = b.folds[which];
    const bool deferred = b.deferred[which];
    __syncwarp();
    barrier_arrive(FREE + which, 64);
    if (i < fold.sources(op) + fold.sinks(op) && fold.kind(op, i) >= RL_KIND_LINK) {
      End& end = b.ends[fold.end(op, i)];
      const uint32_t posted = ++end.posted;
      if (!deferred) store_release(end.post, base + posted);
    }
    __syncwarp();
  }
}

// The operation's number. Only a communicator of one rank has no state; its program has no links either.
__device__ __forceinline__ uint64_t current_epoch(const rl_op& op) {
  const auto* state = reinterpret_cast<const rl_state*>(op.state);
  return state ? load_relaxed(&state->epoch) + 1 : 0;
}

template <class T, Op OP> __device__ __forceinline__ void run_program(const rl_op& op) {
  __shared__ Block b;
  wait_predecessor();
  allow_successor();
  if (threadIdx.x < RL_THREADS) {
    move_data<T, OP>(op, b);
  } else if (threadIdx.x < RL_THREADS + 32) {
    const uint64_t epoch = current_epoch(op);
    if (epoch != 0 && blockIdx.x == 0) {
      if (renewal_due(epoch)) renew_flags(op, RL_REGION_BOXES, epoch, threadIdx.x % 32, 32);
      __syncwarp();
      post_headers(op, epoch);
    }
    feed<T, OP>(op, b, epoch);
  } else {
    post(op, b, current_epoch(op));
  }
  auto* state = reinterpret_cast<rl_state*>(op.state);
  if (!state) return;
  // The last block to finish completes the operation.
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&state->blocks, 1u) + 1 == gridDim.x) {
      state->blocks = 0;
      store_relaxed(&state->epoch, load_relaxed(&state->epoch) + 1);
    }
  }
}

}  // namespace rl

// Defines the kernels of one element type; the unit's name says which.
#define RL_KERNEL(NAME, T, OP)                                                                              \
  extern "C" __global__ void __launch_bounds__(RL_BLOCK, RL_RESIDENT(T)) NAME(const __grid_constant__ rl_op op) { \
    rl::run_program<T, OP>(op);                                                                             \
  }
#define RL_UNIT(T)                     \
  RL_EXCHANGES(T)                      \
  RL_KERNEL(fold_sum, T, rl::Op::Sum)   \
  RL_KERNEL(fold_prod, T, rl::Op::Prod) \
  RL_KERNEL(fold_min, T, rl::Op::Min)   \
  RL_KERNEL(fold_max, T, rl::Op::Max)
