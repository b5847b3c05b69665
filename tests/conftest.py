"""Run-time checks of annotations, a fixed seed, the hypothesis profile and shared fixtures."""

import contextlib
import functools
import importlib
import importlib.util
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch
from filelock import FileLock

UNCHECKED = (
    # their functions are compiled by PyTorch, numba or Triton
    "regard.kernels.additive.",
    "regard.kernels.cpu.",
    "regard.kernels.decoding.",
    "regard.kernels.normalizers",
    "regard.kernels.recurrent.",
    "regard.kernels.weighted_sum",
    # functions of a few microseconds, which are called for every layer, step or resample
    "regard.kernels.dropout",
    "regard.kernels.linear",
    "regard.metrics",
)
"""Prefixes of the modules whose annotations are not checked at run time."""


def checked_modules() -> list[str]:
    """Return the modules of the package with annotated shapes, which are checked at run time."""
    spec = importlib.util.find_spec("regard")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    names = [
        ".".join(("regard", *path.relative_to(root).with_suffix("").parts))
        for path in sorted(root.rglob("*.py"))
        if path.stem != "__init__" and "jaxtyping" in path.read_text(encoding="utf-8")
    ]
    return [name for name in names if not name.startswith(UNCHECKED)]


jaxtyping.install_import_hook(checked_modules(), "beartype.beartype")

# imports of the package follow the import hook
import regard  # noqa: E402
from regard import model_folder  # noqa: E402
from regard.cli.main import COMMANDS  # noqa: E402
from regard.config import Config, ModelConfig, TextConfig  # noqa: E402
from regard.errors import JobError  # noqa: E402
from regard.models import build  # noqa: E402
from regard.text import Tokenizer  # noqa: E402
from serving_models import make_folder  # noqa: E402

if not torch.cuda.is_available():
    # read when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

# `make soak` selects the profile soak
test_profile = hypothesis.settings(derandomize=True, deadline=None, max_examples=10)
hypothesis.settings.register_profile("test", test_profile)
hypothesis.settings.register_profile("soak", test_profile, max_examples=40)
hypothesis.settings.load_profile("test")


@pytest.fixture(autouse=True, scope="session")
def _parsers_are_made_once() -> None:
    """Make the parser of each command once: the command makes one per process."""
    for name in COMMANDS:
        module = importlib.import_module(f"regard.cli.{name}")
        module.make_parser = functools.cache(module.make_parser)  # type: ignore[attr-defined]


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


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable the run-time checks of shapes: the package raises its own errors, and trains faster."""
    with _without_checks():
        yield


@pytest.fixture
def members_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the members of an ensemble in this process, which has imported what they need."""
    from regard.cli.main import main

    def run(commands: list[list[str]], *_: object) -> None:
        for command in commands:
            if main(["train", *command]):
                raise JobError("a member failed")

    monkeypatch.setattr("regard.cli.members._run", run)


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
def made_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that lets one of the processes of a test run make a folder for all."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        path, complete = root / name, root / f"{name}.complete"
        path.parent.mkdir(exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            if not complete.exists():
                shutil.rmtree(path, ignore_errors=True)
                with _without_checks():
                    make(path)
                complete.touch()
        return path

    return folder


@pytest.fixture(scope="session")
def folders(made_once: Callable[[str, Callable[[Path], object]], Path]) -> list[Path]:
    """Two model folders, a recurrent one and a Transformer."""
    layers = {"encoder_layers": 1, "decoder_layers": 2}
    return [
        made_once("recurrent", lambda path: make_folder(path, attention="additive")),
        made_once("transformer", lambda path: make_folder(path, kind="transformer", **layers)),
    ]


@pytest.fixture(scope="session")
def export_once(
    folders: list[Path], made_once: Callable[[str, Callable[[Path], object]], Path]
) -> Callable[[int], tuple[regard.Translator, Path]]:
    """Return a function that exports one of `folders`; it returns the translator and the new folder."""

    @functools.cache
    def exported(number: int) -> tuple[regard.Translator, Path]:
        from regard.export.folder import export

        translator = regard.Translator.load(folders[number], "cpu")
        name = f"exported/{folders[number].name}"
        return translator, made_once(name, functools.partial(export, translator))

    return exported
