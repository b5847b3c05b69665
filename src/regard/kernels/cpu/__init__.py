"""CPU kernels: SIMD vectors and threads, for functions that numba compiles."""
