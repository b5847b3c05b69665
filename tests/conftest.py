"""Run-time checks of annotations, a fixed seed, the hypothesis profile and shared fixtures."""

import importlib.util
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

UNCHECKED = (
    # their functions are compiled by PyTorch, numba or Triton
    "regard.kernels.additive.",
    "regard.kernels.cpu.",
    "regard.kernels.normalizers",
    "regard.kernels.recurrent.",
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

# imports of the package follow the import hook
import regard  # noqa: E402
from regard import model_folder  # noqa: E402
from regard.config import Config, ModelConfig, TextConfig  # noqa: E402
from regard.models import build  # noqa: E402
from regard.text import Tokenizer  # noqa: E402
from serving_models import make_folder  # noqa: E402

if not torch.cuda.is_available():
    # read when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

hypothesis.settings.register_profile("regard", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _default_signals() -> None:
    """Handle signals as in a terminal: what runs in the background may be told to ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(signal.Signals[name], signal.SIG_DFL)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that reading it changes the results."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable the run-time checks of shapes, so that the package raises its own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def make_translator() -> Callable[..., regard.Translator]:
    """Return a function that builds a translator of an untrained model with given settings."""

    def make(**model: object) -> regard.Translator:
        torch.manual_seed(6)
        text = TextConfig(unit="whitespace")
        names = ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim")
        defaults = {**{name: 8 for name in names}, "heads": 2}
        config = Config(source=text, target=text, model=ModelConfig(**{**defaults, **model}))
        tokenizer = Tokenizer.train(["a b c d"], text)
        network = build(config.model, len(tokenizer), len(tokenizer)).eval()
        for parameter in network.parameters():
            parameter.data.mul_(2)
        trained = model_folder.TrainedModel(
            config, network, tokenizer, tokenizer, {"max_target_length": 4}
        )
        return regard.Translator(trained, torch.device("cpu"))

    return make


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two model folders, a recurrent one and a Transformer."""
    root = tmp_path_factory.mktemp("folders")
    return [
        make_folder(root / "recurrent", attention="additive"),
        make_folder(root / "transformer", kind="transformer", encoder_layers=1, decoder_layers=2),
    ]


@pytest.fixture(scope="session")
def exported_folders(
    folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[regard.Translator, Path]]:
    """The translators of `folders` and the folders that they were exported to."""
    from regard.export.folder import export

    root = tmp_path_factory.mktemp("exported")
    translators = [regard.Translator.load(folder, "cpu") for folder in folders]
    jaxtyping.config.update("jaxtyping_disable", True)  # its checks fix the sizes of a graph
    exported = [
        export(model, root / path.name) for model, path in zip(translators, folders, strict=True)
    ]
    jaxtyping.config.update("jaxtyping_disable", False)
    return [(model, each.folder) for model, each in zip(translators, exported, strict=True)]
