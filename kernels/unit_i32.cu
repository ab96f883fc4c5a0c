// Program kernels for i32.
#include "program.cuh"

RL_UNIT(int32_t)
