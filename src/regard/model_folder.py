"""One model folder: everything a trained model needs, and nothing that executes.

config.json          resolved settings, format and package version, what was found in the data
model.safetensors    the best weights
source.json target.json    the tokenizers
metrics.jsonl        one line per validation (written by training)
README.md            card, with the command that made it
last/                only to resume (checkpoints.py)
"""

import json
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from regard.config import Config, from_dict, to_dict
from regard.errors import ConfigError, FolderError
from regard.files import write_text, written_whole
from regard.models import Seq2Seq, build
from regard.text import Tokenizer

FORMAT = 1
"""Version of the folder's format; older ones load."""


@dataclass(frozen=True)
class TrainedModel:
    """What a folder holds."""

    config: Config
    model: Seq2Seq
    source: Tokenizer
    target: Tokenizer
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found in the data or follows from the settings, such as `longest_target`."""


def package_version() -> str:
    """Version of the installed package."""
    try:
        return version("regard")
    except PackageNotFoundError:
        return "unknown"


def save_description(folder: str | Path, trained: TrainedModel) -> None:
    """Write config.json and the tokenizers."""
    folder = Path(folder)
    config = {
        "format": FORMAT,
        "regard": package_version(),
        **to_dict(trained.config),
        "facts": trained.facts,
    }
    write_text(folder / "source.json", trained.source.to_json() + "\n")
    write_text(folder / "target.json", trained.target.to_json() + "\n")
    write_text(folder / "config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def save_weights(folder: str | Path, model: Seq2Seq) -> None:
    """Write model.safetensors."""
    from safetensors.torch import save_model

    with written_whole(Path(folder) / "model.safetensors") as temporary:
        save_model(model, str(temporary))


def describe(folder: str | Path) -> TrainedModel:
    """Read config.json and the tokenizers; the model has fresh weights.

    Raises:
        FolderError: something is missing, damaged or of a newer format.
    """
    folder = Path(folder)
    values = _read_config(folder)
    facts = values.pop("facts", {})
    config = _read_settings(folder, values)
    source, target = (_read_tokenizer(folder / name) for name in ("source.json", "target.json"))
    return TrainedModel(
        config, build(config.model, len(source), len(target)), source, target, facts
    )


def load(folder: str | Path) -> TrainedModel:
    """Read a folder back, weights included; nothing in it is executed.

    Raises:
        FolderError: something is missing, damaged or of a newer format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    folder = Path(folder)
    trained = describe(folder)
    model, weights = trained.model, folder / "model.safetensors"
    if not weights.exists():
        raise FolderError(
            f"{folder} has no model.safetensors yet; train until the first validation"
        )
    try:
        load_model(model, str(weights))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FolderError(f"{weights} does not fit config.json ({reason}); train anew") from None
    model.eval()
    return trained


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        raise FolderError(
            f"{folder} is not a model folder: it has no config.json; give the folder that "
            "`regard train --out` made"
        ) from None
    except ValueError as error:
        raise FolderError(f"{folder / 'config.json'} is damaged ({error}); train anew") from None
    if not isinstance(values, dict) or not isinstance(values.get("format"), int):
        raise FolderError(f"{folder / 'config.json'} is damaged: it names no format; train anew")
    if values["format"] > FORMAT:
        raise FolderError(
            f"{folder} was made by a newer regard ({values.get('regard', '?')}); upgrade to read it"
        )
    return values


def _read_settings(folder: Path, values: dict[str, Any]) -> Config:
    settings = {name: value for name, value in values.items() if name not in ("format", "regard")}
    try:
        return from_dict(settings)
    except ConfigError as error:
        raise FolderError(f"{folder / 'config.json'} is damaged ({error}); train anew") from None


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise FolderError(f"{path} is missing or damaged; train anew") from None
    try:
        return Tokenizer.from_json(text)
    except FolderError as error:
        raise FolderError(f"{path}: {error}") from None
