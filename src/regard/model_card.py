"""The model card: README.md in a model folder."""

from pathlib import Path
from typing import Any

from regard import model_folder
from regard.config import ModelConfig
from regard.errors import quantity
from regard.files import write_text
from regard.version import __version__


def write(
    out: Path,
    trained: model_folder.TrainedModel,
    history: list[dict[str, Any]],
    metric: str,
    command: str | None,
) -> None:
    """Write the model card of a trained model into its folder."""
    config = trained.config
    best = next((entry for entry in reversed(history) if entry["best"]), None)
    lines = [
        f"# {out.name}",
        "",
        f"A sequence-to-sequence model trained with regard {__version__}.",
        "",
        f"- source: {config.source.unit}, vocabulary of {len(trained.source):,}",
        f"- target: {config.target.unit}, vocabulary of {len(trained.target):,}",
        f"- model: {_architecture(config.model)}; {trained.metadata['parameters']:,} parameters",
        f"- seed: {config.training.seed}",
    ]
    if best is not None:
        lines.append(
            f"- best weights at update {best['update']:,} ({best['minutes']:.1f} min): dev {metric} "
            f"{best[metric]:.2f} (greedy), dev loss {best['dev_loss']:.3f}"
        )
    lines += ["", "Trained with", "", f"    {command or 'regard.train(config), see config.json'}"]
    lines += ["", "Use it with", "", f"    echo 'some text' | regard translate {out.name}", ""]
    write_text(out / "README.md", "\n".join(lines))


def _architecture(model: ModelConfig) -> str:
    """Return the settings that apply to this kind of model."""
    if model.kind == "transformer":
        return f"transformer, {quantity(model.heads, 'head')}, attention {model.attention}"
    decoder = "" if model.attention == "none" else f", decoder {model.decoder}"
    return (
        f"{model.kind}, encoder {model.encoder}, {model.cell}{decoder}, attention {model.attention}"
    )
