"""The demo: the results that the README states, and its folder."""

import dataclasses
from pathlib import Path

import pytest
import torch

from regard import checkpoints
from regard import demo as demos
from regard.errors import ConfigError
from regard.pretrained import folder_of, pretrained_models
from regard.translator import Translator


@pytest.mark.soak
@pytest.mark.usefixtures("unchecked")
def test_the_demo_gives_the_results_of_the_readme(tmp_path: Path) -> None:
    threads, messages = torch.get_num_threads(), list[str]()
    result = demos.demo(tmp_path / "demo", device="cpu", log=messages.append)
    assert torch.get_num_threads() == threads
    assert messages[0].startswith(f"pretrained model {pretrained_models()[0]}: ")
    assert messages[1:3] == [f"{source} -> {text}" for source, text in result.outputs.items()]
    assert result.outputs == {
        "我 爱 机器 学习": "i love machine learning",
        "te quiero": "i love you",
    }
    assert (result.folder / "map.html").stat().st_size > 100_000
    assert (result.folder / "map.png").read_bytes().startswith(b"\x89PNG")
    written = {
        "我爱机器学习": "i love machine learning",
        "Te quiero.": "i love you",
        "Me gusta mi casa.": "i like my house",
    }
    outputs = Translator.load(result.folder / "model", "cpu").translate(list(written))
    assert [output.text for output in outputs] == list(written.values())
    assert str(outputs[0].alignment()) == "0-0 1-1 2-2 3-3"
    assert result.exact_match >= 95
    # with five seeds, the mean is 0.117 and the standard deviation 0.006: rounding depends on the processor
    assert result.aer <= 0.135


def test_the_demo_begins_with_a_pretrained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in pretrained_models():
        (tmp_path / name).mkdir()  # no model: it must not hide the pretrained one
    model = Translator.load(folder_of(pretrained_models()[0]), "cpu")
    output = model.translate(model.trained.metadata["examples"][0])
    demos.show_pretrained_model("cpu")
    shown = capsys.readouterr().out
    assert shown == f"pretrained model {pretrained_models()[0]}: {output.source} -> {output.text}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    demos.show_pretrained_model("cpu")
    drawn = capsys.readouterr().out.removeprefix(shown)
    for token in (*output.source_labels[:2], *output.target_labels[:2], "weight"):
        assert token in drawn


def test_the_demo_replaces_only_its_own_folder(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    demos.new_folder(own)
    (own / "model").mkdir()
    (own / "scores.json").write_text("mine")
    with checkpoints.locked(own / "model"), pytest.raises(ConfigError, match="another process is"):
        demos.new_folder(own)
    (own / "model" / "config.json").touch()
    (own / "model" / "scores.json").touch()
    with pytest.raises(ConfigError, match=r"model/scores.json was not created by the demo"):
        demos.new_folder(own)
    (own / "model" / "scores.json").unlink()
    mine = own / "model" / "checkpoints" / "notes.txt"
    mine.parent.mkdir(exist_ok=True)
    (mine.parent / "100.safetensors").touch()
    mine.touch()
    with pytest.raises(ConfigError, match=r"checkpoints/notes.txt was not created by the demo"):
        demos.new_folder(own)
    mine.unlink()
    assert not (demos.new_folder(own) / "model").exists()
    (tmp_path / "elsewhere").mkdir()
    (own / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"own/model was not created by the demo"):
        demos.new_folder(own)
    assert (tmp_path / "elsewhere").exists()
    assert (own / "scores.json").read_text() == "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="was not created by the demo"):
        demos.new_folder(other)
    assert (other / "thesis.txt").read_text() == "mine"


def test_the_sentence_of_the_map_is_in_the_test_part() -> None:
    from regard import datasets

    splits = datasets.make("phrasebook")
    assert demos.MAP_SENTENCE in {example.source for example in splits.test}


def test_the_recipe_phrasebook_is_the_demo_with_a_limit_of_time() -> None:
    from regard.cli.parser import Parser, add_settings, recipe_first, settings

    parser = Parser()
    add_settings(parser)
    values = settings(parser.parse_args(recipe_first(["--config", "phrasebook"])))
    expected = demos.demo_config(Path("demo"))
    assert values["training"].pop("max_minutes") == 1.3
    values["training"]["max_minutes"] = None
    assert expected.training.max_minutes is None
    for group in ("source", "target", "model", "training"):
        assert values[group] == dataclasses.asdict(getattr(expected, group)), group
