// Element types: how 16 bytes become accumulators and back. Narrow floats accumulate in float, narrow integers in int.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>

namespace rl {

struct e4m3 { uint8_t bits; };
struct e5m2 { uint8_t bits; };

// Acc: the accumulator. widen/narrow: one element. FLOATING: whether NaN and signed zero matter.
template <class T> struct Type;

#define RL_PLAIN_TYPE(T, A, F)                                       \
  template <> struct Type<T> {                                       \
    using Acc = A;                                                   \
    static constexpr bool FLOATING = F;                              \
    __device__ static Acc widen(T x) { return static_cast<A>(x); }   \
    __device__ static T narrow(Acc x) { return static_cast<T>(x); }  \
  }
RL_PLAIN_TYPE(int8_t, int32_t, false);
RL_PLAIN_TYPE(uint8_t, uint32_t, false);
RL_PLAIN_TYPE(int32_t, int32_t, false);
RL_PLAIN_TYPE(uint32_t, uint32_t, false);
RL_PLAIN_TYPE(int64_t, int64_t, false);
RL_PLAIN_TYPE(uint64_t, uint64_t, false);
RL_PLAIN_TYPE(float, float, true);
RL_PLAIN_TYPE(double, double, true);
#undef RL_PLAIN_TYPE

template <> struct Type<__half> {
  using Acc = float;
  static constexpr bool FLOATING = true;
  __device__ static float widen(__half x) { return __half2float(x); }
  __device__ static __half narrow(float x) { return __float2half_rn(x); }
};

template <> struct Type<__nv_bfloat16> {
  using Acc = float;
  static constexpr bool FLOATING = true;
  __device__ static float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
  __device__ static __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }
};

template <class T, __nv_fp8_interpretation_t KIND> struct Float8 {
  using Acc = float;
  static constexpr bool FLOATING = true;
  __device__ static float widen(T x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, KIND))); }
  __device__ static T narrow(float x) { return T{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, KIND)}; }
};
template <> struct Type<e4m3> : Float8<e4m3, __NV_E4M3> {};
template <> struct Type<e5m2> : Float8<e5m2, __NV_E5M2> {};

// Blocks that a multiprocessor is compiled to hold at once. One is what correctness needs (see the host's choice of
// blocks); two leave room for another communicator, where registers allow it: not for the 8-bit types before compute
// capability 8.9, whose conversions are long sequences of integer instructions, and not from 10.0 on, whose compiler takes more.
#if __CUDA_ARCH__ < 890
#define RL_RESIDENT(T) (sizeof(T) == 1 ? 1 : 2)
#elif __CUDA_ARCH__ >= 1000
#define RL_RESIDENT(T) 1
#else
#define RL_RESIDENT(T) 2
#endif

// 16 bytes as elements.
template <class T> struct Pack {
  static constexpr int N = 16 / sizeof(T);
  using Acc = typename Type<T>::Acc;

  __device__ __forceinline__ static void widen(uint4 v, Acc (&out)[N]) {
    T in[N];
    memcpy(in, &v, 16);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = Type<T>::widen(in[i]);
  }

  __device__ __forceinline__ static uint4 narrow(const Acc (&in)[N]) {
    T out[N];
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = Type<T>::narrow(in[i]);
    uint4 v;
    memcpy(&v, out, 16);
    return v;
  }
};

}  // namespace rl
