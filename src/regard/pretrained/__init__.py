"""Pretrained models: model folders that are part of the package, loaded by name.

`tools/make_models.py` makes them; the README.md of each folder states its data, licence and accuracy.
"""

from pathlib import Path

from regard.errors import nearest

_NAMES = ("english-phones", "phrasebook", "spanish-english")
"""The first that is installed is the one that `regard serve` and `regard demo` open."""

FILES = (
    "config.json", "source.json", "target.json", "model.safetensors", "metrics.jsonl", "README.md",
    "NOTICE",
)  # fmt: skip
"""Files of a model folder, besides checkpoints and members."""

_ROOT = Path(__file__).parent


def pretrained_models() -> list[str]:
    """Return the names of the pretrained models.

    `Translator.load` and every command take such a name in place of a model folder; a folder of that name
    in the working directory takes precedence.
    """
    return [name for name in _NAMES if (folder_of(name) / "config.json").is_file()]


def find(folder: str | Path) -> Path:
    """Return the path of a model folder, or of the pretrained model of that name if no such path exists."""
    path = Path(folder)
    return folder_of(str(path)) if str(path) in pretrained_models() and not path.exists() else path


def folder_of(name: str) -> Path:
    """Return the folder of a pretrained model in this package, whatever the working directory contains."""
    return _ROOT / name


def hint(folder: str | Path) -> str:
    """Return how to load a pretrained model instead of a folder that is no model folder."""
    models = pretrained_models()
    if str(folder) in models:
        return f", or rename {folder} to use the pretrained model of that name"
    return f" or a pretrained model ({', '.join(models)}){nearest(str(folder), models)}"
