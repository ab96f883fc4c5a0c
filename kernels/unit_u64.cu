// Program kernels for u64.
#include "program.cuh"

RL_UNIT(uint64_t)
