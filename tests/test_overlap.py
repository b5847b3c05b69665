"""Test sources that are in the training data."""

import gzip
import json
import os
from pathlib import Path

import pytest

import regard
from regard import pairs
from regard.cli.main import main
from regard.config import DataConfig, TextConfig, from_dict
from regard.overlap import TrainingOverlap, training_overlap
from regard.text import Tokenizer

SOURCES = [("new", None), ("b c", None), ("A", None)]


def _write(folder: Path, name: str) -> str:
    """Write the training pairs in the format of this file name, and return the setting."""
    rows = [("a", "1"), ("b c", "2"), ("b c", "3"), ("d", "4")]
    path = folder / name
    if name == "parallel":
        for index, suffix in enumerate(("src", "tgt")):
            (folder / suffix).write_text("".join(f"{row[index]}\n" for row in rows))
        return f"{folder}/src,{folder}/tgt"
    text = "".join(f"{source}\t{target}\tx\n" for source, target in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"source": source, "target": target}) for source, target in rows]
        path.write_text("\n".join(lines))
    else:
        path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["train.tsv", "train.tsv.gz", "parallel", "train.jsonl"])
def test_common_sources_are_counted_once(name: str, tmp_path: Path) -> None:
    data = DataConfig(train=_write(tmp_path, name), dev="dev.tsv")
    assert training_overlap(SOURCES, data) == TrainingOverlap(1, "b c", str(data.train))
    found = training_overlap(SOURCES, data, str.lower)
    assert found == TrainingOverlap(2, "b c", str(data.train))
    assert found.message(3).startswith("2 of 3 distinct sources are in the training data (")
    assert "for example 'b c'" in found.message(3)
    assert training_overlap(SOURCES[:1], data) is None
    assert training_overlap([("a ", None)], data) == TrainingOverlap(1, "a ", str(data.train))


def test_sources_that_training_may_have_held_out_are_distinguished(tmp_path: Path) -> None:
    train = _write(tmp_path, "train.tsv")
    unknown = training_overlap(SOURCES, DataConfig(train=train))
    known = training_overlap(SOURCES, DataConfig(train=train, dev="dev.tsv"))
    assert unknown is not None
    assert known is not None
    assert unknown.held_out
    assert "; unless training held them out for validation, the metrics" in unknown.message(3)
    assert "; the metrics do not measure" in known.message(3)


def test_unusable_lines_of_the_training_data_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(f"a{chr(0x301) * 1100}\tx\na\t1\n")
    normalize = Tokenizer.train(["a"], TextConfig()).normalize
    found = training_overlap([("a", None)], DataConfig(train=str(path), dev="x"), normalize)
    assert found == TrainingOverlap(1, "a", str(path))


@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl", "parallel"])
def test_lines_that_training_skips_are_not_in_the_training_data(name: str, tmp_path: Path) -> None:
    rows = [("a", "1"), ("b", ""), ("c", "2")]
    path = tmp_path / name
    if name == "parallel":
        (tmp_path / "src").write_text("a\nb\nc\n")
        (tmp_path / "tgt").write_text("1\n \n2\n")
        path = f"{tmp_path}/src,{tmp_path}/tgt"
    elif name == "train.jsonl":
        lines = [json.dumps({"source": source, "target": target}) for source, target in rows]
        path.write_text("\n".join(lines))
    else:
        path.write_text("a\t1\nb\nb\t\nc\t2\n")
    data = DataConfig(train=str(path), dev="x", bad_lines="skip")
    assert training_overlap([("b", None)], data) is None
    found = training_overlap([("a", None), ("b", None), ("c", None)], data)
    assert found == TrainingOverlap(2, "a", str(path))


def test_features_belong_to_the_source(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("go\twent\tPST\n")
    data = DataConfig(train=str(path), dev="x", features_column=3)
    assert training_overlap([("go", "PTCP")], data) is None
    assert training_overlap([("go", "PTCP"), ("go", "PST")], data) == TrainingOverlap(
        1, "go", str(path)
    )


def test_training_data_that_cannot_be_read_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert training_overlap(SOURCES, DataConfig()) is None
    assert training_overlap(SOURCES, DataConfig(train="/dev/stdin")) is None
    for path in ("a" * 5000, f"{'b' * 300}.jsonl", "c" * 300 + ",d"):
        assert training_overlap(SOURCES, DataConfig(train=path)) is None
    path = tmp_path / "train.tsv"
    assert training_overlap(SOURCES, DataConfig(train=str(path))) is None
    os.mkfifo(path)
    assert training_overlap(SOURCES, DataConfig(train=str(path))) is None
    path.unlink()
    path.write_bytes(b"A\t1\n\xff\xfe\n")
    assert training_overlap(SOURCES, DataConfig(train=str(path))) is None
    path.write_text("A\t1\n")
    assert training_overlap(SOURCES, DataConfig(train=str(path))) is not None
    monkeypatch.setattr(pairs, "_MOST_BYTES", 3)
    assert training_overlap(SOURCES, DataConfig(train=str(path))) is None


def test_another_file_of_the_same_name_is_not_the_training_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("a", "a b\tx\nc\ty\n"), ("b", "d e\tx\nf\ty\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.tsv").write_text(text)
    (tmp_path / "test.tsv").write_text("d e\tx\n")
    monkeypatch.chdir(tmp_path / "a")
    config = from_dict({
        "out": "run", "device": "cpu", "training": {"max_updates": 1},
        "data": {"train": "train.tsv", "dev": "train.tsv"},
    })  # fmt: skip
    trained = regard.train(config).trained
    assert trained.training_file("train") == trained.training_file("dev") == "train.tsv"
    monkeypatch.chdir(tmp_path / "b")
    assert trained.training_file("train") is trained.training_file("dev") is None
    assert main(["evaluate", str(tmp_path / "a" / "run"), str(tmp_path / "test.tsv")]) == 0
    assert "in the training data" not in capsys.readouterr().err
    (tmp_path / "b" / "train.tsv").write_text("a b\tx\nc\ty\n")
    assert trained.training_file("train") == "train.tsv"
    (tmp_path / "test.tsv").write_text("a b\tx\n")
    assert main(["evaluate", str(tmp_path / "a" / "run"), str(tmp_path / "test.tsv")]) == 0
    assert "1 of 1 distinct source is in the training data" in capsys.readouterr().err


def test_an_ensemble_names_the_member_that_was_trained_on_most_test_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--device=cpu", "--training.max_updates=1"]
    for name, text in (
        ("a", "a b\tx\nb\ty\n"),
        ("b", "b\tx\na a\ty\n"),
        ("test", "a a\tx\nb\tx\n"),
    ):
        Path(f"{name}.tsv").write_text(text)
    for name, other in (("a", []), ("b", ["--tokenizers-from", "run-a"])):
        data = [f"--data.train={name}.tsv", f"--data.dev={name}.tsv", "--out", f"run-{name}"]
        assert main(["train", *data, *options, *other]) == 0
    assert main(["ensemble", "run-a", "run-b", "--out", "both"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "both", "test.tsv"]) == 0
    assert "2 of 2 distinct sources are in the training data (b.tsv)" in capsys.readouterr().err
    assert main(["evaluate", "both", "test.tsv", "--json", "b.tsv"]) == 1
    assert "--json would overwrite the input b.tsv" in capsys.readouterr().err
