"""Jupyter kernels that communicate through Unix sockets instead of ports.

Jupyter looks for five free ports, releases them and starts the kernel, which binds them again; when
pages are built in parallel, another kernel may have taken them in between.
"""

import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from sphinx.application import Sphinx

_create = NotebookClient.create_kernel_manager


def create_kernel_manager(client: NotebookClient) -> KernelManager:
    """Return the manager of the kernel of one page."""
    manager = _create(client)
    manager.transport = "ipc"
    manager.ip = str(Path(tempfile.gettempdir()) / f"kernel-{uuid4().hex}")
    return manager


def use_sockets() -> None:
    """Start every kernel this way."""
    NotebookClient.create_kernel_manager = create_kernel_manager


def setup(app: Sphinx) -> dict[str, Any]:
    """Start the kernels of all pages this way."""
    use_sockets()
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
