// Program kernels for f32.
#include "program.cuh"

RL_UNIT(float)
