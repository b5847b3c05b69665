"""Compiles CPU kernels with numba."""

import os
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
from numba import types
from numba.core.registry import cpu_target

from regard.kernels.cpu.processor import HAS_BFLOAT16

FLAGS = {"contract"}
"""A product and a sum may be fused; the compiler may neither reorder sums nor assume that there are
no NaN and infinities."""

_EXTERNAL = {
    "exp", "expf", "log", "logf", "sqrt", "sqrtf", "floor", "floorf", "memcpy", "memmove", "memset",
}  # fmt: skip
"""Functions of the C library that an object file may call."""

_ENTRY_CODE = """
target triple = "{triple}"
declare i32 @"{kernel}"(ptr, ptr, ptr)
define void @{entry}(ptr %arguments) {{
  %result = alloca ptr
  %error = alloca ptr
  call i32 @"{kernel}"(ptr %result, ptr %error, ptr %arguments)
  ret void
}}
"""
"""numba's functions return a status, which kernels, that raise no errors, do not need."""

HAS_SETTINGS_FILE = os.path.exists(".numba_config.yaml")
"""Whether numba has settings that the environment does not show, with which no kernel is kept."""

_CONFIG: Any = numba.config  # pyright: ignore
if _CONFIG.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT disables the compiler that the kernels need")
if HAS_BFLOAT16 and (_CONFIG.CPU_NAME or _CONFIG.CPU_FEATURES or not _CONFIG.ENABLE_AVX):
    raise ImportError(
        ".numba_config.yaml excludes instructions of the processor that the kernels need"
    )


def compile_kernel(kernel: Callable[[Any], None]) -> Any:
    """Return the compiled kernel, a `numba.core.ccallback.CFunc`."""
    signature = types.void(types.CPointer(types.int64))
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": FLAGS}
    return numba.cfunc(signature, **options)(kernel)


def object_file(compiled: Any, entry: str) -> bytes | None:
    """Return an object file with the kernel as a function `entry`, void (int64*); None if it calls functions of Python or numba.

    numba's own cache needs numba, whose import takes much longer than loading an object file.
    """
    module = llvmlite.binding.parse_assembly(compiled.inspect_llvm())
    names = {"kernel": compiled.native_name.removeprefix("cfunc."), "entry": entry}
    code = _ENTRY_CODE.format(triple=module.triple, **names)
    module.link_in(llvmlite.binding.parse_assembly(code))
    for part in (*module.functions, *module.global_variables):
        if not part.is_declaration and part.name != entry:
            part.linkage = "internal"
    machine = _target_machine()
    passes = llvmlite.binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    tuning = llvmlite.binding.create_pipeline_tuning_options(speed_level=0)
    passes.run(module, llvmlite.binding.create_pass_builder(machine, tuning))
    external = {part.name for part in module.functions if part.is_declaration}
    external |= {part.name for part in module.global_variables if part.is_declaration}
    if any(not name.startswith("llvm.") for name in external - _EXTERNAL):
        return None
    return machine.emit_object(module)


def _target_machine() -> llvmlite.binding.TargetMachine:
    """Return the processor for which numba compiles."""
    context: Any = cpu_target.target_context
    triple, processor, features = context.codegen().magic_tuple()
    target = llvmlite.binding.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=processor, features=features, opt=3, codemodel="jitdefault", jit=True
    )
