"""Dictionaries: listed sources are answered from a file, the others by the model."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.cli.export import _read_dictionary
from regard.cli.main import main
from regard.errors import ConfigError, DataError
from regard.translation import Translation

LISTED = "Te Quiero\ti adore you\nte quiero\ti want you\tnote\nhola\thi\n"


@pytest.fixture(scope="module")
def translator() -> regard.Translator:
    return regard.Translator.load("phrasebook", "cpu")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.tsv"
    path.write_text(LISTED)
    return path


def _single(output: object) -> Translation:
    assert isinstance(output, Translation)
    return output


def test_listed_sources_are_answered_from_the_file(
    translator: regard.Translator, words: Path
) -> None:
    dictionary = regard.Dictionary.read(words, translator)
    texts = ["me gusta mi casa", "TE QUIERO ", "", "hola"]
    outputs = dictionary.translate(texts)
    assert isinstance(outputs, list)
    model = translator.translate(["me gusta mi casa", ""])
    assert [outputs[0], outputs[2]] == model
    first = _single(outputs[1])
    assert (first.text, first.score, first.probability) == ("i adore you", 0, 1)
    assert _single(dictionary.translate("hola")).text == "hi"
    lists = dictionary.translate(texts, n_best=3)
    assert [[output.text for output in best] for best in lists][1] == ["i adore you", "i want you"]
    assert lists[0] == translator.translate("me gusta mi casa", n_best=3)
    assert lists[1][0].margin == 0
    assert len(lists[2]) == 3
    assert lists[3][0].margin == 1


def test_the_attention_of_a_listed_target_is_that_of_forced_decoding(
    translator: regard.Translator, words: Path
) -> None:
    output = _single(regard.Dictionary.read(words, translator).translate("te quiero"))
    forced = translator.align("te quiero", "i adore you")
    assert output.attention is not None
    assert forced.attention is not None
    # both targets of the source are decoded in one batch
    assert np.allclose(output.attention, forced.attention, atol=1e-5)
    assert (output.tokens, output.alignment()) == (["i", "adore", "you"], forced.alignment())
    unknown = _single(regard.Dictionary(translator, [("zzz", "z-z z")]).translate("zzz"))
    assert (unknown.text, unknown.warning, unknown.unknown) == ("z-z z", None, [])


def test_a_compressed_file_is_read_and_repeated_lines_are_counted(
    translator: regard.Translator, tmp_path: Path
) -> None:
    path = tmp_path / "words.tsv.gz"
    path.write_bytes(gzip.compress((LISTED + "hola\thi\nTE QUIERO\ti want you\n").encode()))
    repeated: list[int] = []
    dictionary = regard.Dictionary.read(path, translator, repeated.append)
    assert repeated == [4, 5]
    assert dictionary.lookup("te quiero") == ["i adore you", "i want you"]
    assert dictionary.lookup(("hola", None)) == ["hi"]
    assert dictionary.lookup("adiós") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hola\thi\nadiós\n", r"words\.tsv: 1 of 2 lines cannot be used: line 2 "),
        ("hola\t\n", r"words\.tsv: 1 of 1 line cannot be used: line 1 "),
        ("", r"words\.tsv contains no pair"),
        ("a" + "\u0301" * 2000 + "\tx\n", r"words\.tsv: .* line 1 has more than 1,000 combining"),
    ],
)
def test_malformed_files_are_reported_with_their_lines(
    translator: regard.Translator, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "words.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        regard.Dictionary.read(path, translator)
    with pytest.raises(DataError, match=r"cannot read .*missing\.tsv"):
        regard.Dictionary.read(tmp_path / "missing.tsv", translator)


def test_invalid_settings_are_refused_also_where_everything_is_listed(
    translator: regard.Translator, words: Path
) -> None:
    with pytest.raises(ConfigError, match="n_best must be at least 1"):
        regard.Dictionary.read(words, translator).translate("hola", n_best=0)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"si": "yes"}, "expected .source, target."),
        ([("a", "b", "c")], "lists sources without features"),
        (["ab"], "expected .source, target."),
    ],
)
def test_pairs_are_checked(translator: regard.Translator, pairs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        regard.Dictionary(translator, pairs)
    listed = regard.Dictionary(translator, [("te quiero\n", "x y\n")])
    assert listed.translate("te quiero").text == "x y"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def translate(tmp_path: Path, words: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    lines = tmp_path / "lines.txt"
    lines.write_text("TE QUIERO\n\nme gusta mi casa\nhola\n")

    def run(*options: str) -> tuple[int, str, str]:
        command = ["translate", "phrasebook", str(lines), "--dictionary", str(words)]
        status = main([*command, *options])
        return status, *capsys.readouterr()

    return run


def test_the_command_answers_from_the_file(translate: Run, words: Path) -> None:
    assert translate() == (0, "i adore you\n\ni like my house\nhi\n", "")
    _, ranked, _ = translate("--n-best", "2")
    rows = [line.split("\t") for line in ranked.splitlines()]
    assert rows[:2] == [["1", "1", "0.000000", "i adore you"], ["1", "2", "0.000000", "i want you"]]
    assert rows[-1] == ["4", "1", "0.000000", "hi"]
    _, confidence, _ = translate("--confidence")
    columns = [line.split("\t")[1:] for line in confidence.splitlines()]
    assert columns[0] == ["1.000000", "0.000000"]
    assert columns[3] == ["1.000000", "1.000000"]
    words.write_text(LISTED + "hola\thi\n")
    assert translate()[2] == (
        f"regard: {words}: 1 line without effect, because an earlier line is the same: 4\n"
    )


def test_an_output_stays_in_its_column(translate: Run, tmp_path: Path) -> None:
    listed = tmp_path / "listed.jsonl"
    listed.write_text(json.dumps({"source": "hola", "target": "X\tY\rZ\n!"}) + "\n")
    _, out, _ = translate("--dictionary", str(listed), "--confidence")
    assert out.split("\n")[3] == "X Y Z !\t1.000000\t1.000000"


def test_export_reports_repeated_lines(
    translator: regard.Translator, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words.write_text(LISTED + "hola\thi\n")
    assert _read_dictionary(str(words), translator)["hola"] == ["hi"]
    assert (
        "1 line without effect, because an earlier line is the same: 4" in capsys.readouterr().err
    )


def test_attention_and_alignments_are_written_for_every_output(
    translate: Run, tmp_path: Path
) -> None:
    attention, alignments = tmp_path / "attention.jsonl", tmp_path / "alignments"
    status, out, _ = translate("--attention", str(attention), "--alignments", str(alignments))
    assert status == 0
    entries = [json.loads(line) for line in attention.read_text().splitlines()]
    assert [entry["text"] for entry in entries] == out.splitlines()
    for entry in entries:
        assert np.shape(entry["attention"])[:1] == (len(entry["tokens"]),)
    assert len(alignments.read_text().splitlines()) == 4


@pytest.mark.parametrize("option", ["--prefix=i", "--pin=0:0=0.5", "--ablate-heads=0:0"])
def test_interventions_do_not_apply_to_a_dictionary(translate: Run, option: str) -> None:
    status, out, error = translate(option)
    assert (status, out) == (1, "")
    name = option.split("=")[0]
    assert f"{name} does not apply to the outputs of a dictionary; omit it or --dictionary" in error


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--n-best=0", "n_best must be at least 1, got 0"),
        ("--beam-size=5000", "beam_size must be at most 1,000, got 5,000"),
        ("--length-penalty=-1", "length_penalty must lie in [0, 10], got -1"),
    ],
)
def test_options_of_a_search_are_checked_if_all_lines_are_listed(
    translate: Run, tmp_path: Path, option: str, message: str
) -> None:
    (tmp_path / "lines.txt").write_text("hola\n")
    status, out, error = translate(option)
    assert (status, out) == (1, "")
    assert message in error


def test_a_dictionary_cannot_be_overwritten(translate: Run, words: Path) -> None:
    status, _, error = translate("--out", str(words))
    assert (status, words.read_text()) == (1, LISTED)
    assert "would overwrite the input" in error


def test_models_with_features_have_no_dictionary(tmp_path: Path) -> None:
    pairs = [("ir", "voy", "V;1"), ("ir", "vas", "V;2")]
    config = regard.Config(
        model=regard.ModelConfig(embedding_dim=4, encoder_dim=4, decoder_dim=4, attention_dim=4),
        training=regard.TrainingConfig(max_updates=1),
        data=regard.DataConfig(features_column=3),
        out=str(tmp_path / "model"),
    )
    translator = regard.train(config, pairs, pairs)
    with pytest.raises(ConfigError, match="lists sources without features, which this model reads"):
        regard.Dictionary(translator, [])
