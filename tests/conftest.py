"""Run-time checks of annotations, one seed and one hypothesis profile for every test, shared fixtures."""

import importlib.util
import os
import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

UNCHECKED = (
    # read by the compilers of PyTorch, numba and Triton
    "regard.kernels.additive.",
    "regard.kernels.normalizers",
    "regard.kernels.weighted_sum",
)
"""Prefixes of the modules whose annotations are not checked at run time."""


def checked_modules() -> list[str]:
    """Return the modules of the package whose annotated shapes and types are checked at run time."""
    spec = importlib.util.find_spec("regard")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    names = [
        ".".join(("regard", *path.relative_to(root).with_suffix("").parts))
        for path in sorted(root.rglob("*.py"))
        if path.stem != "__init__"
    ]
    return [name for name in names if not name.startswith(UNCHECKED)]


jaxtyping.install_import_hook(checked_modules(), "beartype.beartype")

from serving_models import make_folder  # noqa: E402  (imports the package, so after the hook)

if not torch.cuda.is_available():
    # read when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

hypothesis.settings.register_profile("regard", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that is allocated and not written holds NaN: whoever reads it shows."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotated shapes go unchecked, as for a user: what is raised then is our own error."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two model folders, a recurrent one and a Transformer."""
    root = tmp_path_factory.mktemp("folders")
    return [
        make_folder(root / "recurrent", attention="additive"),
        make_folder(root / "transformer", kind="transformer", encoder_layers=1, decoder_layers=2),
    ]
