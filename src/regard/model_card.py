"""The model card: README.md in a model folder."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import model_folder
from regard.config import ModelConfig
from regard.errors import quantity
from regard.files import write_text
from regard.version import __version__

_DEV_FIGURES = re.compile(r"- (?:best weights at update|weights in) .*\bdev\b")


def dev_figures(folder: Path) -> list[str]:
    """Return the lines of a model card with metrics on the dev pairs.

    A line begins with the weights that were evaluated: the best weights of the training run, or weights in
    int8. The result is empty if the folder has no card.
    """
    path = folder / "README.md"
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    return [line for line in lines if _DEV_FIGURES.match(line)]


def write(
    out: Path,
    trained: model_folder.TrainedModel,
    history: list[dict[str, Any]],
    metric: str,
    notes: Sequence[str] = (),
) -> None:
    """Write the model card of a trained model into its folder.

    Args:
        out: the model folder; the text of its NOTICE, if there is one, is part of the card.
        trained: the model; `command`, `description` and `attribution` in its metadata, if present, are part
            of the card.
        history: the validations of its training.
        metric: the metric that selected the best weights.
        notes: further properties, one line each.
    """
    config, metadata = trained.config, trained.metadata
    name = Path(os.path.abspath(out)).name  # `out` may be "."
    best = next((entry for entry in reversed(history) if entry["best"]), None)
    lines = [
        f"# {name}",
        "",
        metadata.get("description", "A sequence-to-sequence model.")
        + f" Trained with regard {__version__}.",
        "",
        f"- source: {config.source.unit}, vocabulary of {len(trained.source):,}",
        f"- target: {config.target.unit}, vocabulary of {len(trained.target):,}",
        f"- model: {_architecture(config.model)}; {metadata['parameters']:,} parameters",
        f"- seed: {config.training.seed}",
    ]
    if best is not None:
        lines.append(
            f"- best weights at update {best['update']:,} ({best['minutes']:.1f} min): dev {metric} "
            f"{best[metric]:.2f} (greedy), dev loss {best['dev_loss']:.3f}"
        )
    lines += [f"- {note}" for note in notes]
    if "command" in metadata:
        lines += ["", "Trained with", "", f"    {metadata['command']}"]
    example = shlex.quote(next(iter(metadata.get("examples", ())), "some text"))
    lines += [
        "",
        "Use it with",
        "",
        f"    echo {example} | regard translate {shlex.quote(name)}",
        "",
    ]
    if "attribution" in metadata:
        lines += ["## Data", "", metadata["attribution"], ""]
    if (out / "NOTICE").is_file():
        lines += ["```text", (out / "NOTICE").read_text("utf-8").rstrip("\n"), "```", ""]
    write_text(out / "README.md", "\n".join(lines))


def _architecture(model: ModelConfig) -> str:
    """Return the settings that apply to this kind of model."""
    order = ", right to left" if model.right_to_left else ""
    if model.kind == "transformer":
        heads = quantity(model.heads, "head")
        return f"transformer, {heads}, attention {model.attention}{order}"
    decoder = "" if model.attention == "none" else f", decoder {model.decoder}"
    return (
        f"{model.kind}, encoder {model.encoder}, {model.cell}{decoder}, attention "
        f"{model.attention}{order}"
    )
