"""The demo: what its README promises, and that it only ever replaces its own folder."""

import dataclasses
from pathlib import Path

import pytest
import torch

from regard import demo as demos
from regard.config import Config
from regard.errors import ConfigError


def test_the_demo_does_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_clock(folder: Path, device: str = "auto") -> Config:
        config = settings(folder, device)
        return dataclasses.replace(
            config, training=dataclasses.replace(config.training, max_minutes=None)
        )

    settings = demos.demo_config
    monkeypatch.setattr(demos, "demo_config", without_clock)
    threads, said = torch.get_num_threads(), []
    torch.set_num_threads(1)  # steps this small lose more than they gain by a second thread
    try:
        made = demos.demo(tmp_path / "demo", device="cpu", say=said.append)
    finally:
        torch.set_num_threads(threads)
    assert made.outputs == {"我 爱 机器 学习": "i love machine learning", "te quiero": "i love you"}
    assert made.exact_match >= 95
    assert made.aer <= 0.12
    assert said[:2] == ["我 爱 机器 学习 -> i love machine learning", "te quiero -> i love you"]
    assert (made.folder / "map.html").stat().st_size > 100_000
    assert (made.folder / "map.png").read_bytes().startswith(b"\x89PNG")
    assert (made.folder / "model" / "model.safetensors").exists()


def test_the_demo_replaces_its_own_folder_only(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    demos._clear(own)
    (own / "model").mkdir()
    assert not (demos._clear(own) / "model").exists()
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="was not made by the demo"):
        demos._clear(other)
    assert (other / "thesis.txt").read_text() == "mine"


def test_the_pictured_sentence_is_of_the_test_part() -> None:
    from regard import datasets

    made = datasets.make("phrasebook")
    assert demos.PICTURE in {example.source for example in made.test}


def test_the_recipe_phrasebook_is_the_demo() -> None:
    from regard.cli.parser import Parser, add_settings, recipe_first, settings

    parser = Parser()
    add_settings(parser)
    given = settings(parser.parse_args(recipe_first(["--config", "phrasebook"])))
    made = demos.demo_config(Path("demo"))
    for group in ("source", "target", "model", "training"):
        assert given[group] == dataclasses.asdict(getattr(made, group)), group
