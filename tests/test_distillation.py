"""Distillation: the outputs of a teacher, resumed, and a student that is trained on them."""

import dataclasses
import errno
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import regard
from regard import checkpoints
from regard.cli.main import main
from regard.config import from_dict
from regard.distillation import distinct_sources, write_outputs
from regard.errors import ConfigError, DataError, FolderError
from regard.translation import Translation

SOURCES = [("a b", None), ("c d a", None), ("b", None)]

_translate = regard.Translator.translate


def _truncated(*arguments: Any, **options: Any) -> list[Translation]:
    """Translate, and mark every output as truncated."""
    outputs = _translate(*arguments, **options)
    return [dataclasses.replace(output, complete=False) for output in outputs]


def test_sources_are_distinct_and_fit_on_a_line() -> None:
    given = [("a\tb", None), ("a b", None), (" ", None), ("a b", "X"), ("a\u00a0b", None)]
    given += [("a b", "X\nY"), ("a b", "X\tY"), ("\ufeffa b", None)]  # from a table
    assert distinct_sources(given) == [
        ("a b", None),
        ("a b", "X"),
        ("a\u00a0b", None),
        ("a b", "X Y"),
    ]


def test_outputs_keep_their_spaces(folders: list[Path], tmp_path: Path) -> None:
    teacher = regard.Translator.load(folders[0], "cpu")
    text = "le\u00a0mot  \u3000!\u202f"
    given = [dataclasses.replace(each, text=text) for each in teacher.translate(["a b"])]
    with mock.patch.object(regard.Translator, "translate", return_value=given):
        write_outputs(teacher, [("a b", None)], str(tmp_path / "outputs.tsv"))
    assert (tmp_path / "outputs.tsv").read_text("utf-8") == f"a b\t{text}\n"


def test_outputs_with_unknown_tokens_are_left_out(folders: list[Path], tmp_path: Path) -> None:
    teacher, path = regard.Translator.load(folders[0], "cpu"), tmp_path / "outputs.tsv"
    unknown = dataclasses.replace(_translate(teacher, "a b"), text="b <unk>", tokens=["b", "<unk>"])
    with mock.patch.object(regard.Translator, "translate", return_value=[unknown]):
        assert write_outputs(teacher, [("a b", None)], path) == []
    assert path.read_text() == "a b\t\n"


def test_outputs_that_cannot_be_written_name_the_folder(
    folders: list[Path], tmp_path: Path
) -> None:
    teacher = regard.Translator.load(folders[0], "cpu")
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch("regard.distillation._line", side_effect=full),
        pytest.raises(ConfigError, match=f"cannot write {tmp_path}: No space left on device"),
    ):
        write_outputs(teacher, [("a b", None)], tmp_path / "outputs.tsv")


def test_the_best_outputs_are_written(folders: list[Path], tmp_path: Path) -> None:
    teacher, path = regard.Translator.load(folders[0]), tmp_path / "outputs.tsv"
    done: list[tuple[int, int]] = []
    with mock.patch.object(regard.Translator, "translate", _truncated):
        pairs = write_outputs(teacher, SOURCES, path, 2, lambda *counts: done.append(counts))
    texts = [output.text for output in teacher.translate(SOURCES, beam_size=2)]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines == [f"{source}\t{text}" for (source, _), text in zip(SOURCES, texts, strict=True)]
    assert [pair.target for pair in pairs] == [text for text in texts if text]
    assert done == [(0, 0), (3, 3)]
    done.clear()
    write_outputs(teacher, SOURCES, path, 2, lambda *counts: done.append(counts))
    assert done == [(3, 0)]  # already in the file


def test_lines_that_exist_are_kept(folders: list[Path], tmp_path: Path) -> None:
    teacher, path = regard.Translator.load(folders[0]), tmp_path / "outputs.tsv"
    expected = write_outputs(teacher, SOURCES, tmp_path / "whole.tsv")
    text = "a b\tkept\nc d"  # the last line is incomplete
    path.write_text(text)
    with pytest.raises(FolderError, match="outputs of another model or beam size"):
        write_outputs(teacher, SOURCES, path)
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(FolderError, match=r"mine\.json describes others"):
        write_outputs(teacher, SOURCES, tmp_path / "mine.tsv")
    assert (tmp_path / "mine.json").read_text() == "{}"
    shutil.copy(tmp_path / "whole.json", tmp_path / "outputs.json")
    for other, beam_size in ((regard.Translator.load(folders[1]), 5), (teacher, 4)):
        with pytest.raises(FolderError, match="outputs of another model or beam size"):
            write_outputs(other, SOURCES, path, beam_size)
    with pytest.raises(FolderError, match="contains outputs for other sources"):
        write_outputs(teacher, SOURCES[1:], path)
    assert path.read_text() == text
    pairs = write_outputs(teacher, SOURCES, path)
    assert [pair.target for pair in pairs] == ["kept", *(pair.target for pair in expected[1:])]
    with pytest.raises(FolderError, match="contains outputs for other sources"):
        write_outputs(teacher, SOURCES[1:], path)
    with pytest.raises(FolderError, match="contains outputs for other sources"):
        write_outputs(teacher, SOURCES[:1], path)
    written = path.read_bytes()
    with pytest.raises(FolderError, match="contains outputs for other sources"):
        write_outputs(teacher, [*SOURCES, ("d", None)], path)  # the student was trained without it
    assert path.read_bytes() == written


def test_outputs_of_earlier_versions_are_continued(folders: list[Path], tmp_path: Path) -> None:
    teacher, path = regard.Translator.load(folders[0]), tmp_path / "outputs.tsv"
    write_outputs(teacher, SOURCES, path)
    description = json.loads((tmp_path / "outputs.json").read_text())
    del description["sources"]
    (tmp_path / "outputs.json").write_text(json.dumps(description))
    path.write_text("a b\tkept\n")
    assert write_outputs(teacher, SOURCES, path)[0].target == "kept"


def test_sources_that_the_teacher_cannot_read_are_left_out(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, lines, out = (tmp_path / name for name in ("pairs.tsv", "lines.txt", "student"))
    pairs.write_text("a b\tb a\n")
    lines.write_text(f"{'a ' * 10_001}\n{'a ' * 1000}\n\n \nc d\n")
    command = ["distill", str(folders[0]), f"--out={out}", f"--data.train={pairs}", "--device=cpu"]
    command += [f"--data.dev={pairs}", "--training.max_updates=1", "--model.decoder_dim=8"]
    with mock.patch.object(regard.Translator, "translate", _truncated):
        assert main([*command, f"--unlabelled={lines}"]) == 0
    printed = capsys.readouterr().err
    assert "1 source left out, with more than 10,000 tokens\n" in printed
    assert f"2 lines of {lines} left out, without a source\n" in printed
    sources = [line.split("\t")[0] for line in (out / "outputs.tsv").read_text().splitlines()]
    assert sources == ["a b", ("a " * 1000), "c d"]


def test_a_distillation_without_outputs_can_have_other_sources(
    folders: list[Path], tmp_path: Path
) -> None:
    teacher, path = regard.Translator.load(folders[0]), tmp_path / "outputs.tsv"
    with (
        mock.patch.object(regard.Translator, "translate", side_effect=DataError("stopped")),
        pytest.raises(DataError, match="stopped"),
    ):
        write_outputs(teacher, SOURCES, path)
    assert write_outputs(teacher, SOURCES[1:], path)
    with pytest.raises(FolderError, match="contains outputs for other sources"):
        write_outputs(teacher, SOURCES, path)


def test_a_student_is_trained_on_targets_and_outputs(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, lines, out = (tmp_path / name for name in ("pairs.tsv", "lines.txt", "student"))
    pairs.write_text("a b\tb a\nc d a\ta d c\n")
    lines.write_text("b b a\n\na b\n")
    command = ["distill", str(folders[0]), "--out", str(out), "--data.train", str(pairs)]
    assert main(command) == 1
    assert "give --data.train F --data.dev F" in capsys.readouterr().err
    command += ["--data.dev", str(pairs), "--unlabelled", str(lines), "--device=cpu"]
    assert main([*command, "--training.coverage_loss=1"]) == 1
    assert "needs model.coverage true" in capsys.readouterr().err
    with_targets = tmp_path / "with-targets.tsv"
    with_targets.write_text("b b a\nc d\td c\n")
    assert main([*command, f"--unlabelled={with_targets}"]) == 1
    assert f"{with_targets}, line 2: more columns than" in capsys.readouterr().err
    with_targets.write_text("b b a\na" + "\u0301" * 1001 + "\n")
    assert main([*command, f"--unlabelled={with_targets}"]) == 1
    assert f"{with_targets}, line 2: more than 1,000 combining" in capsys.readouterr().err
    assert main([*command, "--beam-size=0"]) == 1
    assert "beam_size must be at least 1" in capsys.readouterr().err
    assert not out.exists()
    (out / "model").mkdir(parents=True)
    (out / "model" / "config.json").touch()  # of another run
    assert main([*command, "--resume"]) == 1
    assert "not empty; it has no distillation to resume" in capsys.readouterr().err
    assert [path.name for path in out.rglob("*")] == ["model", "config.json"]
    (out / "model" / "config.json").unlink()
    lock = out / "model" / "checkpoints" / ".lock"  # of a command that was killed at its start
    lock.parent.mkdir()
    lock.touch()
    command += ["--training.max_updates=2", "--training.validate_every=2", "--model.decoder_dim=8"]
    command += ["--training.guided_alignment=0.1"]
    with mock.patch.object(regard.Translator, "translate", _truncated):
        assert main([*command, "--resume"]) == 0
    err = capsys.readouterr().err
    outputs = [line.split("\t") for line in (out / "outputs.tsv").read_text().splitlines()]
    assert [row[0] for row in outputs] == ["a b", "c d a", "b b a"]
    count = 2 + sum(bool(row[1]) for row in outputs)
    assert f"train: {count} pairs read from {pairs} and {out / 'outputs.tsv'}\n" in err
    assert "3 outputs truncated at the length limit\n" in err
    assert err.count("links of hidden Markov models: ") == 1  # of the targets and the outputs
    assert ("left out, because nothing or unknown tokens were written" in err) == (count < 2 + 3)
    student = regard.Translator.load(out / "model")
    assert student.trained.training_file("train") == str(pairs)
    assert student.trained.training_file("dev") == str(pairs)
    assert student.trained.config.model.decoder_dim == 8
    unseen, test = tmp_path / "unseen.tsv", tmp_path / "test.tsv"
    unseen.write_text("d d\td d\n")
    test.write_text("b b a\ta b b\nd d\td d\n")
    assert main(["evaluate", str(out / "model"), str(unseen)]) == 0
    assert "in the training data" not in capsys.readouterr().err
    for models, name in (
        ([out / "model"], ""),
        ([folders[0], "--compare", out / "model"], f"{out / 'model'}: "),
    ):
        assert main(["evaluate", *map(str, models), str(test), "--device=cpu"]) == 0
        warning = f"warning: {name}1 of 2 distinct sources is in the training data ({out / 'outputs.tsv'})"
        errors = capsys.readouterr().err
        assert warning in errors
        assert "; the metrics do not measure performance on unseen data" in errors
    assert main(command) == 1
    assert "or continue (--resume)" in capsys.readouterr().err
    (out / "outputs.tsv").write_text("".join("\t".join(row) + "\n" for row in outputs[:1]))
    assert main([*command, "--resume"]) == 0
    assert "resumed at update 2" in capsys.readouterr().err


def test_skipped_lines_are_counted_and_numbered_as_in_the_file(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, dev = tmp_path / "pairs.tsv", tmp_path / "dev.tsv"
    pairs.write_text("a b\tb a\n\nno target\nc d a a a\ta a a d c\n")
    dev.write_text("a b\tb a\n")
    command = ["distill", str(folders[0]), "--out", str(tmp_path / "out"), "--device=cpu"]
    command += [f"--data.train={pairs}", f"--data.dev={dev}", "--data.max_length=4"]
    command += ["--training.max_updates=1", "--training.validate_every=1", "--model.decoder_dim=8"]
    assert main([*command, "--data.bad_lines=skip"]) == 0
    err = capsys.readouterr().err
    assert "train: 2 lines skipped (line 2 is empty; line 3 has no second column (TAB))" in err
    assert (
        "2 lines skipped (line 4 has a source of 5 tokens, above the limit of 4; line 6 has" in err
    )


def test_features_are_those_that_the_teacher_reads(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, pairs, lines = (tmp_path / name for name in ("teacher", "pairs.tsv", "lines.txt"))
    pairs.write_text("a b\tb a\tV;PST\nc d\td c\tN\n")
    lines.write_text("a d\tN\n\na b\n")
    rows = [tuple(line.split("\t")) for line in pairs.read_text().splitlines()]
    config = from_dict({
        "out": str(teacher), "device": "cpu",
        "data": {"features_column": 3}, "training": {"max_updates": 1},
    })  # fmt: skip
    regard.train(config, rows, rows)
    out = ["--out", str(tmp_path / "out"), f"--data.train={pairs}", f"--data.dev={pairs}"]
    for folder, options, message in (
        (teacher, [], f"{teacher} reads source features: give their column with --data.features_c"),
        (folders[0], ["--data.features_column=3"], f"{folders[0]} reads no source features: leave"),
        (
            teacher,
            ["--data.features_column=3", f"--unlabelled={lines}"],
            f"{lines}, line 3: no features, which {teacher} reads; write source TAB features",
        ),
    ):
        assert main(["distill", str(folder), *out, "--device=cpu", *options]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "outputs.tsv").exists()
    pairs.write_text("a b\tV;PST\tb a\nc d\tN\td c\n")
    options = ["--data.features_column=2", "--training.max_updates=1"]
    assert main(["distill", str(teacher), *out, "--device=cpu", *options]) == 0
    message = (
        f"{teacher} was trained with the features of column 3, and reads those of column 2 here"
    )
    assert message in capsys.readouterr().err


def test_two_processes_do_not_mix_their_outputs(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "student"
    pairs.write_text("a b\tb a\n")
    command = ["distill", str(folders[0]), "--out", str(out), "--resume", "--device=cpu"]
    with checkpoints.locked(out / "model"):
        assert main([*command, f"--data.train={pairs}", f"--data.dev={pairs}"]) == 1
        assert "another process is training" in capsys.readouterr().err
        assert not (out / "outputs.tsv").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data.train_links=links", "the teacher's outputs have no links"),
        (
            "--model.copy=true --source.unit=char --target.unit=whitespace",
            "model.copy needs the same unit",
        ),
        (
            "--model.copy=true --target.unit=char",
            "model.copy needs the same unit of text on both sides, found whitespace and char",
        ),
        ("--data.max_length=1", "longer than data.max_length 1"),
    ],
)
def test_unsuitable_settings_are_refused_before_the_teacher_translates(
    options: str,
    message: str,
    folders: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "student"
    pairs.write_text("a b\tb a\n")
    command = ["distill", str(folders[0]), "--out", str(out), f"--data.train={pairs}"]
    assert main([*command, f"--data.dev={pairs}", *options.split()]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()
