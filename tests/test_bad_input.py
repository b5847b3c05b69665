"""Bad input, wherever it enters: one sentence, never a traceback, a hang or executed content."""

import contextlib
import errno
import gzip
import io
import json
import os
import pickle
import shutil
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

import regard
from regard import demo, model_folder
from regard.alignment import GoldAlignment, check_links
from regard.cli.main import COMMANDS, main
from regard.cli.parser import Parser, add_settings
from regard.config import GROUPS, Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
from regard.errors import (
    ConfigError,
    DataError,
    FolderError,
    RegardError,
    is_out_of_memory,
    is_utf8,
)
from regard.files import require_empty_folder
from regard.lines import read_lines
from regard.pairs import pairs_from, to_pairs
from regard.text import Tokenizer, unknown_tokens_message
from regard.text.normalization import normalize
from regard.translator import Translator
from test_model_folder import Trap, make

Call = Callable[..., str]
ANY_CASE = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs the command in this process and returns the line of its error."""

    def call(*arguments: object, status: int = 1) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        return err.removesuffix("\n")

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder")
    make(path, attention="dot")  # no kernels to compile
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copied")


@pytest.fixture(scope="module", autouse=True)
def _unchecked() -> Iterator[None]:
    """Disable the run-time checks of annotations, so that the package raises its own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# The boundary of the command


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.EIO, "Input/output error", "pairs.tsv"), "pairs.tsv: Input/output error"),
        (MemoryError(), "there is not enough memory; use less data"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "not enough memory",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "not enough memory"),
        (RuntimeError("could not create a primitive"), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deeply"),
        (SafetensorError("Error while deserializing header"), "Error while deserializing header"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
        (DataError("there are no pairs"), "there are no pairs"),
    ],
)
def test_errors_become_a_sentence_and_debug_shows_the_traceback(
    sentence: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    message: str,
) -> None:
    def fail(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr("regard.cli.data.run", fail)
    line = sentence("data")
    assert line.startswith("regard data: ")
    assert message in line
    assert main(["data", "--debug"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.endswith(f"{line}\n")


def test_what_onednn_cannot_compute_is_no_lack_of_memory() -> None:
    problem = "could not create a primitive descriptor for the LSTM forward propagation primitive"
    assert not is_out_of_memory(RuntimeError(problem))


def test_a_defect_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        raise KeyError("defect")

    monkeypatch.setattr("regard.cli.data.run", fail)
    with pytest.raises(KeyError):
        main(["data"])


def test_every_command_takes_debug(sentence: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--help"]) == 0
    assert "--debug" in capsys.readouterr().out
    assert main(["translate", "nowhere", "--debug"]) == 1
    assert "FolderError" in capsys.readouterr().err


class FullDisk(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["data", "--help"]])
def test_a_full_output_is_reported(
    sentence: Call, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    stream = io.TextIOWrapper(io.BufferedWriter(FullDisk()), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert sentence(*arguments).endswith("No space left on device")
    with pytest.raises(OSError):
        stream.close()


def test_a_full_output_is_not_taken_for_another_file(
    sentence: Call, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("a b\n" * 9)
    arguments = ["translate", folder, tmp_path / "lines", "--attention", tmp_path / "weights"]
    stream = io.TextIOWrapper(io.BufferedWriter(FullDisk()), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert "cannot write standard output: No space left" in sentence(*arguments)
    with pytest.raises(OSError):
        stream.close()
    assert os.listdir(tmp_path) == ["lines"]


class NoReader(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_files_are_written_before_lines_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "pairs").write_text("a\tb\n")
    written = tmp_path / "weights"
    monkeypatch.setattr(sys, "stdout", NoReader())
    assert main(["align", str(folder), str(tmp_path / "pairs"), "--attention", str(written)]) == 0
    assert len(written.read_text().splitlines()) == 1


def test_closed_streams_are_reported(
    sentence: Call, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        assert "standard input is closed; give a file" in sentence("translate", folder)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert "standard output is closed; redirect it" in sentence("--version")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert main(["translate", str(tmp_path / "nowhere")]) == 1
        sys.stderr.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "copy", "--out", "bad\udcff"],
        ["train", "--data.train", "\udc80.tsv", "--out", "m"],
        ["serve", "m", "--example", "a\udcc3"],
        ["\ud800"],
    ],
)
def test_arguments_must_be_utf8(
    sentence: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence(*arguments, status=2).endswith("is not UTF-8")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", [["data", "copy"], ["demo"], ["train", "--data.train", "x"]])
def test_a_name_that_is_too_long_is_reported(sentence: Call, command: list[str]) -> None:
    assert "File name too long" in sentence(*command, "--out", "x" * 300)


def test_the_name_of_an_output_folder_is_checked_in_python(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot use .*: File name too long; choose another"):
        require_empty_folder(tmp_path / ("x" * 300))
    for name in ("bad\udcff", "bad\0"):
        with pytest.raises(ConfigError, match="out takes UTF-8 without NUL"):
            Config(out=name)


def test_the_demo_replaces_its_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "own")
    demo.new_folder(tmp_path / "link")
    (tmp_path / "own" / "model").mkdir()
    demo.new_folder(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "own" / "model").exists()


# Settings


BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (BOMB, 2, "at most 1,000 values"),
        ("model: " + "[" * 100_000, 2, "10 levels of nesting"),
        ("a:\n" + "".join(" " * i + "a:\n" for i in range(1, 500)), 2, "10 levels of nesting"),
        ("model: &a [*a]", 2, "contains itself"),
        ("model: *a", 2, "undefined alias"),
        ("model: !!python/object/apply:os.mkdir [pwned]", 2, "could not determine a constructor"),
        (b"out: \xe9\xff", 1, "c.yaml, line 1: not UTF-8 (byte 6 of the line)"),
        (gzip.compress(b"model: {}", mtime=0), 1, "c.yaml, line 1: not UTF-8 (byte 2 of the line)"),
        (b"model: \x00", 2, "characters are not allowed"),
        ("training: {weight_decay: .nan}", 1, "weight_decay must be at least 0, got nan"),
        ("training: {learning_rate: .inf}", 1, "learning_rate must be at most"),
        ("training: {warmup: 1" + "0" * 400 + "}", 1, "warmup must be at most"),
        ("model: {encoder_dim: 1000000000000}", 1, "encoder_dim must be at most 1,000,000"),
        ("model: {encoder_layers: 100000}", 1, "encoder_layers must be at most 1,000"),
        ("source: {vocabulary_size: 1000000000000}", 1, "vocabulary_size must be at most"),
        ('data: {train: "a\\0b"}', 1, "data.train takes UTF-8 without NUL"),
        ('data: {train: "\\ud800"}', 2, "invalid Unicode character"),
        ("config: 0", 2, "config is not a setting"),
        ("config: c.yaml", 2, "config is not a setting"),
        (
            "model: {encoder_dim: 8}\nmodel: {heads: 2}",
            2,
            "model is set twice, the second time on line 2",
        ),
        (
            "model.heads: 1\nmodel: {heads: 2}",
            2,
            "model.heads is set twice, the second time on line 2",
        ),
        ("model: {heads: 1, heads: 2}", 2, "model.heads is set twice, the second time on line 1"),
        ("model: {encoder_dim: 1" + "0" * 5000 + "}", 2, "value has 5001 digits"),
        ("target: {vocabulary_size: 0}", 1, "train: target.vocabulary_size must be at least 5"),
        ("data: {train: 5}", 2, "data.train takes a string, got 5"),
        ("training: [patience: 2]", 1, "training takes settings by name, got [{'patience': 2}]"),
        ("training: 5", 1, "training takes settings by name, got 5"),
        (
            "members: 2\nmember: [{model.decoder: bahdanau}]",
            1,
            "member takes a list of texts, such as",
        ),
        ("members: 2\nmember: model.decoder=bahdanau", 1, "member takes a list of texts, such as"),
        ("data: {max_length: 10001}", 1, "max_length must be at most 10,000"),
    ],
)
def test_settings_that_cannot_be_used_are_reported(
    sentence: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | bytes,
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    options = ("--out", "m", "--config", "c.yaml")
    assert message in sentence("train", *options, status=status)
    # an option of the same group does not replace the settings in the file
    assert message in sentence("train", *options, "--training.seed", "2", status=status)
    assert os.listdir(tmp_path) == ["c.yaml"]


def test_aliases_in_settings_remain_usable(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("source: &side {unit: char}\ntarget: *side\n")
    parser = Parser()
    add_settings(parser)
    args = parser.parse_args([f"--config={tmp_path / 'c.yaml'}"])
    assert (args.source.unit, args.target.unit) == ("char", "char")


# Texts and links


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0344"])
def test_endless_accents_are_refused(marks: str) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        with pytest.raises(DataError, match="1,000 combining characters in a row, up to character"):
            normalize("a" + marks * 200_000, form)
    assert normalize("a" + marks * 200_000, "none").startswith("a")
    assert len(normalize("x" + "é" * 5000 + "a" + "\u0301\u0323" * 400, "NFD")) == 10_802


def test_a_file_larger_than_memory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(file: gzip.GzipFile, size: int) -> bytes:
        raise MemoryError

    (tmp_path / "bomb.gz").write_bytes(b"")
    monkeypatch.setattr(gzip.GzipFile, "read", read)
    with pytest.raises(DataError, match=r"bomb\.gz: there is not enough memory"):
        read_lines(tmp_path / "bomb.gz")


@pytest.mark.parametrize("pairs", [[("a",)], "ab", [("a", "b"), ("a", "b", "c", "d")], [""]])
def test_pairs_have_two_or_three_fields(pairs: Any) -> None:
    with pytest.raises(DataError, match=r"expected \(source, target\) or .* as pair [12], got"):
        to_pairs(pairs)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((None, "a"), "expected a string as source of pair 2, got None"),
        (("a", float("nan")), "expected a string as target of pair 2, got nan"),
        ((0, "a", "b"), "expected a string as source of pair 2, got 0"),
        (("a", "b", float("nan")), "expected a string as features of pair 2, got nan"),
        (None, "as pair 2, got None"),
        ({"source": "a", "target": "b"}, "as pair 2, got {'source'"),
    ],
)
def test_pairs_hold_text(pair: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        regard.fit([("a", "b", None), pair])


@pytest.mark.parametrize("name", ["source", "target", "features"])
def test_pairs_with_lone_surrogates_are_bad_lines(name: str) -> None:
    pair = {"source": "a", "target": "b", "features": "V"} | {name: "\ud83d"}
    parsed = pairs_from([("a", "b", "V"), (pair["source"], pair["target"], pair["features"])])
    assert parsed.numbers == [1]
    assert parsed.bad == [(2, f"has a lone surrogate in its {name}")]


@pytest.mark.parametrize("name", ["source", "target", "features"])
def test_pairs_with_too_many_combining_characters_are_bad_lines(name: str) -> None:
    values = {"source": "a", "target": "b", "features": "V"}
    most, more = ({**values, name: "e" + "\u0301" * count} for count in (1000, 1001))
    parsed = pairs_from([tuple(pair.values()) for pair in (most, more)])
    assert parsed.numbers == [1]
    reason = f"has more than 1,000 combining characters in a row in its {name}"
    assert parsed.bad == [(2, reason)]


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_of_datasets_are_bounded(sentence: Call, tmp_path: Path, seed: int) -> None:
    line = sentence("data", "reverse", "--out", tmp_path / "out", "--seed", seed)
    assert line.endswith(f"--seed must lie in [0, 2^63), got {seed}")


def test_settings_and_pairs_that_are_none_are_refused() -> None:
    pairs = [("a", "b")]
    values: list[Any] = [None, TrainingConfig()]
    for value in values:
        with pytest.raises(ConfigError, match="training takes settings by name, got"):
            regard.fit(pairs, training=value)
    with pytest.raises(ConfigError, match="there are no training pairs"):
        regard.fit(values[0])
    with pytest.raises(DataError, match="expected a list of pairs, got TrainingConfig"):
        regard.fit(values[1])
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match="float32 weights, but PyTorch's default is"):
            regard.fit(pairs)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("unit", ["bpe", "unigram"])
def test_endless_words_do_not_end_the_training_of_subwords(unit: Any) -> None:
    texts = ["1" * 300_000, "the cat", "the hat"]
    tokenizer = Tokenizer.train(texts, TextConfig(unit=unit, vocabulary_size=30))
    assert tokenizer.detokenize(tokenizer.encode("the cat").tokens) == "the cat"


def test_endless_words_of_a_script_without_spaces_are_split() -> None:
    config = TextConfig(unit="word", match_vocabulary=True)
    tokenizer = Tokenizer.train(["我 爱 学习"], config)
    assert len(tokenizer.encode("我爱学习" * 5_000).ids) == 15_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", b""), ("x.npz", b""), ("x.npy", b"PK\x03\x04"), ("x.json", b"[" * 100_000),
        ("x.npy", b"\x93NUMPY\x01\x00v\x00((((" + b" " * 113 + b"\n"), ("x.json", b"[" + b"9" * 400 + b"]"),
    ],
)  # fmt: skip
def test_damaged_vectors_are_reported(
    sentence: Call, tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    sentence("explain", "--query", "1,2", "--keys", path)


@pytest.mark.parametrize("document", ['{"W": "x"}', '{"W": {}}', '{"W": [[1, 0], [0]]}'])
def test_parameters_that_are_no_numbers_are_reported(
    sentence: Call, tmp_path: Path, document: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(document)
    vectors = ["explain", "--query", "1,2", "--keys", "1,0;0,1", "--score", "general"]
    assert "expected W as numbers" in sentence(*vectors, "--parameters", path)


@pytest.mark.parametrize(
    "option",
    ["--pin=0:0=.", "--pin=0:0=1.2.3", f"--pin={'9' * 5000}:0=1", f"--ablate-heads={'9' * 5000}:0"],
)
def test_interventions_that_are_no_numbers_are_reported(
    sentence: Call, folder: Path, option: str
) -> None:
    assert f"{option.partition('=')[0]} takes" in sentence("translate", folder, option)


@pytest.mark.parametrize("digits", ["-1", "99999999999999999999"])
def test_digits_are_bounded(sentence: Call, digits: str) -> None:
    vectors = ["explain", "--query", "1,2", "--keys", "1,0;0,1"]
    assert "digits must be from 0 to 20" in sentence(*vectors, f"--digits={digits}")


def test_weights_that_overflow_give_no_alignment(copied: Path) -> None:
    trained = model_folder.load(copied)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.fill_(3e38)
    with pytest.raises(
        ConfigError, match="the log-probabilities of the decoder are infinite or NaN"
    ):
        Translator(trained, torch.device("cpu")).align("a", "b")


def test_messages_quote_no_endless_words(sentence: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    message = unknown_tokens_message(Counter({"x" * 100_000: 2, "x" * 100_001: 1, "y": 1}))
    assert message == f"tokens not in the vocabulary: 4 ('{'x' * 50}…' 3x, 'y' 1x)"

    def fail(arguments: list[str]) -> None:
        raise DataError("x" * 100_000)

    monkeypatch.setattr("regard.cli.data.run", fail)
    assert sentence("data") == f"regard data: {'x' * 2000} …"


def test_gold_links_must_lie_inside_their_texts() -> None:
    inside = GoldAlignment(frozenset({(0, 0)}), frozenset({(2, 1)}))
    check_links([inside], [(3, 2)])
    for sizes, link in (((2, 2), "2-1"), ((3, 1), "2-1"), ((0, 0), "0-0")):
        with pytest.raises(DataError, match=f"gold links of pair 1: {link} is outside its texts"):
            check_links([inside], [sizes])
    with pytest.raises(DataError, match="1 line of gold links for 2 pairs"):
        check_links([inside], [(3, 2), (3, 2)])


# Model folders


def edit(folder: Path, name: str, value: Any, *keys: str) -> None:
    document = inner = json.loads((folder / name).read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    document.pop("sha256", None)
    (folder / name).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["metadata"], 3, "metadata must be a mapping, got 3"),
        (["metadata", "max_target_length"], 10**12, "max_target_length cannot be 1000000000000"),
        (["metadata", "max_target_length"], "3", "metadata.max_target_length cannot be '3'"),
        (["metadata", "max_target_length"], -5, "metadata.max_target_length cannot be -5"),
        (["metadata", "attention_layer"], 7, "metadata.attention_layer cannot be 7"),
        (["metadata", "parameters"], None, "metadata.parameters cannot be None"),
        (["metadata", "examples"], [3], "metadata.examples cannot be"),
        (["metadata", "warning"], {}, "metadata.warning cannot be {}"),
        (["model", "encoder_dim"], 10**12, "encoder_dim must be at most 1,000,000"),
        (["model", "encoder_dim"], 10**6, "not enough memory for the weights"),
        (["model", "encoder_layers"], 10**9, "encoder_layers must be at most 1,000"),
        (["out"], "\0", "out takes UTF-8 without NUL"),
    ],
)
def test_impossible_values_of_a_folder_are_reported(
    sentence: Call, copied: Path, keys: list[str], value: Any, message: str
) -> None:
    edit(copied, "config.json", value, *keys)
    line = sentence("translate", copied)
    assert "config.json is damaged (" in line
    assert message in line


@pytest.mark.parametrize("name", ["config.json", "source.json", "target.json", "model.safetensors"])
def test_nested_documents_and_directories_are_reported(
    sentence: Call, copied: Path, name: str
) -> None:
    (copied / name).write_text("[" * 100_000)
    sentence("translate", copied)
    (copied / name).write_text('{"format": ' * 100_000)
    sentence("translate", copied)
    (copied / name).unlink()
    (copied / name).mkdir()
    sentence("translate", copied)


def test_planted_pickles_are_never_executed(sentence: Call, copied: Path, tmp_path: Path) -> None:
    created = tmp_path / "created"
    content = pickle.dumps(Trap(created))
    planted = ("model.pkl", "pytorch_model.bin", "model.pt", "last/state.json", "__init__.py")
    for name in planted:
        (copied / name).parent.mkdir(exist_ok=True)
        (copied / name).write_bytes(content)
    assert Translator.load(copied, "cpu").translate("a").source == "a"
    for name in ("config.json", "source.json", "target.json", "model.safetensors"):
        original = (copied / name).read_bytes()
        (copied / name).write_bytes(content)
        sentence("translate", copied)
        (copied / name).write_bytes(original)
    torch.save({"a": Trap(created)}, copied / "model.safetensors")
    sentence("translate", copied)
    assert not created.exists()


def test_names_in_a_folder_do_not_lead_outside(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    for keys in (["out"], ["data", "train"], ["data", "dev"]):
        edit(copied, "config.json", str(outside / "secret"), *keys)
    edit(copied, "config.json", "../outside", "out")
    (tmp_path / "text").write_text("ab\n")
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    opened: list[str] = []

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and recording:
            opened.append(str(arguments[0]))

    recording = True
    sys.addaudithook(record)
    assert main(["translate", str(copied), str(tmp_path / "text")]) == 0
    recording = False
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before
    assert str(copied / "config.json") in opened
    assert not [name for name in opened if "outside" in name]


# Fuzzing


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["char", "dot", "rnn", "transformer", "bpe", "unigram", "word"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Return every container of a document with each of its keys."""
    if isinstance(document, dict | list):
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        nested = [place for key in keys for place in places(document[key])]
        return [(document, key) for key in keys] + nested
    return []


def check_mutated_folder(folder: Path, name: str, data: st.DataObject) -> None:
    original = (folder / name).read_text()
    document = json.loads(original)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(document) or [({}, "")]))
        if data.draw(st.booleans()):
            container.pop(key, None) if isinstance(container, dict) else container.pop()
        else:
            container[key] = data.draw(JSON)
    (folder / name).write_text(json.dumps(document))
    with contextlib.suppress(RegardError):
        Translator.load(folder, "cpu").translate(["ab", ""], beam_size=2)
    (folder / name).write_text(original)


@pytest.mark.parametrize("name", ["config.json", "source.json", "target.json"])
@ANY_CASE
@given(data=st.data())
def test_mutated_folders_raise_only_errors_of_this_package(
    copied: Path, name: str, data: st.DataObject
) -> None:
    check_mutated_folder(copied, name, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["config.json", "source.json", "target.json"])
@settings(ANY_CASE, max_examples=3000)
@given(data=st.data())
def test_many_mutated_folders_raise_only_errors_of_this_package(
    copied: Path, name: str, data: st.DataObject
) -> None:
    check_mutated_folder(copied, name, data)


NAMES = sorted({field for group in GROUPS.values() for field in group.__dataclass_fields__})
VALUES = JSON | st.sampled_from([0, 1, -1, 1e-3, 2**64, "auto", "none", "local-p", True])
SETTINGS = st.dictionaries(
    st.sampled_from([*GROUPS, "out", "device", "resume", "config"]) | st.text(max_size=3),
    VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    max_size=4,
)
CONTENT = (
    SETTINGS.map(lambda values: yaml.safe_dump(values).encode("utf-8", "surrogatepass"))
    | st.text(string.printable, max_size=40).map(str.encode)
    | st.binary(max_size=20)
)


def check_settings(folder: Path, content: bytes) -> None:
    path = folder / "c.yaml"
    path.write_bytes(content)
    status = main(["train", "--out", str(folder / "m"), "--config", str(path)])
    assert status in (1, 2)  # there are no pairs to train on


@ANY_CASE
@given(content=CONTENT)
def test_random_settings_exit_with_1_or_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    check_settings(tmp_path, content)


@pytest.mark.soak
@settings(ANY_CASE, max_examples=800)
@given(content=CONTENT)
def test_many_random_settings_exit_with_1_or_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    check_settings(tmp_path, content)


@ANY_CASE
@given(group=st.sampled_from([DataConfig, TextConfig, ModelConfig, TrainingConfig]), data=st.data())
def test_random_values_of_settings_raise_only_errors_of_this_package(
    group: type[Any], data: st.DataObject
) -> None:
    names = sorted(group.__dataclass_fields__)
    values = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
    with contextlib.suppress(ConfigError):
        group(**values)


ARGUMENT = (
    st.sampled_from(["--out", "--config", "--beam-size", "--pin", "--prefix", "--data.train", "-o"])
    | st.sampled_from(["--", "-", "", ".", "--help-all", "--resume", "--gold", "--json", "-1,2"])
    | st.sampled_from(
        ["--debug", "--seed", "--model.attention", "--device=cpu", "[1", "{a: &a [*a]}"]
    )
    | st.text(max_size=8)
)
WITHOUT_TRAINING = sorted(set(COMMANDS) - {"demo", "data"})


def check_arguments(command: str, arguments: list[str]) -> None:
    assert main([command, *arguments]) in (0, 1, 2)


@ANY_CASE
@given(command=st.sampled_from(WITHOUT_TRAINING), arguments=st.lists(ARGUMENT, max_size=6))
def test_random_arguments_exit_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check_arguments(command, arguments)


@pytest.mark.soak
@settings(ANY_CASE, max_examples=2000)
@given(command=st.sampled_from(WITHOUT_TRAINING), arguments=st.lists(ARGUMENT, max_size=6))
def test_many_random_arguments_exit_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check_arguments(command, arguments)


@ANY_CASE
@given(
    text=st.text(st.characters(), min_size=1, max_size=20),
    unit=st.sampled_from(["char", "grapheme"]),
    form=st.sampled_from(["none", "NFC", "NFD", "NFKC", "NFKD"]),
)
def test_tokenizers_restore_any_text_or_refuse_it(text: str, unit: Any, form: Any) -> None:
    try:
        tokenizer = Tokenizer.train([text], TextConfig(unit=unit, normal_form=form))
    except DataError:
        assert not is_utf8(text)
        return
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.decode(again.encode(text).ids) == normalize(text, form)


@ANY_CASE
@given(document=JSON, text=st.text(max_size=20))
def test_random_tokenizers_are_refused(document: Any, text: str) -> None:
    for content in (json.dumps(document), text):
        with pytest.raises(FolderError, match="the tokenizer cannot be read"):
            Tokenizer.from_json(content)


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "m", ""], ["translate", "", "f"], ["evaluate", "m", "p", "--json", ""],
        ["align", "m", ""], ["train", "--data.train", "", "--out", "m"], ["explain", "a", "--model", ""],
        ["export", "m", "--out", ""],
    ],
)  # fmt: skip
def test_empty_paths_are_reported(sentence: Call, arguments: list[str]) -> None:
    assert " takes a path, got an empty string; see regard" in sentence(*arguments, status=2)


@pytest.mark.parametrize("option", ["--beam-size", "--n-best", "--length-penalty"])
def test_numbers_of_thousands_of_digits_are_reported(sentence: Call, option: str) -> None:
    line = sentence("translate", "m", option, "9" * 5000, status=2)
    assert "takes a number with at most 4300 digits, got one with 5000;" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "m", "--out"], ["evaluate", "m", "p", "--json"], ["curves", "m", "--out"],
        ["align", "m", "p", "--attention"], ["plot", "m", "a", "--out"],
    ],
)  # fmt: skip
def test_a_folder_as_output_file_is_reported_before_the_work(
    sentence: Call, tmp_path: Path, arguments: list[str]
) -> None:
    line = sentence(*arguments, tmp_path)
    assert line.endswith(f"{arguments[-1]} takes an output file, got the folder {tmp_path}")


def test_standard_input_is_not_overwritten(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = copied.with_name("lines.txt")
    lines.write_text("a\n")
    with lines.open() as file:
        status = os.fstat(file.fileno())
        monkeypatch.setattr("regard.cli.options.os.fstat", lambda _: status)
        for option in ("--out", "--attention", "--alignments"):
            assert main(["translate", str(copied), option, str(lines)]) == 1
            assert f"{option} would overwrite the input" in capsys.readouterr().err
        assert main(["translate", str(copied)]) == 1
    assert "standard output is the file that standard input reads" in capsys.readouterr().err
    assert lines.read_text() == "a\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "m", "f", "--out", "./f"], ["evaluate", "m", "f", "--json", "f"],
        ["align", "m", "f", "--attention", "f"], ["align", "m", "f", "--gold", "g", "--json", "g"],
        ["evaluate", "m", "f,g", "--json", "g"], ["translate", "m", "f", "--out", "m/config.json"],
        ["curves", "m", "--out", "m/config.json"],
        ["evaluate", "x", "f", "--compare", "m", "--json", "m/config.json"],
        ["translate", "all", "f", "--out", "all/members/0/config.json"],
        ["translate", "m", "h,i", "--out", "h,i"], ["evaluate", "m", "*.csv", "--json", "p.csv"],
    ],
)  # fmt: skip
def test_inputs_are_not_overwritten(
    sentence: Call, copied: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(copied.rename(copied.with_name("m")).parent)
    Path("all/members").mkdir(parents=True)
    shutil.copytree("m", "all/members/0")
    for name in ("f", "g", "h,i", "p.csv"):
        Path(name).write_text("a\tx\n")
    line = sentence(*arguments)
    assert line.endswith(
        f"{arguments[-2]} would overwrite the input {arguments[-1]}; choose another file"
    )


def test_an_output_in_a_model_folder_can_be_replaced(copied: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tA\n")
    for _ in range(2):
        assert (
            main(["evaluate", str(copied), str(pairs), "--json", str(copied / "report.json")]) == 0
        )
        assert main(["translate", str(copied), str(pairs), "--out", str(copied / "out.txt")]) == 0


def test_a_message_about_a_name_of_several_lines_is_one_line(sentence: Call, folder: Path) -> None:
    assert sentence("translate", folder, "a\nb").endswith(
        "cannot read a b: No such file or directory"
    )


@pytest.mark.parametrize("name", ["config.json", "source.json"])
def test_devices_in_a_model_folder_are_not_read(sentence: Call, copied: Path, name: str) -> None:
    (copied / name).unlink()
    (copied / name).symlink_to("/dev/zero")
    assert f"{copied / name}" in sentence("translate", copied)


@pytest.mark.parametrize("number", [True, 0, -1, 1.0])
def test_a_format_is_a_whole_number_from_1(sentence: Call, copied: Path, number: Any) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "format": number}))
    assert "config.json is damaged: it does not state its format" in sentence("translate", copied)


def test_texts_that_would_take_minutes_are_refused(sentence: Call, copied: Path) -> None:
    (copied / "long.txt").write_text("a" * 10_001)
    line = sentence("translate", copied, copied / "long.txt")
    assert (
        "a text has 10,001 tokens, but at most 10,000 can be translated; split the text: aa" in line
    )
    (copied / "pairs.tsv").write_text("a\tA\n" + "a" * 10_001 + "\tA\n")
    for command in ("evaluate", "align"):
        line = sentence(command, copied, copied / "pairs.tsv")
        assert "pairs.tsv, line 2: a text has 10,001 tokens, but at most 10,000" in line
    config = json.loads((copied / "config.json").read_text())
    config["data"]["max_length"] = 1_000_000
    (copied / "config.json").write_text(json.dumps(config))
    assert "data.max_length must be at most 10,000" in sentence("translate", copied)


def test_the_number_of_workers_is_bounded(sentence: Call) -> None:
    line = sentence("serve", "nowhere", "--workers", 10**9)
    assert line.endswith("--workers must be at most 256, got 1,000,000,000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "1,2", "--keys", "1e308,1e308;1,1"], "the numbers are too large"),
        (["--weights", "5,5", "--keys", "1e308;1e308"], "the numbers are too large"),
        (["--query", "complex.npy", "--keys", "1,2"], "expected query as numbers"),
        (["--query", "time.npy", "--keys", "1,2"], "expected query as numbers"),
        (["--query", "1,2", "--keys", "1,2", "--step", "1"], "--step needs --model; omit --step"),
        (["a", "--query", "1,2", "--keys", "1,2"], "TEXT needs --model; omit TEXT"),
        (
            ["a", "--model", "m", "--query", "1,2"],
            "--query has no effect with --model; omit --query",
        ),
        (["--dim", ""], "--dim takes widths"),
        (
            ["--weights", "1,0", "--keys", "1;2", "--score", "additive"],
            "--score has no effect with --weights; omit --score",
        ),
        (
            ["--query", "1", "--keys", "1;2", "--format", "json", "--digits", "2"],
            "--digits has no effect with --format json; omit --digits",
        ),
    ],
)
def test_calls_that_explain_nothing_are_reported(
    sentence: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("complex.npy", np.array([1 + 2j, 1]))
    np.save("time.npy", np.array([1, 2], "M8[s]"))
    assert message in sentence("explain", *arguments)


def test_ctrl_c_while_the_modules_are_imported_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from regard.__main__ import run

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.cli.main._prepare_streams", interrupt)
    assert run() == 130
    assert capsys.readouterr().err == "regard: stopped\n"
