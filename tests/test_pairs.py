from pathlib import Path

import numpy as np
import pytest

from regard.config import DataConfig
from regard.errors import DataError
from regard.pairs import Pair, group_by_source, pairs_from, read_pairs, to_pairs


def test_a_tsv_file_gives_pairs_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("a b\tA\n\nc\tC\textra\tmore\nd\u2028e\tD\x85E\n", encoding="utf-8", newline="")
    result = read_pairs(str(path))
    assert result.pairs == [Pair("a b", "A"), Pair("c", "C"), Pair("d\u2028e", "D\x85E")]
    assert result.numbers == [1, 3, 4]
    assert result.extra_columns == 1
    assert result.bad == [(2, "is empty")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (" \t ", "is empty"),
        ("only", "has no second column (TAB)"),
        ("only spaces here", "has no second column (TAB)"),
        ("\tA", "has an empty source"),
        (" \tA", "has an empty source"),
        ("a\t", "has an empty target"),
        ("a\t \tthird", "has an empty target"),
    ],
)
def test_a_bad_line_is_listed_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "f.tsv"
    path.write_text(f"x\ty\n{line}\nz\tw\n")
    result = read_pairs(path)
    assert result.bad == [(2, reason)]
    assert [pair.source for pair in result.pairs] == ["x", "z"]
    with pytest.raises(
        DataError, match=r"f\.tsv: 1 of 3 lines cannot be used: line 2 .*; correct it"
    ):
        result.require_valid("correct it")


@pytest.mark.parametrize(("column", "line"), [(1, "V;PST\ttocar"), (2, "tocar\tV;PST")])
def test_a_line_with_features_and_no_target_is_listed_with_its_reason(
    column: int, line: str, tmp_path: Path
) -> None:
    path = tmp_path / "f.tsv"
    path.write_text(f"{line}\n")
    parsed = read_pairs(path, DataConfig(features_column=column))
    assert parsed.bad == [
        (1, f"has no column with a target, besides column {column} with features")
    ]


def test_a_long_list_of_bad_lines_is_truncated() -> None:
    result = pairs_from([("", "x")] * 1234)
    with pytest.raises(
        DataError,
        match=r"1,234 of 1,234 .* pair 1 has an empty source \(likewise 2, 3, .*, 19, 20\); and 1,214",
    ):
        result.require_valid("correct them")


def test_a_file_without_pairs_is_refused_with_its_first_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("a b\nc\n")
    with pytest.raises(
        DataError, match=r"no pair \(line 1 has no second column \(TAB\)\); expected"
    ):
        read_pairs(path).require_valid(None)


class Quoted(str):
    def __str__(self) -> str:
        return f"'{super().__str__()}'"


def test_subclasses_of_strings_become_plain_strings() -> None:
    pairs = pairs_from([tuple(np.array(["a", "b"])), (Quoted("a"), "b")]).pairs
    assert pairs == [("a", "b", None)] * 2
    for pair in pairs:
        assert [type(field) for field in pair] == [str, str, type(None)]


def test_pairs_of_lines_lose_their_line_endings() -> None:
    (pair,) = to_pairs([("a \r\n", "b\n\n", "c\n")])
    assert pair == Pair("a ", "b\n", "c")


def test_valid_pairs_raise_nothing() -> None:
    pairs_from([("a", "b")]).require_valid("")


def test_lines_of_parallel_files_are_paired(tmp_path: Path) -> None:
    (tmp_path / "f.src").write_text("a\tx\nb\n\n")
    (tmp_path / "f.tgt").write_text("A\n\nC\n")
    result = read_pairs(f"{tmp_path / 'f.src'},{tmp_path / 'f.tgt'}")
    assert result.pairs == [Pair("a\tx", "A")]
    assert result.bad == [(2, "has an empty target"), (3, "has an empty source")]
    assert read_pairs(f"{tmp_path / 'f.src'}, {tmp_path / 'f.tgt'}").pairs == result.pairs


def test_more_than_two_files_are_refused() -> None:
    with pytest.raises(DataError, match=r"a,b,c names 3 files; expected one file, or two parallel"):
        read_pairs("a,b,c")


def test_parallel_files_must_be_equally_long(tmp_path: Path) -> None:
    (tmp_path / "f.src").write_text("a\nb\n")
    (tmp_path / "f.tgt").write_text("A\n")
    with pytest.raises(DataError, match=r"f\.src has 2 lines and .*f\.tgt 1; parallel files must"):
        read_pairs(f"{tmp_path / 'f.src'},{tmp_path / 'f.tgt'}")


def test_a_tsv_file_may_have_a_comma_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a,b.tsv").write_text("a\tA\n")
    assert read_pairs(str(tmp_path / "a,b.tsv")).pairs == [Pair("a", "A")]


def test_features_are_read_from_any_column(tmp_path: Path) -> None:
    last, middle, first = (tmp_path / name for name in ("last.tsv", "middle.tsv", "first.tsv"))
    last.write_text("run\tran\tV;PST\nsee\tsaw\tV;PST\textra\n", encoding="utf-8")
    middle.write_text("run\tV;PST\tran\n", encoding="utf-8")
    first.write_text("V;PST\trun\tran\n", encoding="utf-8")
    result = read_pairs(str(last), DataConfig(features_column=3))
    assert result.pairs == [Pair("run", "ran", "V;PST"), Pair("see", "saw", "V;PST")]
    assert result.extra_columns == 1
    assert read_pairs(str(middle), DataConfig(features_column=2)).pairs == [
        Pair("run", "ran", "V;PST")
    ]
    assert read_pairs(str(first), DataConfig(features_column=1)).pairs == [
        Pair("run", "ran", "V;PST")
    ]


def test_lines_without_their_features_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("run\tran\tV\nsee\tsaw\n\n\tx\tV\nsee\t\tV\ngo\tgo\t\n", encoding="utf-8")
    result = read_pairs(str(path), DataConfig(features_column=3))
    assert result.pairs == [Pair("run", "ran", "V"), Pair("go", "go", "")]
    assert result.numbers == [1, 6]
    assert [tuple(bad) for bad in result.bad] == [
        (2, "has no column 3 with features"),
        (3, "is empty"),
        (4, "has features but no source"),
        (5, "has an empty target"),
    ]


def test_parallel_files_have_no_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="parallel files have no columns, so features_column 3"):
        read_pairs(f"{tmp_path / 'a'},{tmp_path / 'b'}", DataConfig(features_column=3))


def test_group_by_source_keeps_the_first_seen_order() -> None:
    pairs = [Pair("b", "1"), Pair("a", "2"), Pair("b", "3"), Pair("b", "1"), Pair("b", "1", "V")]
    keys = [("b", None), ("a", None), ("b", "V")]
    assert group_by_source(pairs) == (keys, [["1", "3"], ["2"], ["1"]])
    assert group_by_source([]) == ([], [])
