"""The card of a model folder: what it is, how well it does, how it was made."""

from pathlib import Path
from typing import Any

from regard import model_folder
from regard.files import write_text


def write(
    out: Path,
    trained: model_folder.TrainedModel,
    history: list[dict[str, Any]],
    metric: str,
    command: str | None,
) -> None:
    """Write README.md into the folder."""
    config = trained.config
    chosen = next((entry for entry in reversed(history) if entry["best"]), None)
    lines = [
        f"# {out.name}",
        "",
        f"A sequence-to-sequence model made by regard {model_folder.package_version()}.",
        "",
        f"- source: {config.source.unit}, vocabulary of {len(trained.source):,}",
        f"- target: {config.target.unit}, vocabulary of {len(trained.target):,}",
        f"- model: {config.model.kind}, {config.model.cell}, decoder {config.model.decoder}, "
        f"attention {config.model.attention}; {trained.metadata['parameters']:,} parameters",
        f"- seed: {config.training.seed}",
    ]
    if chosen is not None:
        lines.append(
            f"- chosen at update {chosen['update']:,} ({chosen['minutes']:.1f} min): dev {metric} "
            f"{chosen[metric]:.2f} (greedy), dev loss {chosen['dev_loss']:.3f}"
        )
    lines += ["", "Made with", "", f"    {command or 'regard.train(config), see config.json'}", ""]
    lines += ["Use it with", "", f"    echo 'some text' | regard translate {out.name}", ""]
    write_text(out / "README.md", "\n".join(lines))
