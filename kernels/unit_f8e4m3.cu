// Program kernels for f8e4m3.
#include "program.cuh"

RL_UNIT(rl::e4m3)
