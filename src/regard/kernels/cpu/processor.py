"""What the kernels need to know of this processor, without numba, whose import takes longer than loading a kernel."""

import os

import llvmlite.binding

FEATURES = llvmlite.binding.get_host_cpu_features()

BYTES = 64 if FEATURES.get("avx512f") else 32
"""Size of a SIMD vector."""

LANES = BYTES // 4
"""Numbers of float32 in a SIMD vector."""

HAS_BFLOAT16 = (
    BYTES == 64
    and bool(FEATURES.get("avx512bf16"))
    and os.environ.get("NUMBA_ENABLE_AVX", "1") == "1"
    and not (os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"))
    and llvmlite.binding.llvm_version_info >= (16,)
)
"""Whether this processor multiplies numbers of bfloat16, and numba compiles for it: before version 16, LLVM had
another form of the instruction."""
