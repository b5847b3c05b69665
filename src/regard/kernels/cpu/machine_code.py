"""Machine code of the CPU kernels: compiled by numba at the first use, then loaded from a file, without numba."""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import warnings
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
    """Return the kernel for float32 or float64 as a C function; None, after a warning, if it cannot be compiled."""
    with compiling():
        if not _can_execute():
            return None
        name = f"{kernel.module}.{kernel.factory}.{str(dtype).removeprefix('torch.')}.{_KEY}.o"
        code = _stored(name)
        if code is None:
            # an exception from a handler is lost, or ends the process, while LLVM calls back into Python
            with _only_here(name), signals.handled_afterwards():
                code = _stored(name)
                if code is None:  # no other process has compiled it meanwhile
                    return _compile(kernel, dtype, name)
    return link(code)


def _compile(kernel: Kernel, dtype: torch.dtype, name: str) -> Any:
    """Compile a kernel, and keep it in a file if possible."""
    compiler = _compiler()
    if compiler is None:
        return None
    module = importlib.import_module(f"regard.kernels.{kernel.module}")
    real = np.float64 if dtype == torch.float64 else np.float32
    compiled = compiler.compile_kernel(getattr(module, kernel.factory)(real))
    code = compiler.object_file(compiled, ENTRY)
    if code is None:
        return c_function(compiled.address, compiled)
    folder = _folder_to_write()
    if folder is not None and not compiler.HAS_SETTINGS_FILE:
        path = folder / name
        with contextlib.suppress(files.DataError), files.atomic_write(path) as temporary:
            temporary.write_bytes(hashlib.sha256(code).digest() + code)
    return link(code)


@functools.cache
def _can_execute() -> bool:
    """Return whether the system lets this process execute new machine code; warn if not."""
    try:
        llvmlite.binding.check_jit_execution()
    except OSError as error:
        _warn(error)
        return False
    return True


@functools.cache
def _compiler() -> Any:
    """Return the compiler; None, after a warning, without numba, or with changed sources."""
    try:
        compiler = importlib.import_module("regard.kernels.cpu.compiler")
        if _sources() != _SOURCES:  # these launchers do not fit the kernels that would be compiled
            raise ImportError("the package has been changed since this process was started")
    except Exception as error:  # a broken compiler raises any exception
        _warn(error)
        return None
    return compiler


def _warn(error: Exception) -> None:
    warnings.warn(
        "plain PyTorch computes what kernels would compute many times faster: "
        f"{type(error).__name__}: {error}",
        stacklevel=2,
    )


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


def _stored(name: str) -> bytes | None:
    """Return an object file; None if there is none, or not a whole one."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            content = (folder / name).read_bytes()
            digest, code = content[:_DIGEST], content[_DIGEST:]
            if hashlib.sha256(code).digest() == digest:
                return code
    return None


@functools.cache
def _folders() -> list[Path]:
    """Return the folders of object files: numba's, or that of Python's bytecode and the user's."""
    if not any(_KERNELS.rglob("*.py")):  # nothing tells a version of the kernels from another one
        return []
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(chosen)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = [Path(__file__).parent / "__pycache__", Path(cache) / "regard" / "kernels"]
    return [folder for folder in folders if folder.is_absolute()]  # no home folder: ~/.cache


@functools.cache
def _folder_to_write() -> Path | None:
    """Return the first folder that can be written; None if there is none."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    return None


def _sources() -> bytes:
    """Return a digest of the kernels and their launchers."""
    paths = sorted(_KERNELS.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()


def _key() -> str:
    """Return a name for everything on which machine code depends."""
    binding = llvmlite.binding
    parts = [version("numba"), version("llvmlite"), binding.get_default_triple()]
    parts += [binding.get_host_cpu_name(), FEATURES.flatten()]
    parts += [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    ]
    text = "\n".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(_SOURCES + text).hexdigest()[:16]


_SOURCES = _sources()
_KEY = _key()


@contextlib.contextmanager
def _only_here(name: str) -> Generator[None]:
    """Wait until no other process compiles the kernel, which is then in its file."""
    folder = _folder_to_write()
    with contextlib.ExitStack() as stack:
        # without a folder or a lock, several processes compile it
        if folder is not None:
            with contextlib.suppress(OSError, NotImplementedError):
                lock = filelock.FileLock((folder / name).with_suffix(".lock"))
                stack.enter_context(lock.acquire(timeout=COMPILATION_TIMEOUT, poll_interval=0.01))
        yield
