// The exchange kernel: collectives of one step, for small messages. Everybody sends what each peer needs as packets that
// carry their own flags, and combines what arrives in rank order. No fence, no credit, no handshake before the data.
//
// A flag is the operation's number, which lives on the device, so a captured exchange can be replayed. There are two boxes
// for each peer, used in turn: a rank sends in operation e only after it has finished e - 1, which needed the peer to have
// begun e - 1, so the peer has read everything of e - 2.
#pragma once
#include "abi.h"
#include "link.cuh"
#include "ops.cuh"

namespace rl {

// Elements travel eight bytes at a time.
template <class T> constexpr int UNIT = 8 / sizeof(T);

// Unit `i` of a buffer of `bytes`; what lies beyond its end reads as zero. One load where the address allows it.
template <class T> __device__ __forceinline__ uint64_t load_unit(const char* buffer, uint64_t bytes, uint64_t i) {
  const char* p = buffer + i * 8;
  uint64_t v = 0;
  if (i * 8 + 8 <= bytes && reinterpret_cast<uintptr_t>(p) % 8 == 0) {
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p));
  } else {
    for (int k = 0; k < UNIT<T>; k++) {
      T x;
      if (i * 8 + (k + 1) * sizeof(T) <= bytes) {
        x = reinterpret_cast<const T*>(p)[k];
        memcpy(reinterpret_cast<char*>(&v) + k * sizeof(T), &x, sizeof(T));
      }
    }
  }
  return v;
}

template <class T> __device__ __forceinline__ void store_unit(char* buffer, uint64_t bytes, uint64_t i, uint64_t v) {
  char* p = buffer + i * 8;
  if (i * 8 + 8 <= bytes && reinterpret_cast<uintptr_t>(p) % 8 == 0) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(v));
  } else {
    for (int k = 0; k < UNIT<T>; k++) {
      T x;
      memcpy(&x, reinterpret_cast<const char*>(&v) + k * sizeof(T), sizeof(T));
      if (i * 8 + (k + 1) * sizeof(T) <= bytes) reinterpret_cast<T*>(p)[k] = x;
    }
  }
}

// packet16: two halves of four data and four flag bytes; each half arrives whole.
struct Packet16 {
  static constexpr bool LINES = false;
  __device__ __forceinline__ static void send(char* box, uint64_t i, uint64_t v, uint64_t epoch) {
    const uint32_t flag = uint32_t(epoch);
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(box + i * 16), "r"(uint32_t(v)), "r"(flag),
                 "r"(uint32_t(v >> 32))
                 : "memory");
  }
  __device__ __forceinline__ static bool poll(const char* box, uint64_t i, uint64_t& v, uint64_t epoch) {
    uint32_t a, f, b, g;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(f), "=r"(b), "=r"(g)
                 : "l"(box + i * 16)
                 : "memory");
    v = uint64_t(b) << 32 | a;
    return f == uint32_t(epoch) && g == uint32_t(epoch);
  }
};

// An operation as the exchange's threads see it.
template <class T, Op OP> struct Exchange {
  const rl_exchange& op;
  uint64_t epoch;
  uint64_t bytes;   // of a block
  Scaling<T> scaling;

  __device__ __forceinline__ const char* input(uint32_t peer) const {
    return reinterpret_cast<const char*>(op.input) + (op.flags & RL_EXCHANGE_BLOCKS ? peer * bytes : 0);
  }
  __device__ __forceinline__ char* output(uint32_t peer) const {
    return reinterpret_cast<char*>(op.output) + (op.flags & RL_EXCHANGE_GATHER ? peer * bytes : 0);
  }
  __device__ __forceinline__ uint64_t box() const { return op.box + (epoch & 1) * op.box_size; }
  __device__ __forceinline__ char* outbox(uint32_t peer) const {
    return reinterpret_cast<char*>(op.peers[peer].remote) + box();
  }
  __device__ __forceinline__ const char* inbox(uint32_t peer) const {
    return reinterpret_cast<const char*>(op.peers[peer].local) + box();
  }
  __device__ __forceinline__ bool reduces() const { return !(op.flags & (RL_EXCHANGE_GATHER | RL_EXCHANGE_COPY)); }

  // This rank's contribution to the reduction, scaled.
  __device__ __forceinline__ uint64_t contribution(const char* buffer, uint64_t i) const {
    uint64_t v = load_unit<T>(buffer, bytes, i);
    if (OP == Op::Sum && op.flags & RL_OP_SCALE && reduces()) {
      T x[UNIT<T>];
      memcpy(x, &v, 8);
#pragma unroll
      for (int k = 0; k < UNIT<T>; k++) x[k] = Type<T>::narrow(multiply(Type<T>::widen(x[k]), scaling.factor));
      memcpy(&v, x, 8);
    }
    return v;
  }

  using Acc = typename Type<T>::Acc;
  __device__ __forceinline__ static void accumulate(Acc (&acc)[UNIT<T>], uint64_t v, bool first) {
    T x[UNIT<T>];
    memcpy(x, &v, 8);
#pragma unroll
    for (int k = 0; k < UNIT<T>; k++) {
      const Acc y = Type<T>::widen(x[k]);
      acc[k] = first ? y : combine<OP>(acc[k], y);
    }
  }
  __device__ __forceinline__ uint64_t result(const Acc (&acc)[UNIT<T>]) const {
    T x[UNIT<T>];
#pragma unroll
    for (int k = 0; k < UNIT<T>; k++) x[k] = Type<T>::narrow(OP == Op::Sum ? scaling.after(acc[k]) : acc[k]);
    uint64_t v;
    memcpy(&v, x, 8);
    return v;
  }
};

// Spins on a packet. The abort word is read rarely. False if the operation was given up.
template <class F> __device__ __forceinline__ bool spin(const rl_exchange& op, F ready) {
  for (uint32_t spins = 1; !ready(); spins++) {
    if (spins % 1024 == 0 && load_relaxed(reinterpret_cast<const uint32_t*>(op.abort_word)) != 0) return false;
  }
  return true;
}

// packet16: a thread a unit. All is sent before anything is awaited.
template <class T, Op OP> __device__ __forceinline__ void exchange16(const Exchange<T, OP>& x) {
  const rl_exchange& op = x.op;
  const uint64_t units = (x.bytes + 7) / 8, stride = uint64_t(gridDim.x) * RL_EXCHANGE_THREADS;
  const uint64_t first = uint64_t(blockIdx.x) * RL_EXCHANGE_THREADS + threadIdx.x;
  for (uint64_t i = first; i < units; i += stride) {
    for (uint32_t d = 1; d < op.ranks; d++) {
      const uint32_t peer = (op.rank + d) % op.ranks;
      if (op.sends >> peer & 1) Packet16::send(x.outbox(peer), i, x.contribution(x.input(peer), i), x.epoch);
    }
  }
  if (op.flags & RL_EXCHANGE_SILENT) return;
  for (uint64_t i = first; i < units; i += stride) {
    typename Exchange<T, OP>::Acc acc[UNIT<T>];
    for (uint32_t peer = 0; peer < op.ranks; peer++) {
      uint64_t v;
      if (peer == op.rank) {
        if (op.flags & RL_EXCHANGE_COPY && op.receives) continue;
        v = x.contribution(x.input(peer), i);
      } else {
        if (!(op.receives >> peer & 1)) continue;
        const char* box = x.inbox(peer);
        if (!spin(op, [&] { return Packet16::poll(box, i, v, x.epoch); })) return;
      }
      if (x.reduces()) Exchange<T, OP>::accumulate(acc, v, peer == 0);
      else store_unit<T>(x.output(peer), x.bytes, i, v);
    }
    if (x.reduces()) store_unit<T>(x.output(op.rank), x.bytes, i, x.result(acc));
  }
}

// packet128: eight lanes a line of fifteen units; the last lane's second word is the flag. A line is stored by one
// instruction of eight neighbouring lanes and arrives whole, so one flag vouches for all of it.
template <class T, Op OP> __device__ __forceinline__ void exchange128(const Exchange<T, OP>& x) {
  const rl_exchange& op = x.op;
  const uint64_t lines = (x.bytes + RL_LINE_DATA - 1) / RL_LINE_DATA;
  const uint32_t lane = threadIdx.x % 8;
  const bool flagged = lane == 7;
  const uint64_t stride = uint64_t(gridDim.x) * (RL_EXCHANGE_THREADS / 8);
  // All lanes of a warp stay together: they vote below.
  const uint64_t first = uint64_t(blockIdx.x) * (RL_EXCHANGE_THREADS / 8) + threadIdx.x / 32 * 4;
  const uint64_t mine = threadIdx.x % 32 / 8;
  for (uint64_t base = first; base < lines; base += stride) {
    const uint64_t line = base + mine, unit = line * 15 + lane * 2;
    if (line >= lines) continue;
    for (uint32_t d = 1; d < op.ranks; d++) {
      const uint32_t peer = (op.rank + d) % op.ranks;
      if (!(op.sends >> peer & 1)) continue;
      const char* input = x.input(peer);
      const uint64_t a = x.contribution(input, unit), b = flagged ? x.epoch : x.contribution(input, unit + 1);
      asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(x.outbox(peer) + line * RL_LINE + lane * 16), "l"(a),
                   "l"(b)
                   : "memory");
    }
  }
  if (op.flags & RL_EXCHANGE_SILENT) return;
  for (uint64_t base = first; base < lines; base += stride) {
    const uint64_t line = base + mine, unit = line * 15 + lane * 2;
    const bool live = line < lines;
    typename Exchange<T, OP>::Acc first_acc[UNIT<T>], second_acc[UNIT<T>];
    for (uint32_t peer = 0; peer < op.ranks; peer++) {
      uint64_t a = 0, b = 0;
      if (peer == op.rank) {
        if (op.flags & RL_EXCHANGE_COPY && op.receives) continue;
        if (live) {
          a = x.contribution(x.input(peer), unit);
          if (!flagged) b = x.contribution(x.input(peer), unit + 1);
        }
      } else {
        if (!(op.receives >> peer & 1)) continue;
        const char* slot = x.inbox(peer) + line * RL_LINE + lane * 16;
        const bool ok = spin(op, [&] {
          if (live) {
            asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(slot) : "memory");
          }
          return !__any_sync(~0u, live && flagged && b != x.epoch);
        });
        if (__any_sync(~0u, !ok)) return;
      }
      if (x.reduces()) {
        Exchange<T, OP>::accumulate(first_acc, a, peer == 0);
        Exchange<T, OP>::accumulate(second_acc, b, peer == 0);
      } else if (live) {
        store_unit<T>(x.output(peer), x.bytes, unit, a);
        if (!flagged) store_unit<T>(x.output(peer), x.bytes, unit + 1, b);
      }
    }
    if (x.reduces() && live) {
      store_unit<T>(x.output(op.rank), x.bytes, unit, x.result(first_acc));
      if (!flagged) store_unit<T>(x.output(op.rank), x.bytes, unit + 1, x.result(second_acc));
    }
  }
}

// The named barrier at which a block's threads say that they have read the operation's number.
constexpr uint32_t READ = 1;

// The extra warp: says that the operation has begun, counts the blocks that have read its number, and in the first block
// checks that all ranks called the same.
__device__ __forceinline__ void keep_books(const rl_exchange& op, uint64_t epoch) {
  auto* state = reinterpret_cast<rl_state*>(op.state);
  const uint32_t lane = threadIdx.x % 32;
  if (blockIdx.x == 0) post_headers(op, epoch);
  barrier_wait(READ, RL_EXCHANGE_BLOCK);
  if (lane == 0 && atomicInc(&state->blocks, gridDim.x - 1) == gridDim.x - 1) {
    // Every block has read the old number; the next operation starts after this kernel.
    store_relaxed(&state->packet_epoch, epoch);
    store_relaxed(&state->epoch, epoch);
  }
  char* lent;
  if (blockIdx.x == 0 && lane < op.ranks && lane != op.rank) await_header(op, epoch, lane, lent);
}

template <class T, Op OP, bool LINES> __device__ __forceinline__ void run_exchange(const rl_exchange& op) {
  __shared__ bool given_up;
  wait_predecessor();
  allow_successor();
  const auto* state = reinterpret_cast<const rl_state*>(op.state);
  const uint64_t epoch = load_relaxed(&state->epoch) + 1, packet_epoch = load_relaxed(&state->packet_epoch);
  const bool after_bulk = packet_epoch + 1 != epoch && epoch != 1;
  const bool renew = renewal_due(epoch) && blockIdx.x == 0;
  if (after_bulk || renew) {
    // Not after an exchange: the peers' headers must say that they have begun the operation before.
    if (threadIdx.x == 0) given_up = false;
    __syncthreads();
    if (after_bulk && threadIdx.x < op.ranks && threadIdx.x != op.rank) {
      const auto* header = reinterpret_cast<const rl_header*>(op.peers[threadIdx.x].local);
      const auto begun = [&] {
        return int32_t(uint32_t(load_acquire(&header->ticket) >> 32) - uint32_t(epoch - 1)) >= 0;
      };
      if (!spin(op, begun)) given_up = true;
    }
    if (renew) {
      renew_flags(op, op.boxes16, epoch, threadIdx.x, blockDim.x);
    }
    __syncthreads();
    if (given_up) return;
  }
  if (threadIdx.x >= RL_EXCHANGE_THREADS) {
    keep_books(op, epoch);
    return;
  }
  barrier_arrive(READ, RL_EXCHANGE_BLOCK);
  Exchange<T, OP> x{op, epoch, op.count * sizeof(T), {}};
  memcpy(&x.scaling.factor, &op.scale, sizeof x.scaling.factor);
  x.scaling.input = -1;
  x.scaling.divide = op.flags & RL_OP_DIVIDE ? op.ranks : 0;
  if constexpr (LINES) exchange128(x);
  else exchange16(x);
}

}  // namespace rl

#define RL_EXCHANGE(NAME, T, OP, LINES)                                                                                   \
  extern "C" __global__ void __launch_bounds__(RL_EXCHANGE_BLOCK, sizeof(T) == 1 ? 1 : RL_RESIDENT(T)) NAME(const __grid_constant__ rl_exchange op) { \
    rl::run_exchange<T, OP, LINES>(op);                                                                                \
  }
#define RL_EXCHANGES(T)                                \
  RL_EXCHANGE(exchange16_sum, T, rl::Op::Sum, false)   \
  RL_EXCHANGE(exchange16_prod, T, rl::Op::Prod, false) \
  RL_EXCHANGE(exchange16_min, T, rl::Op::Min, false)   \
  RL_EXCHANGE(exchange16_max, T, rl::Op::Max, false)   \
  RL_EXCHANGE(exchange128_sum, T, rl::Op::Sum, true)   \
  RL_EXCHANGE(exchange128_prod, T, rl::Op::Prod, true) \
  RL_EXCHANGE(exchange128_min, T, rl::Op::Min, true)   \
  RL_EXCHANGE(exchange128_max, T, rl::Op::Max, true)
