"""Small models that several pages share, trained once.

The name of a model's folder is a hash of its settings and of the source code that trains it, so a
cached model is never older than the code.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

import regard
from regard import config, datasets
from regard.demo import demo_config

_NOT_TRAINING = {"charts", "cli", "explanation", "serving"}
HOME = Path(__file__).resolve().parents[1] / "_build" / "models"


def phrasebook() -> regard.Translator:
    """Return the model of `regard demo`: Chinese and Spanish to English, 7,402 phrases."""
    settings = config.to_dict(demo_config(Path("."), "cpu"))
    # fewer updates than the demo, and no time limit: the same number on every machine
    settings["training"] |= {"max_minutes": None, "max_updates": 800, "validate_every": 800}
    return _trained("phrasebook", settings, lambda: datasets.make("phrasebook"))


def small_transformer() -> regard.Translator:
    """Return a Transformer for the same phrases, with two decoder layers of two heads."""
    settings = config.to_dict(demo_config(Path("."), "cpu"))
    settings["model"] |= {
        "kind": "transformer", "attention": None, "decoder": "luong", "heads": 2,
        "encoder_layers": 1, "decoder_layers": 2, "feed_forward_dim": 128, "dropout": 0.1,
    }  # fmt: skip
    settings["training"] |= {"max_minutes": None, "max_updates": 450, "validate_every": 450}
    return _trained("transformer", settings, lambda: datasets.make("phrasebook"))


def pairs_of(part: tuple[Any, ...]) -> list[tuple[str, str]]:
    """Return source and target of the examples of a built-in dataset."""
    return [(example.source, example.target) for example in part]


def _trained(name: str, settings: dict[str, Any], make: Callable[[], Any]) -> regard.Translator:
    settings["data"] = {}
    folder = HOME / f"{name}-{_key(settings)}"
    HOME.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            settings["out"] = str(folder / "model")
            splits = make()
            with contextlib.redirect_stderr(io.StringIO()):
                regard.train(
                    config.from_dict(settings), pairs_of(splits.train), pairs_of(splits.dev),
                    resume=(folder / "model").exists(),
                )  # fmt: skip
            (folder / "done").touch()
    return regard.Translator.load(folder / "model", "cpu")


def _key(settings: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps({**settings, "out": ""}, sort_keys=True).encode())
    home = Path(regard.__file__).parent
    for path in sorted(home.rglob("*.py")):
        if path.relative_to(home).parts[0] not in _NOT_TRAINING:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
