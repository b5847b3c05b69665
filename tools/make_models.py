"""Make the pretrained models: train them, round their weights to int8, and write their folders.

    python tools/make_models.py --data DATA

DATA contains cmudict/ and tatoeba-es-en/, each with train.tsv.gz and dev.tsv.gz; the phrasebook is built in.
`--trained NAME=DIR` takes the model in DIR, trained with the same command, instead of training it; `--only NAME`
leaves the other models unchanged. Options that are not listed by --help are passed on to `regard train`.
"""

import argparse
import dataclasses
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from regard import datasets, model_card, model_folder
from regard.config import DataConfig
from regard.curves import read_history
from regard.evaluation import evaluate
from regard.metrics import METRICS
from regard.pairs import read_pairs
from regard.quantization import round_weights
from regard.translator import Translator

ROOT = Path(__file__).parent.parent
OUT = ROOT / "src" / "regard" / "pretrained"
NOTICES = Path(__file__).parent / "notices"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a pretrained model is trained and described."""

    description: str
    attribution: str
    data: str
    """Folder of the pairs, inside DATA."""
    suffix: str
    """What the names of the files of pairs end with."""
    options: str
    """Options of `regard train`, without the files of pairs."""
    metrics: tuple[str, ...]
    """Metrics that the card states."""
    examples: tuple[str, ...]
    notice: str | None = None
    """File in `notices/` with the licence of the data."""

    @property
    def files(self) -> tuple[str, str]:
        """The training and the dev pairs, relative to DATA."""
        train, dev = (f"{self.data}/{part}{self.suffix}" for part in ("train", "dev"))
        return train, dev


RECIPES = {
    "english-phones": Recipe(
        description="The pronunciation of English words: letters to phones (ARPAbet, without stress).",
        attribution="Trained on CMUdict, Copyright (C) 1993-2015 Carnegie Mellon University.",
        data="cmudict",
        suffix=".tsv.gz",
        options="--config g2p-best --model.encoder_dim 256 --model.decoder_dim 384 --model.dropout 0.3 "
        "--training.max_updates 11000 --training.max_minutes 600 --training.seed 2",
        metrics=("wer", "per"),
        examples=("attention", "knowledge", "throughout", "translation"),
        notice="cmudict.txt",
    ),
    "phrasebook": Recipe(
        description="Phrases of a small phrasebook, Spanish or Chinese to English.",
        attribution="Trained on the phrasebook of regard (Apache-2.0).",
        data="phrasebook",
        suffix=".tsv",
        options="--config phrasebook --training.max_minutes 15 --training.max_updates 2000 "
        "--training.validate_every 400 --training.optimizer adam --training.learning_rate 0.005",
        metrics=("bleu", "exact_match"),
        examples=(
            "por la noche tu hermana compra un libro nuevo",
            "我 爱 机器 学习",
            "te quiero",
        ),
    ),
    "spanish-english": Recipe(
        description="Everyday sentences of at most 12 words, Spanish to English.",
        attribution="Trained on sentences from www.manythings.org/anki and tatoeba.org (CC BY 2.0).",
        data="tatoeba-es-en",
        suffix=".tsv.gz",
        options="--config translation --source.vocabulary_size 5000 --target.vocabulary_size 5000 "
        "--model.dropout 0.4 --training.batch_tokens 3000 --training.max_updates 4000 "
        "--training.max_minutes 100 --training.schedule constant --training.cooldown 0.5 "
        "--training.patience 14 --training.seed 1 --training.learning_rate 0.005",
        metrics=("bleu", "chrf"),
        examples=(
            "¿Dónde está la estación?",
            "Me gusta leer libros por la noche.",
            "No sé qué decir.",
            "Mi hermana vive en Madrid.",
        ),
        notice="tatoeba.txt",
    ),
}


def train(name: str, data: Path, work: Path, options: Sequence[str]) -> Path:
    """Train a model, or continue its training, in `work`; return its folder."""
    regard = [sys.executable, "-m", "regard"]
    folder = work.resolve() / name
    resume = ["--resume"] if folder.exists() else []
    arguments = [*train_command(name, options), "--out", str(folder), *resume]
    subprocess.run([*regard, *arguments[1:]], check=True, cwd=data)
    return folder


def train_command(name: str, options: Sequence[str]) -> list[str]:
    """Return the command that trains a model in the folder DATA, without its output folder."""
    recipe = RECIPES[name]
    pairs = [
        f"--data.{part}={path}" for part, path in zip(("train", "dev"), recipe.files, strict=True)
    ]
    return ["regard", "train", *pairs, *shlex.split(recipe.options), *options]


def write(name: str, trained_folder: Path, data: Path, out: Path, options: Sequence[str]) -> None:
    """Write the folder of a pretrained model: weights in int8, card, notice and metadata."""
    recipe = RECIPES[name]
    trained = model_folder.load(trained_folder)
    config = dataclasses.replace(trained.config, out=name, device="auto")
    files = dict(zip(("train", "dev"), recipe.files, strict=True))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **files))
    texts = {name: getattr(recipe, name) for name in ("description", "attribution")}
    command = shlex.join([*train_command(name, options), "--out", name])
    metadata = {
        **trained.metadata, **texts, "command": command, "examples": list(recipe.examples)
    }  # fmt: skip
    trained = dataclasses.replace(trained, config=config, metadata=metadata)
    round_weights(trained.model, "int8")

    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model_folder.save_description(folder, trained)
    model_folder.save_weights(folder, trained.model, metadata.get("run"), "int8")
    shutil.copy(trained_folder / "metrics.jsonl", folder)
    if recipe.notice is not None:
        shutil.copy(NOTICES / recipe.notice, folder / "NOTICE")
    history = read_history(folder)
    metric = next(name for name in (*METRICS, "loss") if name in history[-1])
    model_card.write(folder, trained, history, metric, [_dev_figures(name, folder, data)])


def _dev_figures(name: str, folder: Path, data: Path) -> str:
    """Return the metrics of the rounded model on the dev pairs."""
    recipe = RECIPES[name]
    pairs = read_pairs(str(data / recipe.files[1]), DataConfig()).pairs
    report = evaluate(Translator.load(folder, "cpu"), pairs)
    return (
        f"weights in int8, dev pairs ({report.metrics.n:,} sources), beam size 5: "
        f"{report.summary(recipe.metrics)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the models."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--data", required=True, type=Path, help="folder of the pairs")
    parser.add_argument("--work", default="models", type=Path, help="folder for training")
    parser.add_argument("--out", default=OUT, type=Path, help="folder for the pretrained models")
    parser.add_argument(
        "--only", action="append", choices=RECIPES, help="model to make; repeatable"
    )
    parser.add_argument(
        "--trained",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="model trained before; repeatable",
    )
    args, options = parser.parse_known_args(arguments)
    trained = dict(text.partition("=")[::2] for text in args.trained)
    unknown = trained.keys() - RECIPES.keys()
    if unknown or not all(trained.values()):
        parser.error(
            f"--trained takes NAME=DIR with a name of {', '.join(RECIPES)}, got {args.trained}"
        )
    phrasebook = args.work / "data"
    if not phrasebook.exists():
        datasets.write(datasets.make("phrasebook"), phrasebook / "phrasebook")
    for name in args.only or RECIPES:
        data = phrasebook if name == "phrasebook" else args.data
        folder = Path(trained[name]) if name in trained else train(name, data, args.work, options)
        write(name, folder, data, args.out, options)
        print(f"{name}: {sum(path.stat().st_size for path in (args.out / name).iterdir()):,} bytes")


if __name__ == "__main__":
    main()
