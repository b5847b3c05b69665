"""The demo: use a pretrained model, train on a small built-in dataset in about a minute, draw the attention."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import rich
import torch
import yaml

from regard import checkpoints, datasets
from regard.alignment import GoldAlignment
from regard.charts import terminal_heatmap
from regard.config import Config, from_dict
from regard.errors import ConfigError
from regard.evaluation import align, evaluate
from regard.files import require_empty_folder, write_errors_reported
from regard.pretrained import folder_of, pretrained_models
from regard.training import train
from regard.translation import Translation
from regard.translator import Translator

SENTENCES: tuple[str, ...] = ("我 爱 机器 学习", "te quiero")
"""Two sentences that are not in the training set."""

MAP_SENTENCE = "por la noche tu hermana compra un libro nuevo"
"""The sentence in map.png, in Latin script, which every font supports."""

_MARKER = ".regard-demo"


@dataclass(frozen=True)
class DemoResult:
    """Results of the demo."""

    outputs: dict[str, str]
    """The translation of each of `SENTENCES`."""
    exact_match: float
    """Percentage of test sentences translated exactly."""
    aer: float
    """Alignment error rate of the attention on the test set, from 0 to 1."""
    folder: Path
    """Contains model/, data/, map.html and map.png."""


def demo(out: str | Path, device: str = "auto", log: Callable[[str], None] = print) -> DemoResult:
    """Use a pretrained model, train on `phrasebook`, translate two unseen sentences, evaluate, and draw two heatmaps.

    Args:
        out: output folder; what an earlier demo has written there is replaced, and nothing else.
        device: `auto`, `cpu`, `cuda` or `mps`.
        log: function called with every line of output.

    Raises:
        ConfigError: the folder has contents that the demo did not create, or a demo is running in it.
    """
    folder = new_folder(Path(out))
    show_pretrained_model(device, log)
    splits = datasets.make("phrasebook")
    datasets.write(splits, folder / "data")
    with _one_thread():
        translator = train(demo_config(folder, device), command="regard demo")
    outputs = {output.source: output for output in translator.translate([*SENTENCES, MAP_SENTENCE])}
    texts = {sentence: outputs[sentence].text for sentence in SENTENCES}
    for sentence, text in texts.items():
        log(f"{sentence} -> {text}")
    pairs = [(example.source, example.target) for example in splits.test]
    gold = [GoldAlignment(frozenset(example.links or ())) for example in splits.test]
    exact = evaluate(translator, pairs).metrics.exact_match.value
    _, alignment = align(translator, pairs, gold)
    assert alignment is not None
    log(f"test: {exact:.1f} % exact match, alignment error rate {alignment.aer:.3f}")
    # map.html has Chinese characters, for which the browser has fonts; map.png has only Latin ones
    for output, name in ((outputs[SENTENCES[0]], "map.html"), (outputs[MAP_SENTENCE], "map.png")):
        output.chart(f"{output.source} → {output.text}").save(folder / name)
    log(f"attention: {folder / 'map.html'}, {folder / 'map.png'}")
    _draw_on_terminal(outputs[MAP_SENTENCE])
    return DemoResult(texts, exact, alignment.aer, folder)


@contextlib.contextmanager
def _one_thread() -> Generator[None]:
    """Compute on one thread.

    Updates this small are slower with a second one, and many times as slow if another program uses its
    core, because the threads wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def show_pretrained_model(device: str = "auto", log: Callable[[str], None] = print) -> None:
    """Print the output of the first pretrained model for its first example, and its attention on a terminal."""
    name = pretrained_models()[0]
    translator = Translator.load(folder_of(name), device)
    output = translator.translate(translator.trained.metadata["examples"][:1])[0]
    log(f"pretrained model {name}: {output.source} -> {output.text}")
    _draw_on_terminal(output)


def _draw_on_terminal(output: Translation) -> None:
    if sys.stdout.isatty():
        heatmap = output.chart()
        rich.print(terminal_heatmap(heatmap.weights, heatmap.source_tokens, heatmap.target_tokens))


def demo_config(folder: Path, device: str = "auto") -> Config:
    """Return the settings of the demo: a small GRU model with Luong's decoder.

    The amount of dropout and label smoothing is chosen for the alignments: translations are as good
    without them, but the attention is less accurate. The number of updates ends the training, so that a
    slow or busy machine takes longer and gives the same model.
    """
    recipe = (Path(__file__).parent / "recipes" / "phrasebook.yaml").read_text("utf-8")
    data = {part: str(folder / "data" / f"{part}.tsv") for part in ("train", "dev")}
    settings = yaml.safe_load(recipe)
    settings["training"]["max_minutes"] = None
    return from_dict({**settings, "data": data, "out": str(folder / "model"), "device": device})


def new_folder(folder: Path) -> Path:
    """Create a folder with the demo's marker file, or remove the model of an earlier demo from it.

    Raises:
        ConfigError: the folder, or its model, has contents that the demo did not create, or a demo is
            running in it.
    """
    target = Path(os.path.realpath(folder))  # keeps a symbolic link
    model = target / "model"
    if not (target / _MARKER).exists():
        require_empty_folder(target, "it was not created by the demo: choose another folder (out)")
        with write_errors_reported(target):
            target.mkdir(parents=True, exist_ok=True)
            (target / _MARKER).touch()
    elif model.exists():
        with checkpoints.locked(model):
            if foreign := [model] if model.is_symlink() else checkpoints.foreign_paths(model):
                raise ConfigError(
                    f"{foreign[0]} was not created by the demo, which replaces {model}: move it elsewhere, "
                    "or choose another folder (out)"
                )
            shutil.rmtree(model)
    return folder
