// A plain matrix product that fills the multiprocessors, for measuring what collectives cost a computation beside them.
// Not part of any collective.
#include <cstdint>

namespace {

constexpr int TILE = 64;   // rows and columns of C for each block
constexpr int DEPTH = 16;  // columns of A, and rows of B, held at a time
constexpr int PER = 4;     // rows and columns of C for each thread

}  // namespace

// C = A B for square row-major matrices of `n` floats a side, a multiple of 64; aligned to 16 bytes.
// Grid: (n / 64, n / 64) blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
busy_product(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, uint32_t n) {
  __shared__ float a_tile[DEPTH][TILE + 4];  // transposed; padded against bank conflicts
  __shared__ float b_tile[DEPTH][TILE];
  const uint32_t thread = threadIdx.x;
  const uint32_t row = thread / 16 * PER, column = thread % 16 * PER;
  const float *a_from = a + (blockIdx.y * size_t(TILE) + thread / 4) * n + thread % 4 * 4;
  const float *b_from = b + size_t(thread / 16) * n + blockIdx.x * TILE + thread % 16 * 4;
  float sum[PER][PER] = {};
  for (uint32_t k = 0; k < n; k += DEPTH) {
    const float4 from_a = *reinterpret_cast<const float4 *>(a_from + k);
    const float4 from_b = *reinterpret_cast<const float4 *>(b_from + size_t(k) * n);
    const uint32_t depth = thread % 4 * 4;
    a_tile[depth + 0][thread / 4] = from_a.x;
    a_tile[depth + 1][thread / 4] = from_a.y;
    a_tile[depth + 2][thread / 4] = from_a.z;
    a_tile[depth + 3][thread / 4] = from_a.w;
    *reinterpret_cast<float4 *>(&b_tile[thread / 16][column]) = from_b;
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const float4 left = *reinterpret_cast<const float4 *>(&a_tile[d][row]);
      const float4 right = *reinterpret_cast<const float4 *>(&b_tile[d][column]);
      const float l[PER] = {left.x, left.y, left.z, left.w}, r[PER] = {right.x, right.y, right.z, right.w};
#pragma unroll
      for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) sum[i][j] += l[i] * r[j];
    }
    __syncthreads();
  }
  float *to = c + (blockIdx.y * size_t(TILE) + row) * n + blockIdx.x * TILE + column;
#pragma unroll
  for (int i = 0; i < PER; i++)
    *reinterpret_cast<float4 *>(to + size_t(i) * n) = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}
