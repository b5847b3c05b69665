"""The demo: train on a small built-in dataset in about a minute and draw the attention."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard import datasets
from regard.alignment import Gold
from regard.config import Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
from regard.errors import ConfigError
from regard.evaluation import align, evaluate
from regard.training import train
from regard.translator import Translator

SENTENCES: tuple[str, ...] = ("我 爱 机器 学习", "te quiero")
"""Two sentences that are not in the training part."""

MAP_SENTENCE = "por la noche tu hermana compra un libro nuevo"
"""The sentence of map.png, in Latin script, which every font supports."""

_MARKER = ".regard-demo"


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo."""

    outputs: dict[str, str]
    """The translation of each of `SENTENCES`."""
    exact_match: float
    """Percent of test sentences translated exactly."""
    aer: float
    """Alignment error rate of the attention on the test part, from 0 to 1."""
    folder: Path
    """Contains model/, data/, map.html and map.png."""


def demo(out: str | Path, device: str = "auto", log: Callable[[str], None] = print) -> DemoResult:
    """Train on `phrasebook`, translate two unseen sentences, evaluate, and draw two heatmaps.

    Args:
        out: folder to write; the folder of an earlier demo is replaced.
        device: `auto`, `cpu`, `cuda` or `mps`.
        log: called with every line of output.

    Raises:
        ConfigError: the folder has other contents.
    """
    folder = new_folder(Path(out))
    splits = datasets.make("phrasebook")
    datasets.write(splits, folder / "data")
    translator = train(demo_config(folder, device), command="regard demo")
    outputs = translator.translate(SENTENCES)
    for output in outputs:
        log(f"{output.source} -> {output.text}")
    pairs = [(example.source, example.target) for example in splits.test]
    gold = [Gold(frozenset(example.links or ())) for example in splits.test]
    exact = evaluate(translator, pairs).scores.exact_match.value
    _, scores = align(translator, pairs, gold)
    assert scores is not None
    log(f"test: {exact:.1f} % exact match, alignment error rate {scores.aer:.3f}")
    _draw(translator, folder, log)
    texts = {output.source: output.text for output in outputs}
    return DemoResult(texts, exact, scores.aer, folder)


def demo_config(folder: Path, device: str = "auto") -> Config:
    """Return the settings of the demo: a small GRU model with Luong's decoder.

    The amount of dropout and label smoothing is chosen for the alignments: translations are as good
    without them, but the attention is less accurate.
    """
    return Config(
        out=str(folder / "model"),
        device=device,  # type: ignore[arg-type]
        data=DataConfig(
            train=str(folder / "data" / "train.tsv"), dev=str(folder / "data" / "dev.tsv")
        ),
        source=TextConfig(unit="word"),
        target=TextConfig(unit="word"),
        model=ModelConfig(
            attention="additive",
            decoder="luong",
            cell="gru",
            embedding_dim=64,
            encoder_dim=64,
            decoder_dim=64,
            attention_dim=64,
            dropout=0.3,
        ),
        training=TrainingConfig(
            batch_tokens=1024,
            max_updates=2000,
            max_minutes=1.3,
            validate_every=400,
            learning_rate=5e-3,
            label_smoothing=0.1,
        ),
    )


def _draw(translator: Translator, folder: Path, log: Callable[[str], None]) -> None:
    """Draw the Chinese sentence as map.html, in the browser's fonts, and the Spanish one as map.png."""
    chinese, spanish = translator.translate([SENTENCES[0], MAP_SENTENCE])
    chinese.chart(f"{chinese.source} → {chinese.text}").save(folder / "map.html")
    spanish.chart(f"{spanish.source} → {spanish.text}").save(folder / "map.png")
    log(f"attention: {folder / 'map.html'}, {folder / 'map.png'}")
    if sys.stdout.isatty() and spanish.attention is not None:
        from rich.console import Console

        from regard.charts import terminal_heatmap

        heatmap = terminal_heatmap(spanish.attention, spanish.source_tokens, spanish.tokens)
        Console().print(heatmap)


def new_folder(folder: Path) -> Path:
    """Create a folder with the demo's marker file, replacing that of an earlier demo.

    Raises:
        ConfigError: the folder has other contents.
    """
    if folder.is_dir() and (folder / _MARKER).exists():
        shutil.rmtree(folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and was not created by the demo; choose another folder with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()
    return folder
