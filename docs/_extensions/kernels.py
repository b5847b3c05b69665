"""Kernels that are talked to through sockets of their own, not through ports.

Jupyter looks for five free ports, lets them go, and starts the kernel, which takes them again; with
several pages built at once, another one may have taken them in between.
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
    """The manager of one page's kernel."""
    manager = _create(client)
    manager.transport = "ipc"
    manager.ip = str(Path(tempfile.gettempdir()) / f"kernel-{uuid4().hex}")
    return manager


def setup(app: Sphinx) -> dict[str, Any]:
    """Whoever runs a page starts its kernel so."""
    NotebookClient.create_kernel_manager = create_kernel_manager
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
