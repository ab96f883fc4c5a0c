// Program kernels for i64.
#include "program.cuh"

RL_UNIT(int64_t)
