"""CPU kernels of the additive operator, compiled by numba."""
