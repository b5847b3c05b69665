"""Training on Parquet, JSONL and CSV files."""

import csv
import dataclasses
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.torch import load

import regard
from regard import table_files
from regard.batching import epoch
from regard.config import Config, from_dict
from regard.corpus import Corpus, make_corpus
from regard.errors import ConfigError, DataError, ExtraError
from regard.mapped_pairs import MappedExamples, MappedPairs
from regard.pairs import read_pairs
from regard.text import Tokenizer

pytestmark = pytest.mark.usefixtures("unchecked")

FORMATS = ("parquet", "jsonl", "csv")
WORDS = ("NA", "null", "007", "2024-05-01", "é", 'say "a, b"', "1e5", "True")
PAIRS = [(f"{WORDS[n % 8]} {n * n}", " ".join(str(n * n))) for n in range(40)]
FAULTY = [*PAIRS[:3], ("", "x"), ("y", " "), ("", ""), *PAIRS[3:], ("z" * 40, "z")]
DEV = [("NA 4", "4"), ("unseen", "1 6")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(
    path: Path, rows: Sequence[Sequence[Any]], names: Sequence[str] = ("source", "target")
) -> str:
    if path.suffix == ".parquet":
        columns = [list(column) for column in zip(*rows, strict=True)]
        parquet.write_table(pa.table(columns, names=list(names)), path, row_group_size=7)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
    else:
        path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def settings(train: str | Path, **groups: Any) -> Config:
    dims = {n: 8 for n in ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim")}
    data = {"train": str(train), **groups.pop("data", {})}
    text = {"unit": "word", "vocabulary_size": 30}
    values = {"source": text, "target": text, "model": dims, "data": data, "device": "cpu"}
    return from_dict({**values, **groups})


def corpus(train: str | Path, dev: list[Any] | None = DEV, **groups: Any) -> Corpus:
    return make_corpus(settings(train, **groups), None, dev)


def examples(result: Corpus) -> list[Any]:
    return [tuple(map(list, result.train[index][:3])) for index in range(len(result.train))]


def notes(result: Corpus, path: str) -> list[str]:
    return [note.replace(path, "FILE").replace("row", "line") for note in result.notes]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_gives_the_corpus_of_the_tsv_file(kind: str, tmp_path: Path) -> None:
    tsv = write(tmp_path / "f.tsv", FAULTY)
    table = write(tmp_path / f"f.{kind}", FAULTY)
    data = {"bad_lines": "skip", "max_length": 30}
    source = {"unit": "char", "vocabulary_size": 30}
    expected = corpus(tsv, data=data, source=source)
    result = corpus(table, data=data, source=source)
    assert examples(result) == examples(expected)
    assert (result.source, result.target) == (expected.source, expected.target)
    assert result.max_source_length == expected.max_source_length
    assert result.max_target_length == expected.max_target_length
    assert notes(result, table)[:2] == notes(expected, tsv)[:2]
    assert any("44 has a source of 40 tokens" in note for note in result.notes)
    unknown = [note.split(" (")[0] for note in notes(expected, tsv) if "not in the voc" in note]
    assert unknown
    assert set(unknown) <= {note.split(" (")[0] for note in notes(result, table)}
    again = make_corpus(settings(tsv, data={**data, "dev": table}, source=source), None, None)
    assert len(again.dev) == len(expected.train)


@pytest.mark.parametrize("kind", FORMATS)
def test_bad_rows_stop_the_run_as_bad_lines_do(kind: str, tmp_path: Path) -> None:
    messages: list[str] = []
    for suffix in ("tsv", kind):
        path = write(tmp_path / f"f.{suffix}", FAULTY)
        with pytest.raises(DataError) as raised:
            corpus(path)
        messages.append(str(raised.value).replace(path, "FILE").replace("row", "line"))
    assert messages[0] == messages[1]
    path = write(tmp_path / f"long.{kind}", [*PAIRS, ("a b c " * 9, "d")])
    with pytest.raises(DataError, match=r"1 of 41 .*row 41 has a source of 27 tokens.*max_length"):
        corpus(path, data={"max_length": 20})


@pytest.mark.parametrize("kind", FORMATS)
def test_bad_rows_of_several_files_are_found(kind: str, tmp_path: Path) -> None:
    rows = [PAIRS[:3], [PAIRS[3], ("", "x")], [*PAIRS[4:9], ("y", " ")]]
    for number, part in enumerate(rows):
        write(tmp_path / f"part {number}.{kind}", part)
    pattern = f"{tmp_path}/part *.{kind}"
    expected = (
        f"row 5 has an empty source ({tmp_path}/part 1.{kind}, row 2); "
        f"row 11 has an empty target ({tmp_path}/part 2.{kind}, row 6)"
    )
    with pytest.raises(DataError, match=re.escape(expected)):
        corpus(pattern)
    listed = [f"row {number} {reason}" for number, reason in read_pairs(pattern).bad]
    assert "; ".join(listed) == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_are_named(kind: str, tmp_path: Path) -> None:
    rows = [("ignored", target, "V;PST", source) for source, target in PAIRS]
    path = write(tmp_path / f"f.{kind}", rows, ("x", "to", "tags", "from"))
    columns = {"source_column": "from", "target_column": "to"}
    plain = corpus(write(tmp_path / "f.tsv", PAIRS))
    assert examples(corpus(path, data=columns)) == examples(plain)
    result = corpus(path, [("a", "b", "V")], data={**columns, "features_column": "tags"})
    assert result.source.features == ("PST", "V")
    assert result.source.ids_to_tokens(result.train[0].source[-3:]) == ["V", "PST", "</s>"]
    missing = {
        "jsonl": "no row has the field tag ",
        "csv": "has no column tag: its columns are x, to, tags, from",
    }
    with pytest.raises(DataError, match=missing.get(kind, "has no column tag")):
        corpus(path, data={**columns, "features_column": "tag"})
    if kind != "jsonl":
        with pytest.raises(
            DataError, match="has no column source: its columns are x, to, tags, fr"
        ):
            corpus(path)
    with pytest.raises(
        DataError, match=r"columns are identified by name, got data\.features_column 3"
    ):
        corpus(path, data={**columns, "features_column": 3})
    with pytest.raises(
        DataError, match=r"columns are identified by number here, got data\.features_column tags"
    ):
        corpus(tmp_path / "f.tsv", data={"features_column": "tags"})
    with pytest.raises(ConfigError, match=r"data\.target_column names a column of a Parquet"):
        corpus(tmp_path / "f.tsv", data={"target_column": "to"})


def test_several_files_odd_names_and_byte_order_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = examples(corpus(write(tmp_path / "f.tsv", PAIRS)))
    for part, rows in enumerate((PAIRS[:15], PAIRS[15:])):
        write(tmp_path / f"part-{part}.parquet", rows)
    assert examples(corpus(tmp_path / "part-*.parquet")) == expected
    odd = tmp_path / "[0-9]*?{a}"
    odd.mkdir()
    monkeypatch.chdir(tmp_path)
    for kind in FORMATS:
        assert examples(corpus(write(odd / f"f [x].{kind}", PAIRS))) == expected
        write(tmp_path / f"zip:f.{kind}", PAIRS)
        assert examples(corpus(f"zip:f.{kind}")) == expected
        path = write(odd / f"a::b.{kind}", PAIRS)
        if kind == "csv":
            assert examples(corpus(path)) == expected
        else:
            with pytest.raises(DataError, match="its path contains ::, which is not supported"):
                corpus(path)
    for kind in ("jsonl", "csv"):
        path = Path(write(tmp_path / f"g.{kind}", PAIRS))
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert examples(corpus(path)) == expected


def test_the_second_run_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "f.parquet", PAIRS)
    first = corpus(path)

    def files() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.*") if p.is_file()}

    def fail(*_: object) -> None:
        raise AssertionError("trained again")

    before = files()
    assert len(before) > 3
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "train", fail)
        again = corpus(path)
    assert files() == before
    assert again.fingerprint() == first.fingerprint()
    assert examples(again) == examples(first)
    write(tmp_path / "f.parquet", PAIRS[::-1])
    changed = corpus(path)
    assert examples(changed) == examples(first)[::-1]
    assert changed.fingerprint() != first.fingerprint()
    assert len(corpus(path, source={"unit": "char"}).train[0].source) > 4


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_with_other_contents_and_the_same_time_is_read_again(
    kind: str, tmp_path: Path
) -> None:
    texts: list[list[str]] = []
    for rows in ([("ab", "x")], [("cd", "x")]):  # of the same size
        path = write(tmp_path / f"f.{kind}", rows)
        os.utime(path, (10**9, 10**9))
        texts.append(list(MappedPairs(path, settings(path).data).texts("source")))
    assert texts == [["ab"], ["cd"]]


def test_sources_are_held_out_by_hash(tmp_path: Path) -> None:
    rows = [(f"source {n % 60}", f"{n}") for n in range(180)]
    path = write(tmp_path / "f.parquet", rows)

    def held_out(seed: int) -> Corpus:
        return corpus(path, None, training={"seed": seed}, target={"unit": "whitespace"})

    result = held_out(1)
    assert len(result.dev_sources) == 3
    assert (len(result.dev), len(result.train)) == (9, 171)
    assert "dev: 9 pairs held out from the training pairs" in result.notes
    for (source, _), targets in zip(result.dev_sources, result.dev_references, strict=True):
        assert targets == [target for own, target in rows if own == source]
    used = {result.source.decode(example[0]) for example in examples(result)}
    assert used.isdisjoint(source for source, _ in result.dev_sources)
    assert held_out(1).dev_sources == result.dev_sources
    assert held_out(2).dev_sources != result.dev_sources
    with pytest.raises(
        DataError, match=r"only one source, .*; give validation pairs \(data\.dev, "
    ):
        corpus(write(tmp_path / "one.parquet", [("a", "b"), ("a", "c")]), None)


def test_batches_are_those_of_a_list(tmp_path: Path) -> None:
    result = corpus(write(tmp_path / "f.parquet", PAIRS), model={"copy": True, "attention": "dot"})
    assert isinstance(result.train, MappedExamples)
    listed = [result.train[index] for index in range(len(result.train))]
    assert all(example.copies for example in listed)
    assert [example.size for example in listed] == list(map(tuple, result.train.sizes.tolist()))
    for skip in (0, 3):
        batches = list(epoch(result.train, 40, 1, 0, skip))
        assert batches == list(epoch(listed, 40, 1, 0, skip))
        assert batches
    few = result.train.select(np.array([5, 2]))
    assert [few[0], few[1]] == [listed[5], listed[2]]


def losses(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    clock = ("minutes", "pairs_per_second", "target_tokens_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in clock} for line in lines]


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that trains on a file and returns its metrics."""

    def run(path: str, name: str, updates: int, resume: bool = False) -> list[dict[str, Any]]:
        values = {"max_updates": updates, "validate_every": 3, "batch_tokens": 30, "warmup": 2}
        config = settings(path, data={"dev": str(tmp_path / "dev.tsv")}, training=values)
        config = dataclasses.replace(config, out=str(tmp_path / name))
        regard.train(config, resume=resume)
        return losses(tmp_path / name)

    write(tmp_path / "dev.tsv", DEV)
    return run


def test_training_is_that_of_the_tsv_file_and_resumes_exactly(
    train: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    expected = train(write(tmp_path / "f.tsv", PAIRS), "tsv", 9)
    assert len(expected) == 3
    path = write(tmp_path / "f.jsonl", PAIRS)
    assert train(path, "whole", 9) == expected
    last = tmp_path / "whole" / "checkpoints" / "9.safetensors"
    end = last.read_bytes()
    last.unlink()
    assert expected[1]["epoch"] == expected[2]["epoch"] == 0  # update 6 is inside an epoch
    assert train(path, "whole", 9, resume=True) == expected
    for name, tensor in load(last.read_bytes()).items():
        assert tensor.equal(load(end)[name]), name
    write(tmp_path / "f.jsonl", PAIRS[:-1])
    with pytest.raises(regard.FolderError, match="was trained on other pairs"):
        train(path, "whole", 12, resume=True)


def test_rows_of_jsonl_that_hold_no_texts_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    lines = [
        '{"source": "a", "target": "b"}',
        '{"source": 5, "target": "b"}',
        '{"source": "a", "target": ["b"]}',
        '{"source": "a", "target": null}',
        '{"source": "a"}',
        '["a", "b"]',
        '{"source": "a", ',
        '{"source": "a\\ud800", "target": "b"}',
        "",
        '{"source": "a", "source": "b", "target": "c"}',
        '{"source": "a\\u0000", "target": "b"}',
        '{"target": "b\\u2028", "source": "2024-05-01"}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    reasons = (
        "row 2 has a number as source, expected text; "
        "row 3 has a list or an object as target, expected text; row 4 has an empty target; "
        "row 5 has no field target \\(data.target_column\\); row 6 is not a JSON object; row 7 is not valid "
        "JSON; "
        "row 8 has a lone surrogate in source; row 9 is empty; row 10 has 2 fields source; "
        "row 11 contains a NUL character; correct them"
    )
    with pytest.raises(DataError, match=f"10 of 12 rows cannot be used: {reasons}"):
        corpus(path)
    assert len(corpus(path, data={"bad_lines": "skip"}).train) == 2


def test_every_row_of_csv_has_one_field_per_column(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    first = [f"{n},{'b' * 1000}" for n in range(1500)]  # more than a block of any reader
    last = ['"a\nb","c"', "hello,well, hello there", "", "short", '"x" y,z', "a\0,b", 'say "a",b']
    path.write_text("\n".join(["source,target", *first, *last, ""]), encoding="utf-8")
    reasons = (
        "row 1502 has 3 fields, expected 2; row 1503 is empty; row 1504 has 1 field, expected 2; "
        "row 1505 is not valid CSV .*; row 1506 contains a NUL character; correct them"
    )
    with pytest.raises(DataError, match=f"5 of 1,507 rows cannot be used: {reasons}"):
        corpus(path)
    result = corpus(path, None, data={"bad_lines": "skip"}, training={"seed": 1})
    assert len(result.train) + len(result.dev) == 1502


def test_long_fields_of_csv_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, last = ("source", "target", "document"), ("c", "d", "short")
    limit = csv.field_size_limit()
    for document in ("x" * 140_000 + "\nfoo,bar,baz\n", "a line\n" * 20_000):
        path = write(tmp_path / "f.csv", [("a", "b", document), last], names)
        assert read_pairs(path).pairs == [("a", "b", None), ("c", "d", None)]
    assert csv.field_size_limit() == limit
    monkeypatch.setattr(table_files, "_MOST_CHARACTERS", 130_000)
    path = write(tmp_path / "long.csv", [("a", "b", "x" * 140_000 + "\nfoo,bar,baz"), last], names)
    with pytest.raises(DataError, match="the row on line 2 has a field of more than 130,000 char"):
        read_pairs(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_variables_in_a_path_are_not_expanded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "other")
    write(tmp_path / f"other.{kind}", [("c", "z")])
    path = write(tmp_path / f"$NAME.{kind}", [("a", "x"), ("b", "y")])
    for name in (path, tmp_path / f"$NAM*.{kind}"):
        if kind == "csv":
            assert read_pairs(name).texts("target") == ["x", "y"]
            continue
        with pytest.raises(
            DataError, match=r"NAME\..*: its path contains a variable, such as \$HOME"
        ):
            read_pairs(name)
    monkeypatch.delenv("NAME")
    assert read_pairs(path).texts("target") == ["x", "y"]


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_with_other_roles_are_read_again(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"f.{kind}", [("a", "x"), ("b", "y")], ("text", "tag"))
    columns = {"source_column": "text", "target_column": "tag"}
    pairs = MappedPairs(path, settings(path, data=columns).data)
    assert list(pairs.texts("target")) == ["x", "y"]
    columns = {"source_column": "text", "target_column": "text", "features_column": "tag"}
    pairs = MappedPairs(path, settings(path, data=columns).data)
    assert list(pairs.texts("target")) == ["a", "b"]
    assert list(pairs.texts("features")) == ["x", "y"]


def test_a_parquet_file_without_rows_is_named(tmp_path: Path) -> None:
    write(tmp_path / "f-0.parquet", PAIRS)
    empty = pa.table({name: pa.array([], pa.string()) for name in ("source", "target")})
    parquet.write_table(empty, tmp_path / "f-1.parquet")
    for name in ("f-1", "f-*"):
        with pytest.raises(DataError, match=r"f-1\.parquet contains no pair; expected rows of"):
            corpus(tmp_path / f"{name}.parquet")


def test_a_parquet_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    texts = pa.array([b"\xff"]).view(pa.string())
    parquet.write_table(pa.table({"source": texts, "target": texts}), tmp_path / "f.parquet")
    for read in (read_pairs, corpus):
        with pytest.raises(
            DataError, match=r"f\.parquet: not UTF-8; convert the file to UTF-8 first"
        ):
            read(tmp_path / "f.parquet")


@pytest.mark.parametrize("column", ["source", "features"])
def test_a_row_with_too_many_combining_characters_is_bad(column: str, tmp_path: Path) -> None:
    marks = "a" + "\u0301" * 1100
    rows = [{"source": "a", "target": "b", "features": "V"} for _ in range(40)]
    for index, row in enumerate(rows):
        row["source"] = str(index)
    rows[1][column] = marks
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    options = {"features_column": "features"}
    with pytest.raises(DataError, match=r"f\.jsonl: .*row 2 "):
        make_corpus(settings(path, data=options), None, None)
    skipping = settings(path, data={**options, "bad_lines": "skip"})
    corpus = make_corpus(skipping, None, None)
    assert len(corpus.train) + len(corpus.dev) == 39


def test_a_file_of_a_pattern_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write(tmp_path / "f-1.jsonl", PAIRS)
    (tmp_path / "f-2.jsonl").write_bytes(b'{"source": "a", "target": "b"}\n{"source": "\xff"}\n')
    with pytest.raises(DataError, match=r"f-2\.jsonl, line 2: not UTF-8"):
        corpus(tmp_path / "f-*.jsonl")


def test_nul_in_parquet_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [("a", "b"), ("c\0", "d"), ("e", "f\0")])
    with pytest.raises(DataError, match=r"row 2 contains a NUL character \(likewise 3\)"):
        corpus(path)


def test_nulls_of_parquet_are_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [("a", None), (None, "b"), ("c", "d")])
    with pytest.raises(
        DataError, match="row 1 has an empty target; row 2 has an empty source; cor"
    ):
        corpus(path)


@pytest.mark.parametrize("role", ["train", "dev"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.parquet", None, "cannot read .*missing.parquet: No such file"),
        ("f.parquet", b"no parquet", "cannot read .*f.parquet: .*(magic bytes|footer)"),
        (
            "f.csv",
            b"source,target\na,b\nc,d,e\n",
            "f.csv: 1 of 2 rows .*: row 2 has 3 fields, expec",
        ),
        (
            "f.csv",
            b'source,target\na,"b\nc,d\n',
            r"f.csv: the row on lines 2 to 3 is not valid CSV \(unex",
        ),
        ("f.csv", b"source,source,target\n", "f.csv has 2 columns source; rename all but one"),
        (
            "f.csv",
            b"source,target\na,\xff\n",
            "f.csv, line 2: not UTF-8; convert the file to UTF-8 first",
        ),
        ("f.CSV", b"source,target\n", "f.CSV contains no pair; expected rows of source and target"),
        ("f.csv", b"", "f.csv is empty; expected a line with the column names"),
        (
            "f.jsonl",
            b'{"source": "\xff"}\n',
            "f.jsonl, line 1: not UTF-8; convert the file to UTF-8 first",
        ),
        ("f.jsonl", b"", "f.jsonl contains no pair; expected rows of source and target"),
        ("f.csv", b"source,target\n", "f.csv contains no pair; expected rows of source and target"),
        ("f.jsonl.gz", b"", "f.jsonl.gz: decompress it first"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    role: str, name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    train, data = tmp_path / name, {}
    if role == "dev":
        train, data = Path(write(tmp_path / "train.tsv", PAIRS)), {"dev": str(train)}
    with pytest.raises(DataError, match=message):
        make_corpus(settings(train, data=data), None, None)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    path = write(tmp_path / "f.parquet", PAIRS)
    with pytest.raises(
        DataError, match=r"cannot read .*f.parquet: Not a directory \(.*/file/cache"
    ):
        corpus(path)


@pytest.mark.parametrize("damage", ["empty", "shortened", "changed", "removed"])
def test_a_damaged_cache_is_named_or_made_again(damage: str, tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", PAIRS)

    def outcome() -> str:
        try:
            return corpus(path).fingerprint()
        except DataError as error:
            return str(error)

    expected = outcome()
    message = rf"the cache of {path} is damaged \(.+\); delete {tmp_path}/cache/regard/.+"
    outcomes: list[str] = []
    for file in sorted((tmp_path / "cache").rglob("*.*")):
        if file.suffix != ".arrow" and (file.suffix != ".json" or damage == "changed"):
            continue
        content = file.read_bytes()
        middle = len(content) // 2
        file.unlink()
        if damage != "removed":
            changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            file.write_bytes({"empty": b"", "shortened": content[:middle]}.get(damage, changed))
        outcomes.append(outcome())
        assert outcomes[-1] == expected or re.fullmatch(message, outcomes[-1]), file
        file.unlink(missing_ok=True)
        file.write_bytes(content)
    assert set(outcomes) != {expected}
    assert damage == "changed" or expected in outcomes


@pytest.mark.parametrize("reported", ["by the system", "by datasets"])
def test_a_full_disk_of_the_cache_is_not_called_damage(
    reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import arrow_dataset, builder

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if reported == "by datasets":
        monkeypatch.setattr(builder, "has_sufficient_disk_space", lambda *_, **__: False)
    else:
        monkeypatch.setattr(arrow_dataset.ArrowWriter, "write_table", full)
    with pytest.raises(
        DataError, match=r"cannot write the cache of .*/cache: No space left .*; free"
    ):
        MappedPairs(write(tmp_path / "f.jsonl", PAIRS), Config().data)


def test_columns_of_numbers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [(1, "a")])
    with pytest.raises(DataError, match="column source contains int64 values, not text; convert"):
        corpus(path)
    table = pa.table({"source": pa.array(["a"]).dictionary_encode(), "target": ["b"]})
    parquet.write_table(table, path)
    assert len(corpus(path).train) == 1


def test_without_the_extra_one_sentence_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ExtraError, match=r"f.csv needs the package datasets: pip install 'regard\[data\]'"
    ):
        corpus(tmp_path / "f.csv")


def test_features_of_a_model_that_is_trained_further(tmp_path: Path) -> None:
    tokenizers = (Tokenizer.train(["a"], settings("x").source),) * 2
    path = write(tmp_path / "f.csv", [("a", "b", "V")], ("source", "target", "tags"))
    config = settings(path, data={"features_column": "tags"})
    with pytest.raises(ConfigError, match=r"data\.features_column tags: leave it out"):
        make_corpus(config, None, [("a", "b", "V")], tokenizers)


@pytest.mark.slow
def test_nothing_connects_to_another_host(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", PAIRS)
    code = f"""
import socket, sys
def refuse(*_): sys.exit("a connection was attempted")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from regard.config import from_dict
from regard.corpus import make_corpus
print(len(make_corpus(from_dict({{"data": {{"train": {path!r}}}}}), None, None).train))
"""
    environment = {"HF_HOME": str(tmp_path / "home"), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert (result.stdout, result.returncode) == ("38\n", 0), result.stderr


@pytest.mark.parametrize(
    ("suffix", "empty"), [("jsonl", ""), ("csv", "source,target\n"), ("csv", "source,target\n\n")]
)
def test_an_empty_file_among_several_is_named(tmp_path: Path, suffix: str, empty: str) -> None:
    write(tmp_path / f"a.{suffix}", PAIRS)
    (tmp_path / f"b.{suffix}").write_text(empty)
    with pytest.raises(DataError, match=rf"b\.{suffix} contains no pair"):
        corpus(tmp_path / f"*.{suffix}")


def test_upper_case_suffixes_are_those_of_tables(tmp_path: Path) -> None:
    expected = examples(corpus(write(tmp_path / "f.csv", PAIRS)))
    assert examples(corpus((tmp_path / "f.csv").rename(tmp_path / "F.CSV"))) == expected


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "TABs")])
def test_other_separators_of_a_csv_file_are_named(
    tmp_path: Path, separator: str, name: str
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(f"source{separator}target\na{separator}b\n")
    with pytest.raises(DataError, match=f"its columns are separated by {name}; separate them by"):
        read_pairs(path)
