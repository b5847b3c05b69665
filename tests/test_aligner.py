import dataclasses
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard import ConfigError, Translator, aligner, files, symmetrize
from regard.aligner import train_both, write_links
from regard.cli.main import main
from regard.config import Config, ModelConfig, TextConfig
from regard.hidden_markov import HiddenMarkovAligner
from regard.lines import read_lines
from regard.pairs import pairs_from, read_pairs
from regard.text import Tokenizer

pytestmark = pytest.mark.usefixtures("unchecked")

WORDS = ["a b", "b c d", "d", "c a", "a a d", "b", "d c b a", "c c"]
SETTINGS = {
    "model": {"embedding_dim": 8, "encoder_dim": 8, "decoder_dim": 8, "attention_dim": 8},
    "training": {"max_updates": 2},
    "source": {"unit": "whitespace"},
}
FLAGS = [
    f"--{group}.{name}={value}" for group, values in SETTINGS.items() for name, value in values.items()
]  # fmt: skip


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of pairs with lines that are no pair, and a pair that is too long."""
    lines = [f"{text}\t{text.upper()}" for text in WORDS]
    long = " ".join("abcd" * 3)
    lines[3:3] = ["", "a\t", f"{long}\t{long.upper()}"]
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"{line}\n" for line in [*lines, "\t"]))
    return path


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory, pairs_file: Path) -> Path:
    """The folder of `regard align --train`."""
    out = tmp_path_factory.mktemp("aligner") / "out"
    options = ["--data.max_length=10", "--max-minutes=0.5", *FLAGS]
    assert main(["align", "--train", str(pairs_file), "--out", str(out), *options]) == 0
    return out


def test_there_is_a_line_of_links_for_every_line_of_the_file(out: Path, pairs_file: Path) -> None:
    lines, links = read_lines(pairs_file), read_lines(out / "links.pharaoh")
    assert len(links) == len(lines) == 12
    assert [not line for line in links] == [i in (3, 4, 5, 11) for i in range(12)]
    assert links == read_lines(out / "guide.pharaoh")


def test_the_directions_share_the_budget_and_exchange_source_and_target(out: Path) -> None:
    configs = [Translator.load(out / name, "cpu").trained.config for name in ("forward", "reverse")]
    assert [config.training.max_minutes for config in configs] == [0.25, 0.25]
    assert configs[0].source.unit == configs[1].target.unit == "whitespace"
    assert configs[0].target.unit == configs[1].source.unit


def test_links_of_hidden_markov_models_guide_both_directions(out: Path, pairs_file: Path) -> None:
    lines, links = read_lines(pairs_file), read_lines(out / "guide.pharaoh")
    assert [not line for line in links] == [i in (3, 4, 5, 11) for i in range(12)]
    found = list[tuple[str, str]]()
    for line, text in zip(lines, links, strict=True):
        source, target = (side.split() for side in (line.split("\t") if text else ("", "")))
        pairs = (link.split("-") for link in text.split())
        found += [(source[int(i)], target[int(j)]) for i, j in pairs]
    assert {target for _, target in found} == {"A", "B", "C", "D"}
    assert sum(source.upper() == target for source, target in found) > 0.8 * len(found)
    for name in ("forward", "reverse"):
        assert Translator.load(out / name, "cpu").trained.config.training.guided_alignment == 0.05


def test_training_is_resumed(
    out: Path, pairs_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(out, tmp_path / "out")
    arguments = ["align", "--train", str(pairs_file), "--out", str(out)]
    assert main(arguments) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    (out / "links.pharaoh").unlink()
    assert main([*arguments, "--resume", "--threshold", "0.1"]) == 1
    assert "minimum weight of a link of the trained models" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--symmetrize", "union"]) == 0
    result = capsys.readouterr()
    assert result.err.count("resumed at update 2") == 2
    assert "the links of 12 pairs are saved" in result.out
    assert "4 have an empty line" in result.out
    forward, reverse = (Translator.load(out / name, "cpu") for name in ("forward", "reverse"))
    links = read_lines(out / "links.pharaoh")
    for line, expected in zip(read_lines(pairs_file), links, strict=True):
        if expected:
            source, target = line.split("\t")
            there, back = forward.align(source, target), reverse.align(target, source)
            assert str(symmetrize(there, back, "union")) == expected


@pytest.mark.parametrize("minutes", [-1, float("nan")])
def test_an_impossible_time_budget_is_named_as_it_was_given(
    tmp_path: Path, pairs_file: Path, minutes: float
) -> None:
    with pytest.raises(ConfigError, match=f"max_minutes must be above 0, got {minutes}"):
        train_both(tmp_path / "out", read_pairs(str(pairs_file)), max_minutes=minutes, **SETTINGS)


def test_the_dev_file_is_not_that_of_the_reverse_model(tmp_path: Path, pairs_file: Path) -> None:
    pairs = read_pairs(str(pairs_file))
    models = train_both(tmp_path, pairs, pairs, **SETTINGS, data={"dev": str(pairs_file)})
    assert [model.trained.training_file("dev") for model in models] == [str(pairs_file), None]
    configs = [model.trained.config.data for model in models]
    assert [config.source_column for config in configs] == ["source", "target"]
    assert [config.target_column for config in configs] == ["target", "source"]


def test_the_dev_file_has_its_columns_exchanged_for_the_reverse_model(
    tmp_path: Path, pairs_file: Path
) -> None:
    pairs = read_pairs(str(pairs_file))
    forward, reverse = train_both(tmp_path, pairs, **SETTINGS, data={"dev": str(pairs_file)})
    assert forward.trained.metadata["examples"][0].islower()
    assert reverse.trained.metadata["examples"][0].isupper()


def test_the_model_has_the_units_of_the_links_that_guide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = iter(("grapheme", "word"))

    def train_tokenizer(texts: list[str], config: TextConfig) -> Tokenizer:
        return Tokenizer.train(texts, dataclasses.replace(config, unit=next(units)))

    monkeypatch.setattr(aligner, "Tokenizer", SimpleNamespace(train=train_tokenizer))
    settings = {**SETTINGS, "source": {}}
    models = train_both(tmp_path, [(text, text.upper()) for text in WORDS], **settings)
    configs = [model.trained.config for model in models]
    assert [(config.source.unit, config.target.unit) for config in configs] == [
        ("grapheme", "word"),
        ("word", "grapheme"),
    ]


def test_links_of_long_pairs_are_computed_in_small_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, sizes = HiddenMarkovAligner.weights, []

    def record(self: HiddenMarkovAligner, sources: Any, targets: Any) -> Any:
        sizes.append(len(sources))
        return weights(self, sources, targets)

    monkeypatch.setattr(HiddenMarkovAligner, "weights", record)
    parsed = pairs_from([("a b", "A B"), ("b c", "B C"), ("c a b c", "C A B C"), ("a", "A")])
    text = TextConfig(unit="whitespace")
    for most, expected in ((1 << 25, [4]), (9, [2, 1, 1])):  # 4, 4, 16 and 1 weights
        monkeypatch.setattr("regard.lines._MOST_SQUARES", most)
        sizes.clear()
        aligner._write_guide(tmp_path / str(most), parsed, None, Config(source=text, target=text))
        assert sizes == expected
    assert (tmp_path / "9").read_text() == (tmp_path / str(1 << 25)).read_text()


def test_a_run_that_fails_leaves_no_links_for_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pairs = tmp_path / "out", tmp_path / "pairs.tsv"
    pairs.write_text("a b\tA B\nb c\tB C\nc a\tC A\n")
    command = ["align", "--train", str(pairs), "--data.dev", str(pairs), "--out", str(out), *FLAGS]
    assert main([*command, "--data.max_length=1"]) == 1
    assert "every pair is longer than data.max_length 1" in capsys.readouterr().err
    assert not any(out.iterdir())
    assert main([*command, "--data.max_length=10"]) == 0
    assert all(read_lines(out / "links.pharaoh"))
    with pytest.raises(ConfigError, match="exists and is not empty"):
        train_both(out, read_pairs(str(pairs)), **SETTINGS)


@pytest.mark.parametrize("part", ["train", "dev"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [("c d", "line 4 has no second column"), ("a b c\tA B C", "line 4 has a source of 3 tokens")],
)
def test_lines_that_cannot_be_aligned_stop_the_run_on_request(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    line: str,
    reason: str,
) -> None:
    monkeypatch.delattr(aligner, "hidden_markov_links")  # they are found before it is trained
    out, files = tmp_path / "out", [tmp_path / "train.tsv", tmp_path / "dev.tsv"]
    for file in files:
        last = f"{line}\n" if file.stem == part else ""
        file.write_text(f"a b\tA B\nb c\tB C\nc a\tC A\n{last}")
    train, dev = map(str, files)
    command = ["align", "--train", train, "--data.dev", dev, "--out", str(out), *FLAGS]
    assert main([*command, "--data.max_length=2", "--data.bad_lines=stop"]) == 1
    assert reason in capsys.readouterr().err
    assert not (out / "links.pharaoh").exists()


def test_bad_dev_lines_are_found_before_the_models_of_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pairs, dev = tmp_path / "out", tmp_path / "pairs.tsv", tmp_path / "dev.tsv"
    pairs.write_text("a b\tA B\nb c\tB C\nc a\tC A\n")
    dev.write_text("a b\tA B\nb\n")
    command = ["align", "--train", str(pairs), "--data.dev", str(dev), "--out", str(out), *FLAGS]
    assert main([*command, "--data.bad_lines=stop"]) == 1
    message = capsys.readouterr().err
    assert "dev.tsv: 1 of 2 lines cannot be used: line 2 has no second column" in message
    assert not out.exists()


def test_a_folder_without_models_is_not_resumed(
    tmp_path: Path, pairs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "links.pharaoh").write_text("mine")
    command = ["align", "--train", str(pairs_file), "--out", str(tmp_path), *FLAGS]
    assert main([*command, "--resume"]) == 1
    assert "is not empty; it has no models to resume: choose another" in capsys.readouterr().err
    assert (tmp_path / "links.pharaoh").read_text() == "mine"
    assert main([*command, "--data.source_column=x"]) == 1
    assert "data.source_column names a column of a Parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "minutes"),
    [([], 30), (["--training.max_updates=1"], None), (["--training.max_minutes=1"], None),
     (["--max-minutes=2"], 2), (["--resume"], 30), (["--config=translation"], None),
     (["--config", "translation", "--max-minutes", "2"], 2)],
)  # fmt: skip
def test_half_an_hour_is_the_budget_unless_one_is_given(
    tmp_path: Path, pairs_file: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], options: list[str], minutes: float | None,
) -> None:  # fmt: skip
    def check(*_: Any, max_minutes: float | None, **__: Any) -> None:
        assert max_minutes == minutes
        raise ConfigError("checked")

    monkeypatch.setattr(aligner, "train_both", check)
    command = ["align", "--train", str(pairs_file), "--out", str(tmp_path / "out"), *options]
    assert main(command) == 1
    assert capsys.readouterr().err == "regard align: checked\n"


def test_a_resumed_run_keeps_the_budget_of_both_directions(
    tmp_path: Path, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = aligner.train

    def stop_after_forward(config: Config, *args: Any, **options: Any) -> Translator:
        if Path(str(config.out)).name == "reverse":
            raise KeyboardInterrupt
        return train(config, *args, **options)

    command = ["align", "--train", str(pairs_file), "--out", str(tmp_path / "out"), *FLAGS]
    with monkeypatch.context() as patch:
        patch.setattr(aligner, "train", stop_after_forward)
        assert main([*command, "--max-minutes=0.5"]) == 130
    assert main([*command, "--resume"]) == 0
    for name in ("forward", "reverse"):
        config = Translator.load(tmp_path / "out" / name, "cpu").trained.config
        assert config.training.max_minutes == 0.25


def test_a_run_that_is_stopped_at_its_start_can_be_repeated(
    tmp_path: Path, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    command = ["align", "--train", str(pairs_file), "--out", str(tmp_path / "out"), *FLAGS]
    with monkeypatch.context() as patch:
        patch.setattr(aligner, "train", stop)
        assert main(command) == 130
    assert not (tmp_path / "out" / "guide.pharaoh").exists()
    assert main(command) == 0


def test_a_second_command_leaves_the_guide_of_a_running_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(text, text.upper()) for text in WORDS]
    write_guide = aligner._write_guide

    def write_and_start_again(*args: Any) -> dict[str, Any]:
        units = write_guide(*args)
        monkeypatch.setattr(aligner, "_write_guide", pytest.fail)
        with pytest.raises(ConfigError, match="another process is training"):
            train_both(tmp_path, pairs, pairs[:3], **SETTINGS)
        return {**units}

    monkeypatch.setattr(aligner, "_write_guide", write_and_start_again)
    forward, _ = train_both(tmp_path, pairs, pairs[:3], **SETTINGS)
    assert forward.trained.config.training.guided_alignment is not None
    assert (tmp_path / "guide.pharaoh").exists()


def test_links_guide_both_directions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a b\tB A", "", "c\tC", "d a\tA D"]
    links = ["0-1 1-0", "", "0-0", "0-1 1-0"]
    for name, content in (("pairs", lines), ("links", links), ("outside", [*links[:3], "0-2"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in content))
    command = [
        "align",
        "--train",
        str(tmp_path / "pairs"),
        "--data.dev",
        str(tmp_path / "pairs"),
        *FLAGS,
    ]
    guided = [*command, "--target.unit=whitespace", "--data.train_links"]
    assert main([*guided, str(tmp_path / "outside"), "--out", str(tmp_path / "no")]) == 1
    assert "outside, line 4: 0-2 is outside its texts" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main([*guided, str(tmp_path / "pipe"), "--out", str(tmp_path / "no")]) == 1
    assert "pipe is a pipe, which can be read only once" in capsys.readouterr().err
    # a run that was killed early
    lock = tmp_path / "out" / "reverse" / "checkpoints" / ".lock"
    temporary = files._temporary(tmp_path / "out" / "guide.pharaoh")
    lock.parent.mkdir(parents=True)
    temporary.touch()
    (tmp_path / "out" / "guide.pharaoh").touch()
    assert main([*guided, str(tmp_path / "links"), "--out", str(tmp_path / "out")]) == 1
    assert "out exists and is not empty" in capsys.readouterr().err
    lock.touch()
    assert main([*guided, str(tmp_path / "links"), "--out", str(tmp_path / "out")]) == 0
    assert not temporary.exists()
    for name in ("forward", "reverse"):
        config = Translator.load(tmp_path / "out" / name, "cpu").trained.config
        assert config.training.guided_alignment == 0.05


def test_both_directions_are_trained_in_python(tmp_path: Path, pairs_file: Path) -> None:
    pairs = [(text, text.upper()) for text in WORDS]
    models = train_both(tmp_path, pairs, pairs[:3], **SETTINGS)
    assert models[0].source.unit == models[1].target.unit == "whitespace"
    done: list[int] = []
    path = tmp_path / "links"
    failures = write_links(path, *models, read_pairs(str(pairs_file)), on_progress=done.append)
    assert (failures, done) == (3, [9])
    with pytest.raises(ConfigError, match=r"choose another model\.attention"):
        train_both(tmp_path / "none", pairs, model={"attention": "none"})
    with pytest.raises(ConfigError, match="features of the source cannot be aligned"):
        train_both(tmp_path / "none", pairs, data={"features_column": 3})
    with pytest.raises(
        ConfigError, match=r"features .* cannot be aligned: pass pairs of two strings"
    ):
        train_both(tmp_path / "none", [("a", "A", "V;PST")], pairs[:3])
    with pytest.raises(ConfigError, match="model takes settings by name, got ModelConfig"):
        train_both(tmp_path / "none", pairs, model=ModelConfig())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("align", "missing: DIR, PAIRS"),
        ("align m", "missing: PAIRS"),
        ("align m p --max-minutes 3", "--max-minutes belongs to --train PAIRS"),
        ("align m p --model.kind transformer", "--model.kind belongs to --train PAIRS"),
        ("align m p --config g2p", "--config belongs to --train PAIRS"),
        ("align --train p", "give --out OUT"),
        ("align m --train p --out o", "leaves no use for DIR: leave it out"),
        ("align --train p --out o --gold g", "leaves no use for --gold: leave it out"),
        ("align --train p --out o --data.train q", "leave out data.train"),
        ("align --train p --out o --threshold 7", "must be from 0 to 1"),
        (
            "align --train TRAIN --out o --max-minutes 1 --training.max_minutes 1",
            "give one of them",
        ),
        ("align --train p --out o", "cannot read p"),
        ("align --train p --out o --data.features_column 3", "features of the source cannot be"),
    ],
)
def test_each_use_has_its_own_options(
    command: str, message: str, pairs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.replace("TRAIN", str(pairs_file)).split()) in (1, 2)
    result = capsys.readouterr()
    assert message in result.err
    assert (result.out, result.err.count("\n")) == ("", 1)
