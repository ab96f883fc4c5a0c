// Program kernels for u32.
#include "program.cuh"

RL_UNIT(uint32_t)
