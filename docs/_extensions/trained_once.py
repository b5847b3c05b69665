"""Models of the documentation, each trained once for all pages.

Every kernel of the build replaces `regard.train` with `train` (startup.py), so that pages show and run
ordinary training code. A model is identified by a hash of its settings, its pairs and the source
code that trains it: a stored model is never older than the code.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from regard import config, datasets
from regard.demo import demo_config
from regard.training import train as train_anew
from regard.translator import Translator

HOME = Path(__file__).resolve().parents[1] / "_build" / "models"
_PACKAGE = Path(config.__file__).parent
_NOT_TRAINING = {"charts", "cli", "explanation", "serving"}


def train(
    settings: config.Config,
    pairs: Sequence[Any] | None = None,
    dev: Sequence[Any] | None = None,
    **options: Any,
) -> Translator:
    """Return the model with these settings and pairs, trained if no page has trained it yet."""
    if pairs is None or options or settings.out is None:
        return train_anew(settings, pairs, dev, **options)
    folder = _stored(settings, pairs, dev)
    shutil.copytree(folder, settings.out, dirs_exist_ok=True)
    return Translator.load(settings.out, settings.device)


def enter_demo_folder() -> None:
    """Change to a temporary folder that contains the models demo/model and demo/transformer."""
    splits = datasets.make("phrasebook")
    train_part, dev = ([(e.source, e.target) for e in part] for part in (splits.train, splits.dev))
    home = Path(tempfile.mkdtemp())
    (home / "demo").mkdir()
    for name, settings in (("model", _recurrent()), ("transformer", _transformer())):
        (home / "demo" / name).symlink_to(_stored(settings, train_part, dev))
    os.chdir(home)


def _recurrent() -> config.Config:
    """Return the settings of lesson 7."""
    demo = demo_config(Path("demo"), "cpu")
    budget = {"max_updates": 800, "validate_every": 800, "max_minutes": None}
    training = dataclasses.replace(demo.training, **budget)
    return dataclasses.replace(demo, data=config.DataConfig(), training=training)


def _transformer() -> config.Config:
    """Return the settings of the Transformer of lesson 7."""
    recurrent = _recurrent()
    model = dataclasses.replace(
        recurrent.model, kind="transformer", attention=None, heads=2, encoder_layers=1,
        decoder_layers=2, feed_forward_dim=128, dropout=0.1,
    )  # fmt: skip
    training = dataclasses.replace(recurrent.training, max_updates=450, validate_every=450)
    return dataclasses.replace(recurrent, model=model, training=training)


def _stored(settings: config.Config, pairs: Sequence[Any], dev: Sequence[Any] | None) -> Path:
    """Return the folder of the trained model."""
    folder = HOME / _key(settings, pairs, dev)
    HOME.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            # a build that was interrupted is continued
            to_train = dataclasses.replace(settings, out=str(folder / "model"))
            with contextlib.redirect_stderr(io.StringIO()):
                train_anew(to_train, pairs, dev, resume=(folder / "model").exists())
            (folder / "done").touch()
    return folder / "model"


def _key(settings: config.Config, pairs: Sequence[Any], dev: Sequence[Any] | None) -> str:
    described = {**dataclasses.asdict(settings), "out": "", "device": ""}
    digest = hashlib.sha256(json.dumps([described, pairs, dev], sort_keys=True).encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        if path.relative_to(_PACKAGE).parts[0] not in _NOT_TRAINING:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
