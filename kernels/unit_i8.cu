// Program kernels for i8.
#include "program.cuh"

RL_UNIT(int8_t)
