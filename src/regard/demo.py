"""The demo: learn a small built-in set in about a minute, and draw where the model looks."""

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
"""Two sentences that the training part does not hold."""

PICTURE = "por la noche tu hermana compra un libro nuevo"
"""The sentence of map.png: any font draws it."""

_MARK = ".regard-demo"


@dataclass(frozen=True)
class Demo:
    """What the demo found."""

    outputs: dict[str, str]
    """Each of `SENTENCES` with its translation."""
    exact_match: float
    """Percent of test sentences translated exactly."""
    aer: float
    """Alignment error rate of the attention on the test part, from 0 to 1."""
    folder: Path
    """Holds model/, data/, map.html and map.png."""


def demo(out: str | Path, device: str = "auto", say: Callable[[str], None] = print) -> Demo:
    """Train on `phrasebook`, translate two sentences it never saw, measure, and draw two maps.

    Args:
        out: folder to write; one that an earlier demo made is replaced.
        device: `auto`, `cpu`, `cuda` or `mps`.
        say: where to print.

    Raises:
        ConfigError: the folder holds something else.
    """
    folder = _clear(Path(out))
    made = datasets.make("phrasebook")
    datasets.write(made, folder / "data")
    translator = train(demo_config(folder, device), command="regard demo")
    outputs = translator.translate(SENTENCES)
    for output in outputs:
        say(f"{output.source} -> {output.text}")
    pairs = [(example.source, example.target) for example in made.test]
    gold = [Gold(frozenset(example.links or ())) for example in made.test]
    exact = evaluate(translator, pairs).scores.exact_match.value
    _, scores = align(translator, pairs, gold)
    assert scores is not None
    say(f"test: {exact:.1f} % exactly right, alignment error rate {scores.aer:.3f}")
    _draw(translator, folder, say)
    texts = {output.source: output.text for output in outputs}
    return Demo(texts, exact, scores.aer, folder)


def demo_config(folder: Path, device: str = "auto") -> Config:
    """The settings of the demo: a small GRU model with Luong's decoder.

    Dropout and label smoothing are as strong as they are for the alignments: without them the
    sentences come out as well, and the attention wanders.
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


def _draw(translator: Translator, folder: Path, say: Callable[[str], None]) -> None:
    """map.html shows the Chinese sentence, in the reader's fonts; map.png the Spanish one."""
    chinese, spanish = translator.translate([SENTENCES[0], PICTURE])
    chinese.chart(f"{chinese.source} → {chinese.text}").save(folder / "map.html")
    spanish.chart(f"{spanish.source} → {spanish.text}").save(folder / "map.png")
    say(f"see where it looked: {folder / 'map.html'}, {folder / 'map.png'}")
    if sys.stdout.isatty() and spanish.attention is not None:
        from rich.console import Console

        from regard.charts import terminal_heatmap

        shown = terminal_heatmap(spanish.attention, spanish.source_tokens, spanish.tokens)
        Console().print(shown)


def _clear(folder: Path) -> Path:
    """An empty folder with our mark: a new one, or that of an earlier demo."""
    if folder.is_dir() and (folder / _MARK).exists():
        shutil.rmtree(folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and was not made by the demo; choose another folder with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
    return folder
