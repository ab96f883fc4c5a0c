// One fold of one tile by one block: combine all sources, write the result to all sinks.
#pragma once
#include "abi.h"
#include "memory.cuh"
#include "ops.cuh"

namespace rl {

// How a fold is carried out.
enum Path : uint32_t {
  END,      // no fold: the program is over
  SCALARS,  // element by element
  COPY,     // 16 bytes at a time, bits untouched
  PAIR,     // two sources
  MANY,     // any number of sources
};

// The fold of one tile at hand, in shared memory: filled by the first warp, read by all. It stays there because the
// data path needs the registers.
struct Step {
  const char* source[RL_MAX_OPERANDS];
  char* sink[RL_MAX_OPERANDS];
  uint32_t sources;
  uint32_t sinks;
  uint32_t count;    // elements
  uint32_t head;     // elements before the first whole line of the first sink
  uint32_t vectors;  // 16-byte vectors after the head
  Path path;
  int32_t scaled;    // the source that is this rank's contribution and must be multiplied, or -1
  uint32_t divide;   // divide the result by this, if not 0
};

// Chooses the path. Vectors need operands whose addresses agree modulo 16; the vector loop starts at a 128-byte line of
// the first sink, so that each warp stores whole lines.
template <class T> __device__ __forceinline__ void choose_path(Step& step) {
  if (step.sinks == 0) {
    step.path = SCALARS;
    step.count = step.head = step.vectors = 0;
    return;
  }
  const uintptr_t anchor = reinterpret_cast<uintptr_t>(step.sink[0]);
  uintptr_t differ = 0;
  for (uint32_t s = 0; s < step.sources; s++) differ |= anchor ^ reinterpret_cast<uintptr_t>(step.source[s]);
  for (uint32_t d = 1; d < step.sinks; d++) differ |= anchor ^ reinterpret_cast<uintptr_t>(step.sink[d]);
  const bool scaling = step.scaled >= 0 || step.divide != 0;
  if (differ % 16 != 0) {
    step.path = SCALARS;
    step.head = step.count;
    step.vectors = 0;
    return;
  }
  step.head = min(step.count, uint32_t((RL_LINE - anchor % RL_LINE) % RL_LINE / sizeof(T)));
  step.vectors = (step.count - step.head) / Pack<T>::N;
  // The pair loop scales floats as it goes, but does not round a scaled contribution to a narrow type.
  const bool pair = step.sources == 2 && (!scaling || (Type<T>::FLOATING && (sizeof(T) >= 4 || step.scaled < 0)));
  step.path = step.sources == 1 && !scaling ? COPY : pair ? PAIR : MANY;
}

template <class T> __device__ __forceinline__ Scaling<T> scaling_of(const rl_op& op, const Step& step) {
  Scaling<T> scaling;
  memcpy(&scaling.factor, &op.scale, sizeof scaling.factor);
  scaling.input = step.scaled;
  scaling.divide = step.divide;
  return scaling;
}

// Vectors a thread has in flight. Every vector of a reduction is widened, narrow types to four times the registers.
constexpr int COPY_WIDTH = 6;
template <class T> constexpr int PAIR_WIDTH = sizeof(T) == 1 ? 1 : sizeof(T) == 2 ? 2 : sizeof(T) == 4 ? 4 : 3;
constexpr uint32_t STRIDE = RL_THREADS * 16;

// Calls body(constant WIDTH or 1) so that this thread covers its share of `vectors`; body moves its pointers on itself.
template <int WIDTH, class Body> __device__ __forceinline__ void for_vectors(uint32_t vectors, Body body) {
  uint32_t i = threadIdx.x;
#pragma unroll 1
  for (; i + (WIDTH - 1) * RL_THREADS < vectors; i += WIDTH * RL_THREADS) body(std::integral_constant<int, WIDTH>{});
#pragma unroll 1
  for (; i < vectors; i += RL_THREADS) body(std::integral_constant<int, 1>{});
}

// Moves a pointer past the W vectors just done.
template <int W, class P> __device__ __forceinline__ void advance(P*& p) { p += W * STRIDE; }

template <int W> __device__ __forceinline__ void load_vectors(const char* p, uint4 (&v)[W]) {
#pragma unroll
  for (int u = 0; u < W; u++) v[u] = load_vector(p + u * STRIDE);
}

template <int W> __device__ __forceinline__ void store_vectors(char* p, const uint4 (&v)[W]) {
#pragma unroll
  for (int u = 0; u < W; u++) store_vector(p + u * STRIDE, v[u]);
}

// Writes to the sinks from number `from` on.
template <int W>
__device__ __forceinline__ void spread(const Step& o, uint32_t from, uint32_t at, const uint4 (&v)[W]) {
#pragma unroll 1
  for (uint32_t d = from; d < o.sinks; d++) store_vectors(o.sink[d] + at, v);
}

// Where this thread's first vector is.
template <class T> __device__ __forceinline__ uint32_t first_byte(const Step& o) {
  return o.head * uint32_t(sizeof(T)) + threadIdx.x * 16;
}

// One source, bits untouched.
template <class T> __device__ __forceinline__ void copy_vectors(const Step& o) {
  uint32_t at = first_byte<T>(o);
  const char* source = o.source[0] + at;
  char* first = o.sink[0] + at;
  if (o.sinks == 1) {
    for_vectors<COPY_WIDTH>(o.vectors, [&](auto width) {
      constexpr int W = decltype(width)::value;
      uint4 v[W];
      load_vectors(source, v);
      store_vectors(first, v);
      advance<W>(source);
      advance<W>(first);
    });
  } else {
    for_vectors<COPY_WIDTH>(o.vectors, [&](auto width) {
      constexpr int W = decltype(width)::value;
      uint4 v[W];
      load_vectors(source, v);
      store_vectors(first, v);
      spread(o, 1, at, v);
      advance<W>(source);
      advance<W>(first);
      at += W * STRIDE;
    });
  }
}

// Combines two vectors: x * a + y * b, times c. Integers are not scaled here.
template <class T, Op OP, class A> __device__ __forceinline__ uint4 pair(uint4 x, uint4 y, A a, A b, A c) {
  using P = Pack<T>;
  A p[P::N], q[P::N];
  P::widen(x, p);
  P::widen(y, q);
#pragma unroll
  for (int i = 0; i < P::N; i++) {
    if constexpr (OP == Op::Sum && Type<T>::FLOATING) {
      p[i] = (p[i] * a + q[i] * b) * c;  // multiplying by one changes nothing
    } else {
      p[i] = combine<OP>(p[i], q[i]);
    }
  }
  return P::narrow(p);
}

// Two sources, by far the commonest reduction: everything is loaded before anything is combined.
template <class T, Op OP> __device__ __forceinline__ void pair_vectors(const rl_op& op, const Step& o) {
  using Acc = typename Type<T>::Acc;
  const Scaling<T> scaling = scaling_of<T>(op, o);
  const Acc one = 1, fa = scaling.input == 0 ? scaling.factor : one, fb = scaling.input == 1 ? scaling.factor : one,
            fc = scaling.divide ? one / static_cast<Acc>(scaling.divide) : one;
  uint32_t at = first_byte<T>(o);
  const char* a = o.source[0] + at;
  const char* b = o.source[1] + at;
  char* first = o.sink[0] + at;
  for_vectors<PAIR_WIDTH<T>>(o.vectors, [&](auto width) {
    constexpr int W = decltype(width)::value;
    uint4 x[W], y[W];
    load_vectors(a, x);
    load_vectors(b, y);
#pragma unroll
    for (int u = 0; u < W; u++) x[u] = pair<T, OP>(x[u], y[u], fa, fb, fc);
    store_vectors(first, x);
    spread(o, 1, at, x);
    advance<W>(a);
    advance<W>(b);
    advance<W>(first);
    at += W * STRIDE;
  });
}

// Any number of sources, combined in order; the next one is on its way while this one is combined.
template <class T, Op OP> __device__ __forceinline__ void many_vectors(const rl_op& op, const Step& o) {
  using P = Pack<T>;
  const Scaling<T> scaling = scaling_of<T>(op, o);
  uint32_t at = first_byte<T>(o);
  for_vectors<1>(o.vectors, [&](auto width) {
    constexpr int W = decltype(width)::value;
    typename P::Acc acc[W][P::N];
    uint4 v[W];
    load_vectors(o.source[0] + at, v);
#pragma unroll 1
    for (uint32_t s = 0; s < o.sources; s++) {
      uint4 next[W] = {};
      if (s + 1 < o.sources) load_vectors(o.source[s + 1] + at, next);
#pragma unroll
      for (int u = 0; u < W; u++) {
        typename P::Acc in[P::N];
        P::widen(v[u], in);
#pragma unroll
        for (int i = 0; i < P::N; i++) {
          const auto x = OP == Op::Sum ? scaling.before(in[i], s) : in[i];
          acc[u][i] = s == 0 ? x : combine<OP>(acc[u][i], x);
        }
        v[u] = next[u];
      }
    }
#pragma unroll
    for (int u = 0; u < W; u++) {
      if constexpr (OP == Op::Sum) {
#pragma unroll
        for (int i = 0; i < P::N; i++) acc[u][i] = scaling.after(acc[u][i]);
      }
      v[u] = P::narrow(acc[u]);
    }
    spread(o, 0, at, v);
    at += W * STRIDE;
  });
}

// The same for 8-bit types, four bytes at a time: sixteen accumulators for each of several vectors would not fit.
template <class T, Op OP> __device__ __forceinline__ void many_words(const rl_op& op, const Step& o) {
  constexpr int N = 4 / sizeof(T);
  const Scaling<T> scaling = scaling_of<T>(op, o);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < o.vectors * 4; i += RL_THREADS) {
    const uint32_t at = o.head * uint32_t(sizeof(T)) + i * 4;
    typename Type<T>::Acc acc[N];
#pragma unroll 1
    for (uint32_t s = 0; s < o.sources; s++) {
      T in[N];
      const uint32_t bits = *reinterpret_cast<const uint32_t*>(o.source[s] + at);
      memcpy(in, &bits, 4);
#pragma unroll
      for (int k = 0; k < N; k++) {
        const auto x = OP == Op::Sum ? scaling.before(Type<T>::widen(in[k]), s) : Type<T>::widen(in[k]);
        acc[k] = s == 0 ? x : combine<OP>(acc[k], x);
      }
    }
    T out[N];
#pragma unroll
    for (int k = 0; k < N; k++) out[k] = Type<T>::narrow(OP == Op::Sum ? scaling.after(acc[k]) : acc[k]);
    uint32_t word;
    memcpy(&word, out, 4);
#pragma unroll 1
    for (uint32_t d = 0; d < o.sinks; d++) *reinterpret_cast<uint32_t*>(o.sink[d] + at) = word;
  }
}

// Element by element: heads, tails, and operands whose addresses disagree modulo 16.
template <class T, Op OP> __device__ __forceinline__ void fold_scalars(const rl_op& op, const Step& o) {
  const Scaling<T> scaling = scaling_of<T>(op, o);
  const uint32_t skip_from = o.head, skip_to = o.head + o.vectors * Pack<T>::N;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < o.count; i += RL_THREADS) {
    if (i >= skip_from && i < skip_to) {
      // On to the tail: the vectors between are done.
      i += (skip_to - i - 1) / RL_THREADS * RL_THREADS;
      continue;
    }
    T x = reinterpret_cast<const T*>(o.source[0])[i];
    if (o.sources > 1 || scaling.active()) {
      auto acc = Type<T>::widen(x);
      if constexpr (OP == Op::Sum) acc = scaling.before(acc, 0);
#pragma unroll 1
      for (uint32_t s = 1; s < o.sources; s++) {
        auto y = Type<T>::widen(reinterpret_cast<const T*>(o.source[s])[i]);
        if constexpr (OP == Op::Sum) y = scaling.before(y, s);
        acc = combine<OP>(acc, y);
      }
      if constexpr (OP == Op::Sum) acc = scaling.after(acc);
      x = Type<T>::narrow(acc);
    }
#pragma unroll 1
    for (uint32_t d = 0; d < o.sinks; d++) reinterpret_cast<T*>(o.sink[d])[i] = x;
  }
}

// Carries the step out. Every thread of the block calls this.
template <class T, Op OP> __device__ __forceinline__ void fold(const rl_op& op, const Step& step) {
  if (step.count > step.vectors * Pack<T>::N) fold_scalars<T, OP>(op, step);
  switch (step.path) {
    case COPY: copy_vectors<T>(step); break;
    case PAIR: pair_vectors<T, OP>(op, step); break;
    case MANY:
      if constexpr (sizeof(T) == 1) many_words<T, OP>(op, step);
      else many_vectors<T, OP>(op, step);
      break;
    default: break;
  }
}

}  // namespace rl
