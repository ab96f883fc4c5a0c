// Program kernels for f8e5m2.
#include "program.cuh"

RL_UNIT(rl::e5m2)
