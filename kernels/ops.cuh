// Reduction operators on accumulators, with the arithmetic src/types.rs documents.
#pragma once
#include <cstdint>
#include <type_traits>

#include "types.cuh"

namespace rl {

enum class Op { Sum, Prod, Min, Max };

template <class A> __device__ __forceinline__ A add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;  // integers wrap; signed overflow would be undefined
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <class A> __device__ __forceinline__ A multiply(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

__device__ __forceinline__ float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// There is no min.NaN.f64: NaN first, then equal values (only zeros can differ) by sign.
__device__ __forceinline__ double minimum(double a, double b) {
  if (a != a || b != b) return a + b;
  return a == b ? (signbit(a) ? a : b) : fmin(a, b);
}
__device__ __forceinline__ double maximum(double a, double b) {
  if (a != a || b != b) return a + b;
  return a == b ? (signbit(a) ? b : a) : fmax(a, b);
}
template <class A> __device__ __forceinline__ A minimum(A a, A b) { return b < a ? b : a; }
template <class A> __device__ __forceinline__ A maximum(A a, A b) { return a < b ? b : a; }

template <Op OP, class A> __device__ __forceinline__ A combine(A a, A b) {
  if constexpr (OP == Op::Sum) return add(a, b);
  if constexpr (OP == Op::Prod) return multiply(a, b);
  if constexpr (OP == Op::Min) return minimum(a, b);
  if constexpr (OP == Op::Max) return maximum(a, b);
}

// How an operation scales: PreMulSum multiplies each Input, Avg divides finished results. Only sums scale.
template <class T> struct Scaling {
  using Acc = typename Type<T>::Acc;
  Acc factor;       // multiplies the source `input`
  int input;        // which source is this rank's contribution and must be multiplied, or -1
  uint32_t divide;  // divide the result by this, if not 0

  __device__ __forceinline__ bool active() const { return input >= 0 || divide != 0; }
  // Rounded as if it had travelled: a rank may add its own contribution where a peer adds the copy it was sent.
  __device__ __forceinline__ Acc before(Acc x, int source) const {
    return source == input ? Type<T>::widen(Type<T>::narrow(multiply(x, factor))) : x;
  }
  // Floats multiply by the rounded reciprocal. Integers wrap at the element's width before they are divided.
  __device__ __forceinline__ Acc after(Acc x) const {
    if (divide == 0) return x;
    if constexpr (Type<T>::FLOATING) {
      return x * (Acc(1) / static_cast<Acc>(divide));
    } else {
      return static_cast<Acc>(Type<T>::narrow(x) / static_cast<T>(divide));
    }
  }
};

}  // namespace rl
