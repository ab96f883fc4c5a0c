// Program kernels for f64.
#include "program.cuh"

RL_UNIT(double)
