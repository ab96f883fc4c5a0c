// Program kernels for bf16.
#include "program.cuh"

RL_UNIT(__nv_bfloat16)
