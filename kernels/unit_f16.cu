// Program kernels for f16.
#include "program.cuh"

RL_UNIT(__half)
