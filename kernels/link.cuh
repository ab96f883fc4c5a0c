// Link ends: where a worker's FIFOs are, and the waiting and publishing at them.
#pragma once
#include "abi.h"
#include "memory.cuh"

namespace rl {

// One end of a link, in shared memory. Counters hold (epoch << RL_SLOT_BITS) + slots, so they only grow and nothing is
// ever reset: a captured operation finds on every replay what it needs.
struct End {
  char* data;            // first slot
  const uint64_t* seen;  // the other side's counter, in this rank's memory: tail if we consume, credit if we produce
  uint64_t* post;        // our counter, in the other side's memory
  char* lent;            // producing: the consumer's output in message coordinates, or null
  uint32_t depth;        // slots
  uint32_t passed;       // slots that folds were prepared for in this operation; the feeder's
  uint32_t posted;       // slots published in this operation; the poster's
  bool produces;
};

// Named barriers: `arrive` does not wait, `wait` does, for so many threads in all.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Spins until the counter reaches the value. False if the operation was given up. The abort word is in host memory, so
// it is read rarely.
__device__ __forceinline__ bool wait_for(const uint64_t* counter, uint64_t value, uint64_t abort_word) {
  uint32_t spins = 0;
  while (load_acquire(counter) < value) {
    if (++spins % 1024 == 0 && load_relaxed(reinterpret_cast<const uint32_t*>(abort_word)) != 0) return false;
  }
  return true;
}

// Tells every peer that this rank has started the operation: its earlier ones are complete, so all its slots are free.
template <class O> __device__ __forceinline__ void post_headers(const O& op, uint64_t epoch) {
  const uint32_t peer = threadIdx.x % 32;
  if (peer >= op.ranks || peer == op.rank) return;
  auto* header = reinterpret_cast<rl_header*>(op.peers[peer].remote);
  store_relaxed(&header->ticket, epoch << 32 | op.digest);
  store_relaxed(&header->output, epoch << 48 | (op.flags & RL_OP_LENT ? op.output : 0));
  store_relaxed(&header->call[0], op.call[0]);
  store_relaxed(&header->call[1], op.call[1]);
}

// Records a disagreement and tells everybody to give up.
template <class O>
__device__ __noinline__ void report_mismatch(const O& op, uint64_t epoch, uint32_t peer, const rl_header* theirs) {
  auto* state = reinterpret_cast<rl_state*>(op.state);
  if (atomicExch(&state->failed, 1u) == 0) {
    volatile rl_report* r = reinterpret_cast<rl_report*>(op.report);
    r->epoch = epoch;
    for (int i = 0; i < 2; i++) {
      r->call[i] = op.call[i];
      r->peer_call[i] = load_relaxed(&theirs->call[i]);
    }
    r->peer = peer;
    __threadfence_system();
    r->fault = RL_FAULT_MISMATCH;
  }
  *reinterpret_cast<volatile uint32_t*>(op.abort_word) = 1;
  __threadfence_system();
}

// Waits for the peer's header, and finds its output if lent. False if the operation must be given up. A peer that is
// already past this operation needs nothing from us in it: some chunks of short messages are empty.
template <class O>
__device__ __forceinline__ bool await_header(const O& op, uint64_t epoch, uint32_t peer, char*& lent) {
  const auto* header = reinterpret_cast<const rl_header*>(op.peers[peer].local);
  const auto* abort_word = reinterpret_cast<const uint32_t*>(op.abort_word);
  lent = nullptr;
  for (uint32_t spins = 1;; spins++) {
    const uint64_t ticket = load_acquire(&header->ticket);
    const int32_t ahead = int32_t(uint32_t(ticket >> 32) - uint32_t(epoch));
    if (ahead > 0) return true;
    if (ahead == 0) {
      if (uint32_t(ticket) != op.digest) {
        report_mismatch(op, epoch, peer, header);
        return false;
      }
      const uint64_t output = load_acquire(&header->output);
      if (output >> 48 == (epoch & 0xffff)) {
        lent = reinterpret_cast<char*>(output & 0xffffffffffff);
        return true;
      }
    }
    if (spins % 1024 == 0 && load_relaxed(abort_word) != 0) return false;
  }
}

// Packet16 flags are the low half of the epoch. Before they come round again, every box is overwritten, so that no packet
// of four billion operations ago is taken for a new one: with this operation's number, which is odd where the box's own
// flags are even and the other way round. A peer sends packets of the next operation only after it has heard
// from this rank's first block in this one, so that block alone may overwrite the other operation's box before it says
// anything. Whether this is such an operation; a communicator begins with boxes that the host prepared.
__device__ __forceinline__ bool renewal_due(uint64_t epoch) { return epoch > 1 && (epoch & 0x7fffffff) < 2; }

template <class O>
__device__ __forceinline__ void renew_flags(const O& op, uint64_t boxes16, uint64_t epoch, uint32_t part, uint32_t parts) {
  const uint32_t words = RL_BOX16_BYTES / 16, e = uint32_t(epoch);
  const uint4 filler{e, e, e, e};
  for (uint32_t peer = 0; peer < op.ranks; peer++) {
    if (peer == op.rank) continue;
    char* box = reinterpret_cast<char*>(op.peers[peer].local) + boxes16 + ((epoch + 1) & 1) * RL_BOX16_BYTES;
    for (uint32_t i = part; i < words; i += parts) store_vector(box + size_t(i) * 16, filler);
  }
  __threadfence_system();
}

// Sets up one end. A producer first waits for the consumer's header.
__device__ __forceinline__ bool open_end(const rl_op& op, uint64_t epoch, uint32_t word, uint32_t lane, End& end) {
  const uint32_t peer = word & 0xff, index = (word >> 8 & 0x7f) * op.lanes + lane;
  char* local = reinterpret_cast<char*>(op.peers[peer].local);
  char* remote = reinterpret_cast<char*>(op.peers[peer].remote);
  const size_t line = size_t(index) * RL_LINE;
  const bool produces = word & RL_END_PRODUCES;
  char* lent = nullptr;
  end.produces = produces;
  end.passed = end.posted = 0;
  if (produces && !await_header(op, epoch, peer, lent)) return false;
  const bool consumer_lent = produces ? lent != nullptr : op.flags & RL_OP_LENT;
  end.lent = lent;
  end.seen = reinterpret_cast<const uint64_t*>(local + (produces ? RL_REGION_CREDITS : RL_REGION_TAILS) + line);
  end.post = reinterpret_cast<uint64_t*>(remote + (produces ? RL_REGION_TAILS : RL_REGION_CREDITS) + line);
  end.depth = consumer_lent ? op.depth_lent : op.depth;
  end.data = (produces ? remote : local) + op.fifo + size_t(index) * end.depth * op.slot;
  return true;
}

// The slot at the FIFO's front or back. Data keeps its position modulo a line, so that all operands of a fold agree.
__device__ __forceinline__ char* slot(const End& end, const rl_op& op, uint64_t message_byte) {
  return end.data + size_t(end.passed % end.depth) * op.slot + message_byte % RL_LINE;
}

}  // namespace rl
