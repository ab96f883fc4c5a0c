// Program kernels for u8.
#include "program.cuh"

RL_UNIT(uint8_t)
