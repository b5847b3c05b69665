"""Machine code of the CPU kernels: compiled by numba at the first use, then loaded from a file, without numba."""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import llvmlite.binding
import numpy as np
import torch

from regard import files, signals
from regard.kernels.compilation import compiling
from regard.kernels.cpu.processor import FEATURES

COMPILATION_TIMEOUT = 120.0
"""Seconds after which a process no longer waits for another one that compiles the same kernel."""

KernelFunction: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""A kernel; its argument is the address of its arguments (`threads.py`)."""

ENTRY = "regard_kernel"
"""Name of the function in an object file: void (int64*)."""

_KERNELS = Path(__file__).parents[1]
_DIGEST = hashlib.sha256().digest_size


class Kernel(NamedTuple):
    """The place of a function that returns the kernel for a floating-point type."""

    module: str
    """In `regard.kernels`."""
    factory: str


@functools.cache
def load(kernel: Kernel, dtype: torch.dtype = torch.float32) -> Any:
    """Return the kernel for float32 or float64 as a C function."""
    with compiling():
        path = _path(kernel, dtype)
        code = _stored(path)
        if code is None:
            # an exception from a handler is lost, or ends the process, while LLVM calls back into Python
            with _only_here(path), signals.handled_afterwards():
                code = _stored(path)
                if code is None:  # no other process has compiled it meanwhile
                    return _compile(kernel, dtype, path)
    return link(code)


def _compile(kernel: Kernel, dtype: torch.dtype, path: Path | None) -> Any:
    """Compile a kernel, and keep it in a file if possible."""
    from regard.kernels.cpu import compiler

    factory = getattr(importlib.import_module(f"regard.kernels.{kernel.module}"), kernel.factory)
    compiled = compiler.compile_kernel(
        factory(np.float64 if dtype == torch.float64 else np.float32)
    )
    code = compiler.object_file(compiled, ENTRY)
    if code is None:
        return c_function(compiled.address, compiled)
    if path is not None:
        with contextlib.suppress(files.DataError), files.atomic_write(path) as temporary:
            temporary.write_bytes(hashlib.sha256(code).digest() + code)
    return link(code)


def link(code: bytes) -> Any:
    """Return the kernel in an object file that `compiler.object_file` has made, as a C function."""
    binding = llvmlite.binding
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return c_function(engine.get_function_address(ENTRY), engine)


def c_function(address: int, owner: Any) -> Any:
    """Return the kernel at an address, whose machine code exists as long as `owner`."""
    function = KernelFunction(address)
    function.owner = owner
    return function


def _stored(path: Path | None) -> bytes | None:
    """Return the object file; None if there is none, or not a whole one."""
    try:
        content = b"" if path is None else path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _path(kernel: Kernel, dtype: torch.dtype) -> Path | None:
    folder = _folder()
    kind = str(dtype).removeprefix("torch.")
    name = f"{kernel.module}.{kernel.factory}.{kind}.{_environment()}.o"
    return None if folder is None else folder / name


@functools.cache
def _folder() -> Path | None:
    """Return numba's folder for compiled functions, that of Python, or the user's; None if no file can be written."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = [Path(__file__).parent / "__pycache__"]
    if os.path.isabs(cache):  # the home folder is known
        folders.append(Path(cache) / "regard" / "kernels")
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        folders = [Path(chosen)]
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    return None


@functools.cache
def _environment() -> str:
    """Return a name for everything on which machine code depends."""
    binding = llvmlite.binding
    parts = [version("numba"), version("llvmlite"), binding.get_default_triple()]
    parts += [binding.get_host_cpu_name(), FEATURES.flatten()]
    parts += [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    ]
    digest = hashlib.sha256("\n".join(parts).encode(errors="surrogateescape"))
    for source in sorted(_KERNELS.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _only_here(path: Path | None) -> Generator[None]:
    """Wait until no other process compiles the kernel, which is then in its file."""
    with contextlib.ExitStack() as stack:
        # without a folder or a lock, several processes compile it
        if path is not None:
            with contextlib.suppress(OSError, NotImplementedError):
                lock = filelock.FileLock(path.with_suffix(".lock"))
                stack.enter_context(lock.acquire(timeout=COMPILATION_TIMEOUT, poll_interval=0.01))
        yield


def _require_compiler() -> None:
    """Raise an error if kernels are not stored and cannot be compiled."""
    folder = _folder()
    if folder is None or not any(folder.glob(f"*.{_environment()}.o")):
        importlib.import_module("regard.kernels.cpu.compiler")


_require_compiler()
