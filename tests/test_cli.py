"""The command line: help, errors, files and output of every command."""

import gzip
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from regard.cli import compare, train, translate
from regard.cli import options as shared_options
from regard.cli.main import COMMANDS, _signals_as_exceptions, main
from regard.kernels.linear import rounds_to_bfloat16
from regard.lines import read_lines
from regard.progress import Progress
from regard.symmetrization import symmetrize
from regard.text import EOS
from regard.translator import Translator

pytestmark = pytest.mark.usefixtures("unchecked")

TINY = [
    *("--model.embedding_dim", "16", "--model.encoder_dim", "16", "--model.decoder_dim", "32"),
    *("--model.attention_dim", "8", "--model.dropout", "0", "--source.unit", "char"),
    *("--target.unit", "whitespace", "--training.warmup", "10", "--training.learning_rate", "0.01"),
    *("--training.validate_every", "60", "--training.batch_tokens", "300", "--device", "cpu"),
]
TWO_UPDATES = [*TINY, "--training.max_updates", "2"]
LINES = ["abc", "", "dcba", "  ", "a", "ddddd"]
BLANK = [not line.strip() for line in LINES]


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        assert self.out.endswith("\n") or not self.out
        return self.out.split("\n")[:-1]


class Folders(NamedTuple):
    pairs: str
    model: str
    """Has dot attention; translates `abc` to roughly `A B C`."""
    no_attention: str
    """Has no attention."""


Command = Callable[..., Result]


@pytest.fixture
def regard(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs the command in this process."""

    def run(*arguments: object, stdin: str | bytes = b"") -> Result:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def folders(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Folders:
    """Two models that take a second to train."""
    root = made_once("models", _train_models)
    return Folders(*(str(root / name) for name in ("pairs.tsv", "model", "no_attention")))


def _train_models(root: Path) -> None:
    root.mkdir()
    rng = random.Random(1)
    words = ["".join(rng.choice("abcd") for _ in range(rng.randint(1, 5))) for _ in range(40)]
    pairs = root / "pairs.tsv"
    pairs.write_text("".join(f"{word}\t{' '.join(word.upper())}\n" for word in words))
    for name, attention in (("model", "dot"), ("no_attention", "none")):
        arguments = [
            "train",
            "--data.train",
            pairs,
            "--data.dev",
            pairs,
            "--out",
            root / name,
            *TINY,
        ]
        options = ["--model.attention", attention, "--training.max_updates", 120]
        assert main(list(map(str, [*arguments, *options]))) == 0


@pytest.fixture
def lines(tmp_path: Path) -> str:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return str(path)


def error_line(result: Result, status: int) -> str:
    """Return the single line of an error that printed nothing on standard output."""
    assert (result.status, result.out) == (status, "")
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("regard")
    return result.err


def read_settings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def read_pairs(path: str | Path) -> list[list[str]]:
    return [line.split("\t") for line in Path(path).read_text().splitlines()]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=False
    )


# The command as a whole


def test_help_needs_no_torch() -> None:
    code = """
from regard.cli.main import COMMANDS, main
assert main(["--help"]) == 0
heavy = {"torch", "altair", "accelerate", "numba", "triton", "jsonargparse"} & set(sys.modules)
assert not heavy, heavy
for command in (
    "data", "train", "translate", "evaluate", "align", "plot", "compare", "explain", "curves"
):
    assert main([command, "--help"]) == 0, command
heavy = {"torch", "altair", "accelerate", "numba", "triton"} & set(sys.modules)
assert not heavy, heavy
"""
    result = run_python(code)
    assert (result.returncode, result.stderr) == (0, "")
    for name, summary in COMMANDS.items():
        assert f"{name:<9}  {summary}" in result.stdout


def test_import_regard_is_cheap() -> None:
    code = """
import regard
regard.ConfigError, regard.Config, dir(regard)
heavy = {"torch", "altair", "fastapi", "triton", "numba", "accelerate"} & set(sys.modules)
assert not heavy, heavy
"""
    result = run_python(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_call_without_a_command_prints_help(regard: Command) -> None:
    assert regard().status == 2
    assert regard().out == regard("--help").out == regard("-h").out
    assert regard("--version").out.startswith("regard 0.")
    assert regard("-V").out == regard("--version").out


def test_the_package_can_be_run_as_a_module(regard: Command) -> None:
    call = [sys.executable, "-m", "regard", "--version"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, regard("--version").out)


def test_output_is_not_redirected_to_the_terminal_of_the_progress_bar(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    code = """
from regard.progress import Progress
with Progress("translating", 2, "lines") as progress:
    print("long " * 40)
    progress.advance(2)
"""
    terminal, standard_error = pty.openpty()
    with (tmp_path / "out").open("w") as out:
        call = [sys.executable, "-c", code]
        environment = {**os.environ, "TERM": "xterm"}
        subprocess.run(call, stdout=out, stderr=standard_error, env=environment, check=True)
    os.close(standard_error)
    drawn = os.read(terminal, 100_000)
    os.close(terminal)
    assert (tmp_path / "out").read_text() == "long " * 40 + "\n"
    assert b"translating" in drawn
    assert b"long" not in drawn


def test_an_unknown_command_suggests_the_nearest(regard: Command) -> None:
    assert "unknown command trian; did you mean train?" in error_line(regard("trian"), 2)
    assert "unknown command x; see" in error_line(regard("x"), 2)


def test_ctrl_c_prints_one_line_and_exits_with_130(
    regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.cli.data.run", interrupt)
    assert error_line(regard("data"), 130) == "regard data: stopped\n"


UNWRITTEN = b"out.jsonl was not written, because the reader of standard output has closed it\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--help"], 0, b""),
        pytest.param(["translate", "MODEL"], 0, b"", marks=pytest.mark.soak),
        (["translate", "MODEL", "--attention", "OUT"], 1, UNWRITTEN),
    ],
)
def test_a_closed_pipe_ends_quietly_unless_a_file_is_missing(
    folders: Folders, tmp_path: Path, arguments: list[str], status: int, message: bytes
) -> None:
    names = {"MODEL": folders.model, "OUT": str(tmp_path / "out.jsonl")}
    arguments = [sys.executable, "-m", "regard.cli.main", *(names.get(a, a) for a in arguments)]
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        arguments,
        input=b"abc\n",
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        check=False,
    )
    os.close(write)
    assert result.returncode == status
    assert result.stderr.endswith(message) if message else not result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_training_goes_on_when_the_reader_of_its_messages_has_gone(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a b\tb a\nb a\ta b\na\ta\n")
    settings = {"max_updates": 2, "validate_every": 1}
    options = [f"--training.{name}={value}" for name, value in settings.items()]
    sizes = [f"--model.{name}_dim=4" for name in ("embedding", "encoder", "decoder", "attention")]
    read, write = os.pipe()
    os.close(read)
    train = ["train", "--data.train", str(tmp_path / "t.tsv"), "--out", str(tmp_path / "m")]
    command = [sys.executable, "-m", "regard.cli.main", *train, *options, *sizes]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=write, check=False)
    os.close(write)
    assert result.returncode == 0
    assert (tmp_path / "m" / "model.safetensors").exists()
    assert len((tmp_path / "m" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.soak)])
def test_a_signal_ends_a_command_without_unfinished_files(
    folders: Folders, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out" / "o.txt"
    command = ["translate", folders.model, "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "regard.cli.main", *command], stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not (out.parent.exists() and os.listdir(out.parent)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.Signals[name])
        _, error = process.communicate()
    assert process.returncode == 128 + signal.Signals[name]
    assert error == b"regard translate: stopped\n"
    assert os.listdir(out.parent) == []


def test_outputs_are_compressed_by_name_and_must_differ(
    folders: Folders, regard: Command, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("a b\n")
    translate = ["translate", folders.model, str(tmp_path / "in"), "--out", str(tmp_path / "o.gz")]
    assert regard(*translate).status == 0
    assert len(read_lines(tmp_path / "o.gz")) == 1
    same = [*translate, "--attention", f"{tmp_path}/../{tmp_path.name}/o.gz"]
    assert "--out and --attention are the same file" in error_line(regard(*same), 1)


def test_output_is_utf8_in_any_locale(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding="latin-1"))
    assert main(["evaluate", folders.model, folders.pairs]) == 0
    assert "–" in stream.getvalue().decode("utf-8")


def help_of(*arguments: str) -> list[str]:
    environment = {**os.environ, "COLUMNS": "80"}
    call = [sys.executable, "-m", "regard", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_lists_the_common_options_and_help_all_every_setting(command: str) -> None:
    short, long = help_of(command, "--help"), help_of(command, "--help-all")
    assert len(short) <= 60 < len(long)
    assert max(map(len, short)) <= 100
    assert short[short.index("examples:") + 1].startswith("  regard data reverse")
    for title in ("Tokenisation of the source:", "Tokenisation of the target:"):
        assert title in long
        assert title not in short
    for text in ("\n".join(short), "\n".join(long)):
        for noise in ("type:", "Literal", "Optional", "null", "optional flags", "configuration"):
            assert noise not in text
        for option in ("--data.train FILE", "--out DIR", "--training.max_minutes X", "--resume"):
            assert option in text
    assert "--model.dropout X" in "\n".join(long)


def test_a_common_option_exists(regard: Command) -> None:
    for command in (train, compare):
        assert set(command._COMMON) <= command.make_parser().options().keys()


def test_the_help_of_every_command_is_free_of_types(regard: Command) -> None:
    for command in COMMANDS:
        text = regard(command, "--help").out
        assert text.startswith(f"usage: regard {command} ")
        assert "(type" not in text
        assert "null" not in text


def test_all_settings_can_be_printed(regard: Command) -> None:
    for out in ((), ("--out", "x")):
        result = regard("train", "--config", "g2p", *out, "--print-config")
        assert result.status == 0
        assert "encoder_layers: 2" in result.out
    result = regard("train", "--config", "g2p", "--adapt", "--print-config")
    assert "encoder_layers: 2" in result.out
    assert not any(line.startswith("out:") for line in result.lines)


@pytest.mark.parametrize("text", ['"no"', "1"])
def test_a_switch_in_a_settings_file_is_true_or_false(
    regard: Command, tmp_path: Path, text: str
) -> None:
    (tmp_path / "my.yaml").write_text(f"adapt: {text}\n")
    result = regard("train", "--config", tmp_path / "my.yaml", "--print-config")
    value = yaml.safe_load(text)
    assert f"adapt takes true or false, got {value!r}; see" in error_line(result, 2)


def test_only_settings_that_can_be_used_are_printed(regard: Command) -> None:
    result = regard("train", "--training.max_minutes", ".nan", "--print-config")
    assert "training.max_minutes must be above 0, got nan" in error_line(result, 1)


@pytest.mark.parametrize("options", [(), ("--config", "my.yaml", "--adapt")])
def test_printed_settings_train_the_same_model(
    regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = tmp_path / "1e3"  # is no number in the printed file
    pairs.write_text("ab\tA B\nba\tB A\nb\tB\n")
    (tmp_path / "my.yaml").write_text("model: {attention: dot}\n")
    command = ["train", *options, "--data.train", pairs.name, *TWO_UPDATES]
    printed = regard(*command, "--print-config", "--out", tmp_path / "printed")
    assert "adapt: true" in printed.lines
    (tmp_path / "c.yaml").write_text(printed.out)
    assert regard("train", "--config", tmp_path / "c.yaml").status == 0
    assert regard(*command, "--out", tmp_path / "direct").status == 0
    first, second = (read_settings(tmp_path / name) for name in ("printed", "direct"))
    for group in ("data", "source", "target", "model", "training"):
        assert first[group] == second[group]
    weights = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("printed", "direct")]
    assert weights[0] == weights[1]


def test_printed_settings_leave_those_of_another_model_open(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    command = ["train", "--config", "g2p", "--data.train", tmp_path / "\u0085.tsv", "--out", "x"]
    printed = regard(*command, "--init-from", folders.model, "--print-config")
    assert "adapt: false" in printed.lines
    assert "cell:" in printed.out  # a setting of the recipe
    assert "window" not in printed.out
    values = yaml.safe_load(printed.out)
    assert values["data"]["train"] == str(tmp_path / "\u0085.tsv")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_commands_options_and_values(regard: Command, shell: str) -> None:
    script = regard("--print-completion", shell).out
    for word in (*COMMANDS, "model.attention", "scaled_dot", "beam-size"):
        assert word in script
    assert regard(f"--print-completion={shell}").out == script


def test_completion_is_offered_for_known_shells(regard: Command) -> None:
    message = "--print-completion takes one of bash, zsh, fish, got 'bsh'; did you mean bash?"
    assert message in error_line(regard("--print-completion", "bsh"), 2)
    assert "got 'bash extra'" in error_line(regard("--print-completion=bash", "extra"), 2)
    assert "unknown command --print-completionx" in error_line(regard("--print-completionx"), 2)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tran", "translate"),
        ("train --model.dec", "--model.decoder --model.decoder_dim --model.decoder_layers"),
        ("train --model.decoder b", "bahdanau"),
        ("translate model FOLD", "FOLDER"),
        ("train --resume --model.cell ", "gru lstm"),
        ("curves model --out char", "chart.svg"),
        ("train --out char", ""),
    ],
)
def test_bash_completes_a_prefix(
    regard: Command, tmp_path: Path, words: str, expected: str
) -> None:
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "chart.svg").touch()
    (tmp_path / "regard.bash").write_text(regard("--print-completion", "bash").out)
    code = """
source ./regard.bash
COMP_WORDS=(regard "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}
completer=$(complete -p regard | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$completer" regard "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
echo "${COMPREPLY[@]}"
"""
    call = ["bash", "-c", code, "_", *words.split(" ")]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == expected.split()


def test_a_long_load_is_reported_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared_options, "_SECONDS_UNTIL_LOADING_IS_REPORTED", 0.01)
    for terminal, expected in ((True, "loading model …\n"), (False, "")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with shared_options.loading("model"):
            time.sleep(0.2)
        assert capsys.readouterr().err == expected
    monkeypatch.setattr(shared_options, "_SECONDS_UNTIL_LOADING_IS_REPORTED", 5)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shared_options.loading("model"):
        pass
    assert capsys.readouterr().err == ""


# Errors in the call: status 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--modle.attention dot", "no option --modle.attention; did you mean --model.attention?"),
        ("--model.atention=dot", "no option --model.atention; did you mean --model.attention?"),
        ("--resum", "no option --resum; did you mean --resume?"),
        ("--conf g2p", "no option --conf; did you mean --config?"),
        ("--zzzzzz 1", "no option --zzzzzz; see regard train --help"),
        ("--unit char", "no option --unit; did you mean --source.unit?"),
        ("--train a.tsv", "no option --train; did you mean --data.train?"),
        ("--max_minutes 5", "no option --max_minutes; did you mean --training.max_minutes?"),
        ("--data a.tsv", "--data is a group of settings: give one of them, such as --data.train;"),
        ('--model {"dropout":"much"}', "model.dropout takes a number, got much"),
        (
            "--model transformer",
            "--model is a group of settings: give one of them, such as --model.kind;",
        ),
        ("stray", "there is an argument too many: stray"),
        ("--model.attention aditive", "got aditive; did you mean additive?"),
        ("--data.bad_lines skp", "data.bad_lines takes one of stop, skip, got skp; did you mean"),
        ("--device cpuu", "device takes one of auto, cpu, cuda, mps, got cpuu; did you mean cpu?"),
        ("--training.max_updates many", "training.max_updates takes an integer, got many"),
        ("--training.max_updates 2.5", "training.max_updates takes an integer, got 2.5"),
        ("--training.max_minutes soon", "training.max_minutes takes a number, got soon"),
        ("--training.max_minutes 1:30", "max_minutes takes a decimal number, got 1:30"),
        ("--training.max_minutes=+1_0:30", "max_minutes takes a decimal number, got +1_0:30"),
        ("--training.max_updates=1:30", "max_updates takes a decimal number, got 1:30"),
        ("--model.bidirectional perhaps", "model.bidirectional takes true or false, got perhaps"),
        ("--training.seed", "--training.seed: expected one argument"),
    ],
)
def test_a_misspelt_option_prints_one_line_that_suggests_the_nearest(
    regard: Command, arguments: str, message: str
) -> None:
    assert message in error_line(regard("train", "--out", "x", *arguments.split()), 2)


def test_a_fault_in_a_file_of_one_group_is_named(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("dropout: [")
    result = regard("train", "--out", "x", "--model", tmp_path / "model.yaml")
    expected = "or a file of them that is valid (line 1: the file ends in the middle of a value)"
    assert expected in error_line(result, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("modle: {attention: dot}", "modle"),
        ("model: {atention: dot}", "no option model.atention; did you mean --model.attention?"),
        ("modle.attention: dot", "no option modle.attention; did you mean --model.attention?"),
        ("modle: {}", "c.yaml: there is no option modle; did you mean model?"),
        ("model: {attention: aditive}", "got aditive; did you mean additive?"),
        ("training: {max_updates: x}", "training.max_updates takes an integer, got x"),
        ("model:\n  dropout: [", "c.yaml, line 2: the file ends in the middle of a value"),
        ("model:\n\tdropout: 0", "c.yaml, line 2: YAML does not allow a TAB here; use spaces"),
        ("model: {dropout: 0}}", "c.yaml, line 1: not valid YAML ("),
        ("model: {dropout: much}", "c.yaml: model.dropout takes a number, got much"),
        ("model: {dropuot: 0.1}", "c.yaml: there is no option model.dropuot; did you mean"),
        ("lr: 0.1", "c.yaml: there is no option lr"),
        ("", "--config takes a file of grouped settings"),
        ("- 1", "--config takes a file of grouped settings"),
        ("# model: {attention: dot}", "there is only a comment"),
        ("training: {max_minutes: 1:30}", "1:30 is read in base 60 or 8; write a decimal number"),
        ("training: {seed: 010}", "010 is read in base 60 or 8; write a decimal number"),
    ],
)
def test_a_misspelt_setting_in_a_file_prints_one_line(
    regard: Command, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "c.yaml").write_text(content)
    assert message in error_line(regard("train", "--out", "x", "--config", tmp_path / "c.yaml"), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train", "missing: --out"),
        ("translate", "missing: DIR"),
        ("translate m --beem-size 5", "no option --beem-size; did you mean --beam-size?"),
        ("translate m f --beam-size x", "beam_size takes an integer, got x"),
        ("evaluate m p --bleu-tokenize 13b", "got 13b; did you mean 13a?"),
        ("plot m abc -o a.svg --targt x", "no option --targt; did you mean --target?"),
        ("explain --modle m abc", "no option --modle; did you mean --model?"),
        ("evaluate m", "missing: PAIRS"),
        ("align m p --glod g", "no option --glod; did you mean --gold?"),
        ("distill m --print-config", "no option --print-config"),
        ("plot m text", "missing: --out"),
        ("data", "missing: NAME, --out"),
    ],
)
def test_every_command_rejects_invalid_options(
    regard: Command, arguments: str, message: str
) -> None:
    assert message in error_line(regard(*arguments.split()), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--config g2q",
            "no recipe or file is named 'g2q'; did you mean g2p?; recipes: compare, g2p",
        ),
        ("--config", "no recipe or file is named ''"),
        ("--model.dropout 2", "model.dropout must lie in [0, 1), got 2.0"),
        ("--training.max_minutes 0", "training.max_minutes must be above 0"),
        ("--model.decoder bahdanau --model.input_feeding true", "needs model.decoder luong"),
        ("", "there are no training pairs: set data.train"),
        ("--data.train nowhere.tsv", "cannot read nowhere.tsv: No such file"),
        ("--init-from nowhere", "nowhere is not a model folder"),
    ],
)
def test_invalid_settings_exit_with_1(
    regard: Command, tmp_path: Path, arguments: str, message: str
) -> None:
    result = regard("train", "--out", tmp_path / "m", *arguments.split())
    assert message in error_line(result, 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", ["3", "[{attention: dot}]"])
@pytest.mark.parametrize("options", [[], ["--model.heads", "2"]])
def test_a_group_of_settings_that_is_no_mapping_is_rejected(
    regard: Command, tmp_path: Path, content: str, options: list[str]
) -> None:
    (tmp_path / "c.yaml").write_text(f"model: {content}")
    result = regard("train", "--out", tmp_path / "m", "--config", tmp_path / "c.yaml", *options)
    assert "c.yaml: model takes settings by name, got " in error_line(result, 1)


@pytest.mark.parametrize("name", ["#1.tsv", "1:30", "010"])
def test_the_name_of_a_file_is_not_read_as_yaml(
    regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = regard("train", "--out", "m", "--data.train", name)
    assert f"cannot read {name}: No such file" in error_line(result, 1)


# regard data, regard train


def test_data_writes_a_dataset(regard: Command, tmp_path: Path) -> None:
    pytest.importorskip("regard.datasets")
    result = regard("data", "copy", "--out", tmp_path / "copy")
    assert (result.status, result.err) == (0, "")
    for part in ("train", "dev", "test"):
        pairs = read_pairs(tmp_path / "copy" / f"{part}.tsv")
        assert pairs
        assert all(source == target for source, target in pairs)
    second = regard("data", "copy", "--out", tmp_path / "copy")
    assert "is not empty; choose another folder (out)" in error_line(second, 1)
    assert "copy" in error_line(regard("data", "cpoy", "--out", tmp_path / "x"), 1)


def test_train_writes_a_folder_with_card_settings_and_metrics(folders: Folders) -> None:
    names = {"README.md", "config.json", "model.safetensors", "source.json", "target.json"}
    assert {*names, "metrics.jsonl"} <= set(os.listdir(folders.model))
    card = (Path(folders.model) / "README.md").read_text()
    assert f"regard train --data.train {folders.pairs}" in card
    metrics = (Path(folders.model) / "metrics.jsonl").read_text()
    entries = [json.loads(line) for line in metrics.splitlines()]
    assert [entry["update"] for entry in entries] == [60, 120]
    settings = read_settings(Path(folders.model))
    assert settings["model"]["attention"] == "dot"
    assert settings["model"]["encoder_dim"] == 16
    assert settings["format"] == 3


def test_train_reports_on_standard_error(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("ab\tA B\tnote\nba\tB A\nb\tB\tnote\n")
    out = tmp_path / "m"
    result = regard("train", "--data.train", tmp_path / "f.tsv", "--out", out, *TWO_UPDATES)
    assert (result.status, result.lines) == (0, [f"the model is saved in {out}"])
    assert "the model has learned nothing yet: its dev loss " in result.err
    assert "that of guessing; raise training.max_updates and resume the training" in result.err
    assert result.err.count("further columns ignored on 2 lines") == 1
    assert "dev: 1 pair held out from the training pairs" in result.err
    assert "update 2, " in result.err


def test_a_run_that_stopped_early_continues_with_more_patience(
    regard: Command, tmp_path: Path
) -> None:
    (tmp_path / "f.tsv").write_text("ab\tA B\nba\tB A\nb\tB\n")
    out = tmp_path / "m"
    command = ["train", "--data.train", tmp_path / "f.tsv", "--out", out, *TINY]
    command += ["--training.validate_every=1", "--training.patience=1", "--training.metric=bleu"]

    def updates() -> int:
        lines = (out / "metrics.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["update"])

    first = regard(*command, "--training.max_updates=90")
    assert first.lines == [f"the model is saved in {out}"]
    ended = updates()
    assert ended < 90
    found = re.search(r"raise training.patience above (\d+) and resume the training", first.err)
    assert found
    again = regard(*command, "--training.max_updates=90", "--resume")
    assert updates() == ended
    remedy = f"stopped improving: to train further, raise training.patience above {found[1]}"
    assert remedy in again.err
    patience = int(found[1]) + 1
    regard(*command, "--training.max_updates=90", "--resume", "--training.patience", patience)
    assert updates() > ended


def test_a_non_empty_output_folder_is_rejected(regard: Command, folders: Folders) -> None:
    before = {path: path.read_bytes() for path in Path(folders.model).glob("*.*")}
    result = regard("train", "--data.train", folders.pairs, "--out", folders.model, *TWO_UPDATES)
    assert (
        "exists and is not empty; choose another folder (out), or continue its training (resume)"
        in (error_line(result, 1))
    )
    assert {path: path.read_bytes() for path in before} == before


def test_resume_without_a_checkpoint_starts_from_scratch_and_reports_it(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    arguments = [
        "train",
        "--data.train",
        folders.pairs,
        "--out",
        tmp_path,
        *TWO_UPDATES,
        "--resume",
    ]
    result = regard(*arguments)
    assert result.status == 0
    assert f"{tmp_path} contains no checkpoint yet: training starts from scratch" in result.err
    resumed = regard(*arguments, "--training.max_updates", "4")
    assert resumed.status == 0
    assert "resumed at update 2" in resumed.err
    assert "starts from scratch" not in resumed.err


def test_training_starts_from_the_weights_of_another_folder(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    out = tmp_path / "m"
    flags = ["--training.max_updates", 1, "--training.learning_rate", 1e-9, "--device", "cpu"]
    arguments = ["train", "--data.train", folders.pairs, "--out", out, "--init-from", folders.model]
    assert regard(*arguments, *flags).status == 0
    assert read_settings(out)["model"] == read_settings(Path(folders.model))["model"]
    before = regard("translate", folders.model, stdin="abc\n").out
    assert regard("translate", out, stdin="abc\n").out == before != "\n"


@pytest.mark.parametrize("flags_first", [True, False])
def test_options_override_the_file_of_settings(
    regard: Command, folders: Folders, tmp_path: Path, flags_first: bool
) -> None:
    (tmp_path / "c.yaml").write_text("model: {attention: dot, cell: gru}\ntraining: {seed: 7}\n")
    option = [f"--config={tmp_path / 'c.yaml'}"]
    flags = [*TWO_UPDATES, "--model.attention", "general"]  # an alias of bilinear
    ordered = [*flags, *option] if flags_first else [*option, *flags]
    out = tmp_path / "m"
    assert regard("train", "--data.train", folders.pairs, "--out", out, *ordered).status == 0
    settings = read_settings(out)
    assert settings["model"]["attention"] == "bilinear"
    assert settings["model"]["cell"] == "gru"
    assert settings["training"]["seed"] == 7
    assert settings["model"]["bidirectional"]


def test_a_recipe_is_selected_by_its_name(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    flags = [*TWO_UPDATES, "--training.precision", "float32", "--config", "g2p"]
    out = tmp_path / "m"
    assert regard("train", "--data.train", folders.pairs, "--out", out, *flags).status == 0
    settings = read_settings(out)
    assert settings["model"]["encoder_layers"] == 2
    assert settings["source"]["lowercase"]
    assert settings["model"]["encoder_dim"] == 16


INVALID_LINES = "ab\tA B\nno tab\n\n\tA\nb\t\n{}\tA\nba\tB A\nabb\tA B B\n".format("ab" * 9)


def test_invalid_lines_stop_training_and_are_listed(regard: Command, tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(INVALID_LINES)
    arguments = ["train", "--data.train", path, "--out", tmp_path / "m", *TWO_UPDATES]
    message = error_line(regard(*arguments), 1)
    assert "bad.tsv: 4 of 8 lines cannot be used: " in message
    assert (
        "line 2 has no second column (TAB); line 3 is empty; line 4 has an empty source; "
        "line 5 has an empty target; correct them, or skip them with --data.bad_lines skip"
    ) in message
    assert not (tmp_path / "m").exists()
    path.write_text("ab\tA\nabba\tA\nb\tB\n")
    message = error_line(regard(*arguments, "--data.max_length", 3), 1)
    assert "line 2 has a source of 4 tokens, above the limit of 3" in message


def test_invalid_lines_can_be_skipped_and_are_counted(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text(INVALID_LINES)
    flags = [*TWO_UPDATES, "--data.bad_lines", "skip", "--data.max_length", 9]
    result = regard("train", "--data.train", tmp_path / "bad.tsv", "--out", tmp_path / "m", *flags)
    assert result.status == 0
    assert "train: 4 lines skipped (line 2 has no second column" in result.err
    assert "1 line skipped (line 6 has a source of 18 tokens, above the limit of 9)" in result.err


def test_parallel_and_gzipped_files_train(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "f.src.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfab\r\nba\r\naa\r\n"))
    (tmp_path / "f.tgt").write_bytes(b"A B\nB A\nA A")
    parallel_files = f"{tmp_path / 'f.src.gz'},{tmp_path / 'f.tgt'}"
    out = tmp_path / "m"
    result = regard(
        "train",
        "--data.train",
        parallel_files,
        "--data.dev",
        parallel_files,
        "--out",
        out,
        *TWO_UPDATES,
    )
    assert result.status == 0
    assert "train: 3 pairs read" in result.err
    assert json.loads((out / "source.json").read_text())["vocabulary"] == ["a", "b"]


def test_bytes_that_are_not_utf8_stop_training(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_bytes(b"a\tb\n\xff\tb\n")
    result = regard(
        "train", "--data.train", tmp_path / "f.tsv", "--out", tmp_path / "m", *TWO_UPDATES
    )
    assert "f.tsv, line 2: not UTF-8" in error_line(result, 1)


# regard translate


def test_translate_writes_one_line_per_input_line(
    regard: Command, folders: Folders, lines: str
) -> None:
    result = regard("translate", folders.model, lines)
    assert result.status == 0
    assert [not line for line in result.lines] == BLANK
    separate_outputs = [regard("translate", folders.model, stdin=f"{line}\n").out for line in LINES]
    assert result.out == "".join(separate_outputs)
    from_stdin = regard("translate", folders.model, stdin="".join(f"{x}\n" for x in LINES))
    assert from_stdin.out == result.out
    assert regard("translate", folders.model, stdin="abc\r\n\r\ndcba").lines == result.lines[:3]
    assert regard("translate", folders.model, stdin="").out == ""


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_the_outputs_of_shards_concatenate_to_those_of_the_file(
    regard: Command, folders: Folders, lines: str, count: int, tmp_path: Path
) -> None:
    def fields(text: str) -> list[tuple[str, str, float, str]]:
        rows = [line.split("\t") for line in text.splitlines()]
        # matrix products of other batches round differently
        return [(number, rank, pytest.approx(float(x), abs=1e-5), y) for number, rank, x, y in rows]

    whole = regard("translate", folders.model, lines, "--n-best", 2).out
    parts: list[str] = []
    for index in range(1, count + 1):
        part = tmp_path / f"part-{index}"
        options = ["--shard", f"{index}/{count}", "--n-best", 2, "--out", part]
        result = regard("translate", folders.model, lines, *options)
        assert (result.status, result.out) == (0, "")
        parts.append(part.read_text(encoding="utf-8"))
    assert fields("".join(parts)) == fields(whole)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "1/0", "a/b"])
def test_an_invalid_shard_is_rejected(
    regard: Command, folders: Folders, lines: str, shard: str
) -> None:
    assert "--shard takes I/N with I from 1 to N" in error_line(
        regard("translate", folders.model, lines, "--shard", shard), 1
    )
    result = regard("translate", folders.model, "--shard", "1/2")
    assert "--shard needs a FILE" in error_line(result, 1)


def test_an_interrupted_translation_leaves_no_output_file(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    out, lines = tmp_path / "out", tmp_path / "bad"
    lines.write_bytes(b"abc\n\xff\n")
    result = regard("translate", folders.model, lines, "--out", out)
    assert result.status == 1
    assert not list(tmp_path.glob("out*"))
    assert not list(tmp_path.glob(".*"))


def test_the_value_of_an_option_may_begin_with_a_hyphen(
    regard: Command, folders: Folders, lines: str
) -> None:
    result = regard("translate", folders.model, lines, "--prefix", "-b")
    assert "--prefix: the prefix contains tokens that are not" in error_line(result, 1)
    assert regard("translate", folders.model, lines, "--prefix=-b") == result
    assert "expected one argument" in regard("translate", folders.model, "--prefix", "--json").err


def test_options_and_positional_arguments_may_mix(
    regard: Command, folders: Folders, lines: str
) -> None:
    result = regard("translate", folders.model, lines, "--beam-size", 1)
    assert result.status == 0
    assert regard("translate", folders.model, "--beam-size", 1, lines) == result
    assert regard("translate", "--beam-size=1", folders.model, lines) == result
    assert regard("translate", "--beam-size", 1, "--", folders.model, lines) == result


@pytest.mark.parametrize("separator", ["\u2028", "\x0b", "\x85"])
def test_only_line_feeds_separate_lines_to_translate(
    regard: Command, folders: Folders, separator: str
) -> None:
    result = regard("translate", folders.model, stdin=f"ab{separator}c\nd\n")
    assert len(result.lines) == 2
    assert "source tokens not in the vocabulary: 1 (" in result.err


def test_translate_reports_the_line_that_is_not_utf8(regard: Command, folders: Folders) -> None:
    result = regard("translate", folders.model, stdin=b"abc\na\xff\n")
    assert "standard input, line 2: not UTF-8 (byte 2 of the line)" in error_line(result, 1)


def test_translate_reports_the_line_that_is_too_long(regard: Command, folders: Folders) -> None:
    result = regard("translate", folders.model, stdin="\n" * 1500 + "a" * 10_001 + "\na\n")
    assert (result.status, result.out) == (1, "\n" * 1500)
    assert "translate: line 1,501: a text has 10,001 tokens, but at most 10,000" in result.err


def test_lines_of_a_file_that_cannot_be_translated_are_found_first(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_text("\n" * 2500 + "a" * 10_001 + "\na\n")
    message = error_line(regard("translate", folders.model, file, "--out", out), 1)
    assert "file, line 2,501: a text has 10,001 tokens, but at most 10,000" in message
    file.write_text("abc\n" * 2500 + "a\n")
    command = ["translate", folders.model, file, "--pin", "0:2=0.9"]
    assert "file, line 2,501: " in error_line(regard(*command), 1)
    file.write_text("\n" * 2500 + "a" + "\u0301" * 1001 + "\n")
    (tmp_path / "d.tsv").write_text("ab\tx\n")
    command = ["translate", folders.model, file, "--dictionary", tmp_path / "d.tsv"]
    assert "file, line 2,501: more than 1,000 combining" in error_line(regard(*command), 1)


def test_n_best_writes_ranked_lines(regard: Command, folders: Folders, lines: str) -> None:
    best = regard("translate", folders.model, lines).lines
    ranked = regard("translate", folders.model, lines, "--n-best", 3).lines
    rows = [row.split("\t") for row in ranked]
    for number, blank in enumerate(BLANK, start=1):
        hypotheses = [row for row in rows if row[0] == str(number)]
        assert [row[1] for row in hypotheses] == ["1", "2", "3"]
        scores = [float(row[2]) for row in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert hypotheses[0][3] == best[number - 1]
        assert len({row[3] for row in hypotheses}) == (1 if blank else 3)
    assert [int(row[0]) for row in rows] == sorted(int(row[0]) for row in rows)


def test_line_numbers_continue_across_chunks(regard: Command, folders: Folders) -> None:
    options = ["--n-best", 2, "--beam-size", 2]
    result = regard("translate", folders.model, *options, stdin="\n" * 1500 + "a\n")
    assert [int(line.split("\t")[0]) for line in result.lines] == [
        n for n in range(1, 1502) for _ in range(2)
    ]


def test_attention_is_written_with_its_tokens(
    regard: Command, folders: Folders, lines: str, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "out.jsonl"
    texts = regard("translate", folders.model, lines, "--attention", path).lines
    objects = [json.loads(line) for line in path.read_text().splitlines()]
    assert [output["source"] for output in objects] == LINES
    assert [output["text"] for output in objects] == texts
    for output, line in zip(objects, LINES, strict=True):
        weights = np.array(output["attention"])
        if not line.strip():
            assert output["tokens"] == output["source_tokens"] == output["attention"] == []
            continue
        assert output["source_tokens"] == [*line, "</s>"]
        assert weights.shape == (len(output["tokens"]), len(output["source_tokens"]))
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-4)
    ranked = regard("translate", folders.model, lines, "--attention", path, "--n-best", 2).lines
    assert len(path.read_text().splitlines()) == len(ranked)


def test_alignments_are_pharaoh_lines(
    regard: Command, folders: Folders, lines: str, tmp_path: Path
) -> None:
    path = tmp_path / "out.pharaoh"
    texts = regard("translate", folders.model, lines, "--alignments", path).lines
    alignments = path.read_text().split("\n")[:-1]
    assert len(alignments) == len(LINES)
    for links, line, text in zip(alignments, LINES, texts, strict=True):
        pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert pairs == sorted(set(pairs))
        assert all(s < len(line) and t < len(text.split()) for s, t in pairs)
        assert line.strip() or not links


def test_the_heatmap_is_drawn_on_standard_error(regard: Command, folders: Folders) -> None:
    result = regard("translate", folders.model, "--heatmap", stdin="abc\n\n")
    assert len(result.lines) == 2
    assert "</s>" in result.err


def test_translate_answers_every_line_as_it_arrives(folders: Folders) -> None:
    call = [sys.executable, "-m", "regard", "translate", folders.model]
    expected = Translator.load(folders.model, "cpu").translate(["abc", "", "dcb"])
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        killer = threading.Timer(120, run.kill)
        killer.start()
        for source, output in zip(("abc", "", "dcb"), expected, strict=True):
            run.stdin.write(f"{source}\n")
            run.stdin.flush()
            assert run.stdout.readline() == f"{output.text}\n"  # the pipe is still open
        run.stdin.close()
        assert run.stdout.read() == ""
        killer.cancel()
    assert run.returncode == 0


def test_interventions_are_those_of_python(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    translator = Translator.load(folders.model, "cpu")
    path = tmp_path / "weights.jsonl"
    call = ["translate", folders.model, "--prefix", "D C", "--attention", path]
    pins = ["--pin", "1:0=0.9", "--pin", "0:2=1", "--pin=1:2=.05"]
    result = regard(*call, *pins, stdin="abc\n\ndda\n")
    assert result.status == 0
    expected = translator.translate(
        ["abc", "", "dda"], prefix=["D C", "", "D C"],
        pin=[{1: {0: 0.9, 2: 0.05}, 0: {2: 1.0}}, {}, {1: {0: 0.9, 2: 0.05}, 0: {2: 1.0}}],
    )  # fmt: skip
    assert result.lines == [output.text for output in expected]
    assert result.lines[0].startswith("D C")
    weights = json.loads(path.read_text().splitlines()[0])["attention"]
    assert weights[0][2] == pytest.approx(1)
    assert weights[1][0] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--pin 1=0.5", "--pin takes STEP:SOURCE=WEIGHT with steps and source tokens counted from"),
        ("--pin 0:9=0.5", "source tokens from 0 to 3, got step 0 and tokens 9"),
        (
            "--pin 0:0=2",
            "--pin: pinned weights of a step must be at least 0 and sum to at most 1, got 2",
        ),
        (
            "--prefix Z",
            "--prefix: the prefix contains tokens that are not in the model's vocabulary: Z",
        ),
        ("--ablate-heads 0", "--ablate-heads takes LAYER:HEAD, both counted from 0, such as 2:1"),
        ("--ablate-heads 0:4", "there is no head 4 in layer 0 to ablate"),
        ("--ablate-heads 1:0", "both counted from 0"),
    ],
)
def test_interventions_that_do_not_exist_are_reported(
    regard: Command, folders: Folders, arguments: str, message: str
) -> None:
    outcome = regard("translate", folders.model, *arguments.split(), stdin="abc\n")
    assert message in error_line(outcome, 1)


def test_a_line_without_a_pinned_token_is_named(regard: Command, folders: Folders) -> None:
    outcome = regard("translate", folders.model, "--pin", "0:3=0.5", stdin="abc\n\nd\n")
    assert "line 3: pins for 'd' must have" in error_line(outcome, 1)


def test_a_hyphen_is_standard_input_but_no_output(
    regard: Command, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = regard("translate", folders.model, stdin="abc\nd\n")
    assert regard("translate", folders.model, "-", stdin="abc\nd\n") == expected
    outcome = regard("translate", folders.model, "--attention", "-", stdin="abc\n")
    assert "--attention takes the path of a file, got -" in error_line(outcome, 1)
    assert not any(tmp_path.iterdir())


def test_progress_counts_every_line_once(
    regard: Command, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    advance = Progress.advance

    def record(self: Progress, count: int, *others: Any) -> None:
        counts.append(count)
        advance(self, count, *others)

    monkeypatch.setattr(Progress, "advance", record)
    monkeypatch.setattr("regard.cli.translate._CHUNK", 3)
    text = "abc\n\nd\nda\n\n"
    assert regard("translate", folders.model, "--out", tmp_path / "out", stdin=text).status == 0
    assert sum(counts) == 5
    (tmp_path / "words.tsv").write_text("abc\tA\n")
    counts.clear()
    options = ["--dictionary", tmp_path / "words.tsv", "--out", tmp_path / "out"]
    assert regard("translate", folders.model, *options, stdin=text).status == 0
    assert sum(counts) == 5


@pytest.mark.parametrize("option", ["--beam-size", "--n-best"])
def test_beam_size_and_n_best_must_be_positive(
    regard: Command, folders: Folders, option: str
) -> None:
    result = regard("translate", folders.model, option, 0, stdin="abc\n")
    assert "must be at least 1" in error_line(result, 1)


def test_a_failed_translation_writes_no_files(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    options = ["--attention", tmp_path / "a.jsonl", "--alignments", tmp_path / "b.txt"]
    result = regard("translate", folders.model, tmp_path / "nowhere", *options)
    assert "cannot read" in error_line(result, 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["translate", "evaluate", "align", "plot"])
def test_a_missing_model_folder_is_reported(
    regard: Command, folders: Folders, command: str
) -> None:
    options = {
        "evaluate": [folders.pairs],
        "align": [folders.pairs],
        "plot": ["abc", "-o", "x.svg"],
    }
    result = regard(command, "nowhere", *options.get(command, []))
    assert "nowhere is not a model folder: it has no config.json" in error_line(result, 1)


def test_lines_with_tab_are_counted_if_the_model_reads_no_features(
    regard: Command, folders: Folders
) -> None:
    message = "2 lines with TAB, which the model reads as part of the text; of a file of pairs"
    assert message in regard("translate", folders.model, stdin="ab\tA B\nb\na\tA\n").err
    assert "TAB" not in regard("translate", folders.model, stdin="ab\n").err


def test_a_table_is_not_read_as_lines(regard: Command, folders: Folders) -> None:
    message = error_line(regard("translate", folders.model, "pairs.jsonl"), 1)
    assert "pairs.jsonl is a table, and this command reads one source per line" in message
    options = ["--data.train", folders.pairs, "--data.dev", folders.pairs, "--out", "student"]
    result = regard("distill", folders.model, *options, "--unlabelled", "more.csv")
    assert "more.csv is a table, and this command reads one source" in error_line(result, 1)


# regard evaluate


def test_evaluate_writes_every_metric_as_json(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.json"
    result = regard("evaluate", folders.model, folders.pairs, "--json", path)
    assert result.status == 0
    labels = ("outputs not exact (WER of g2p papers)", "word error rate", "token error rate")
    for name in (*labels, "exact match", "WER", "PER", "CER", "BLEU", "chrF", "95 % interval"):
        assert name in result.out
    metrics = json.loads(path.read_text())
    names = ["bleu", "chrf", "exact_match", "wer", "word_error_rate", "per", "cer"]
    tables = ["by_length", "calibration", "by_unknown", "confusions"]
    assert list(metrics) == ["n", *names, *tables, "training_overlap"]
    assert metrics["n"] == len({source for source, _ in read_pairs(folders.pairs)})
    for name in names:
        signature_keys = {"signature"} if name in ("bleu", "chrf") else set()
        assert set(metrics[name]) == {"value", "low", "high"} | signature_keys
        low, value, high = (metrics[name][key] for key in ("low", "value", "high"))
        assert 0 <= low <= value <= high <= 100 + 1e-9
    assert metrics["wer"]["value"] == pytest.approx(100 - metrics["exact_match"]["value"])
    assert sum(part["n"] for part in metrics["by_length"]) == metrics["n"]
    # these pairs are the training data
    other = tmp_path / "other.tsv"
    other.write_text("a\tA\n")
    message = error_line(regard("evaluate", folders.model, other, "--json", folders.pairs), 1)
    assert "--json would overwrite the input" in message
    assert metrics["training_overlap"]["n"] == metrics["n"]
    assert f"warning: {metrics['n']} of {metrics['n']} distinct sources are in the" in result.err


def test_evaluate_compares_with_another_model_and_with_outputs(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    sources = [source for source, _ in read_pairs(folders.pairs)]
    outputs, json_file = tmp_path / "outputs.txt", tmp_path / "j"
    outputs.write_text("".join(f"{source.upper()}\n" for source in sources))
    comparisons: list[dict[str, object]] = []
    for other in (folders.no_attention, outputs, folders.model):
        arguments = ["evaluate", folders.model, folders.pairs, "--compare", other]
        result = regard(*arguments, "--json", json_file)
        assert result.status == 0
        assert f"compared with {other}, paired bootstrap" in result.out
        comparisons.append(json.loads(json_file.read_text())["comparison"])
    report = json.loads(json_file.read_text())
    regard("evaluate", folders.no_attention, folders.pairs, "--json", json_file)
    expected = json.loads(json_file.read_text())
    for name in ("bleu", "chrf", "exact_match", "wer", "word_error_rate", "per", "cer"):
        found = comparisons[0][name]
        assert found["value"] == report[name]["value"]
        assert found["other"] == expected[name]["value"]
        assert comparisons[2][name]["p_value"] == 1
    assert comparisons[1]["cer"]["other"] > 0


def test_outputs_to_compare_with_must_fit_the_pairs(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    pairs, outputs = tmp_path / "pairs.tsv", tmp_path / "outputs.txt"
    pairs.write_text("ab\tA B\nba\tB A\nab\tA\n")
    arguments = ["evaluate", folders.model, pairs, "--compare", outputs]
    for text, message in (
        ("A B\nB A\n", f"{outputs} has 2 lines, but {pairs} has 3 pairs; give one output per pair"),
        ("A B\nB A\nA\n", f"{outputs}, line 3: 'A' differs from line 1, but both are outputs for"),
        (
            "A B\nB A\t0.9\nA B\n",
            f"{outputs}, line 2 has a TAB, which no target has; give the outp",
        ),
    ):
        outputs.write_text(text)
        assert message in error_line(regard(*arguments), 1)
    table = ["evaluate", folders.model, pairs, "--compare", "outputs.jsonl"]
    message = "outputs.jsonl is a table, and this command reads one output per line"
    assert message in error_line(regard(*table), 1)
    outputs.write_text("A B\nB A\nA  B \n")
    assert regard(*arguments).status == 0
    message = error_line(regard(*arguments, "--json", outputs / "new.json"), 1)
    assert f"{outputs} is not a folder; choose another path" in message
    message = error_line(regard(*arguments, "--json", outputs), 1)
    assert "--json would overwrite the input" in message
    outputs.unlink()
    assert f"cannot read {outputs}" in error_line(regard(*arguments), 1)


def test_evaluate_measures_the_faithfulness_of_attributions(
    regard: Command, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.cli.evaluate._FAITHFULNESS_SOURCES", 4)
    arguments = ["--faithfulness", "--json", tmp_path / "j"]
    result = regard("evaluate", folders.model, folders.pairs, *arguments)
    found = json.loads((tmp_path / "j").read_text())["faithfulness"]
    assert 2 <= found["n"] <= 4
    methods = ["attention", "erasure", "gradient", "integrated_gradients", "random"]
    assert list(found["methods"]) == methods
    for part in found["methods"].values():
        for name in ("comprehensiveness", "sufficiency"):
            assert list(part[name]) == ["1", "2", "20 %"]
            assert all(-100 <= value <= 100 for value in part[name].values())
    assert "without top 20 %" in result.out
    monkeypatch.setattr("regard.faithfulness.find_spec", lambda _: None)
    result = regard("evaluate", folders.no_attention, folders.pairs, *arguments)
    assert "pip install 'regard[attribution]'" in result.err
    found = json.loads((tmp_path / "j").read_text())["faithfulness"]
    assert list(found["methods"]) == ["erasure", "gradient", "random"]


@pytest.mark.parametrize("method", ["erasure", "gradient", "integrated_gradients"])
def test_plot_draws_attributions(
    regard: Command, folders: Folders, tmp_path: Path, method: str
) -> None:
    for folder, options in ((folders.model, []), (folders.no_attention, ["--target", "A B"])):
        path = tmp_path / f"{method}.svg"
        assert regard("plot", folder, "ab", "-o", path, "--method", method, *options).status == 0
        assert method.replace("_", " ").split()[0] in path.read_text()


def test_evaluate_lists_confusions_and_sources_with_unknown_tokens(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    pairs, json_file = tmp_path / "pairs.tsv", tmp_path / "j"
    pairs.write_text("ab\tX\nxx\tA B\nba\tX\n")
    arguments = ["evaluate", folders.model, pairs, "--json", json_file]
    result = regard(*arguments, "--confusions", 2)
    report = json.loads(json_file.read_text())
    assert [(part["unknown"], part["n"]) for part in report["by_unknown"]] == [
        (False, 2),
        (True, 1),
    ]
    assert "unknown tokens " in result.out
    assert len(report["confusions"]) == 2
    first = report["confusions"][0]
    assert first["count"] >= report["confusions"][1]["count"] >= 1
    assert set(first["examples"][0]) == {"source", "output", "reference"}
    assert "example: output (reference)" in result.out
    without = regard(*arguments, "--confusions", 0)
    assert "example:" not in without.out
    assert json.loads(json_file.read_text())["confusions"] == []
    message = error_line(regard(*arguments, "--confusions", -1), 1)
    assert "--confusions must be at least 0, got -1" in message


def test_targets_in_upper_case_are_reported_if_the_model_writes_lower_case(
    regard: Command, tmp_path: Path
) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tA\nb\tb\n")
    options = ["--data.train", tmp_path / "pairs.tsv", "--data.dev", tmp_path / "pairs.tsv", *TINY]
    options += ["--training.max_updates", 1, "--target.lowercase", "true"]
    assert regard("train", "--out", tmp_path / "model", *options).status == 0
    command = ["evaluate", tmp_path / "model", tmp_path / "pairs.tsv"]
    expected = f"{tmp_path / 'model'} writes lower case, and 1 target contains upper case"
    assert expected in regard(*command).err
    assert "upper case" not in regard(*command, "--lowercase").err
    options = [option for option in options if option not in ("--target.lowercase", "true")]
    assert regard("train", "--out", tmp_path / "cased", *options).status == 0
    other = ["evaluate", tmp_path / "cased", tmp_path / "pairs.tsv"]
    assert "upper case" not in regard(*other).err
    assert expected in regard(*other, "--compare", tmp_path / "model").err


def test_any_of_several_references_counts_as_a_match(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    translations = regard("translate", folders.model, stdin="abc\ndd\n").lines
    rows = [f"abc\tB\nabc\t{translations[0]}\n", f"dd\tB\ndd\t{translations[1].lower()}\nabc\tC\n"]
    (tmp_path / "f.tsv").write_text("".join(rows))
    exact_match: list[float] = []
    for options in ([], ["--lowercase"]):
        arguments = [
            "evaluate",
            folders.model,
            tmp_path / "f.tsv",
            "--json",
            tmp_path / "j",
            *options,
        ]
        assert regard(*arguments).status == 0
        metrics = json.loads((tmp_path / "j").read_text())
        assert metrics["n"] == 2
        exact_match.append(metrics["exact_match"]["value"])
    assert exact_match == [50.0, 100.0]


def test_the_bleu_tokenizer_is_in_the_signature(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    options = ["--bleu-tokenize", "char", "--json", tmp_path / "j", "--beam-size", 1]
    assert regard("evaluate", folders.model, folders.pairs, *options).status == 0
    assert "tok:char" in json.loads((tmp_path / "j").read_text())["bleu"]["signature"]


@pytest.mark.parametrize("command", ["evaluate", "align"])
def test_pairs_to_evaluate_on_must_all_be_valid(
    regard: Command, folders: Folders, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("ab\tA B\nab\n")
    message = error_line(regard(command, folders.model, path), 1)
    assert "f.tsv: 1 of 2 lines cannot be used: line 2 has no second column" in message
    path.write_text("")
    assert "f.tsv contains no pair" in error_line(regard(command, folders.model, path), 1)
    path.write_text("ab\tA B\tx\nba\tB A\ty\n")
    result = regard(command, folders.model, path)
    assert result.status == 0
    assert result.err.count("further columns ignored on 2 lines") == 1


# regard align


def test_many_outputs_per_line_are_held_for_few_lines_at_a_time() -> None:
    lines = ["abc"] * 9
    assert list(map(len, translate._chunks(lines, 1))) == [9]
    assert list(map(len, translate._chunks(lines, 500))) == [4, 4, 1]
    assert list(map(len, translate._chunks(["a" * 500] * 9, 100))) == [1] * 9


def test_align_prints_a_pharaoh_line_per_pair(regard: Command, folders: Folders) -> None:
    result = regard("align", folders.model, folders.pairs)
    assert (result.status, result.err) == (0, "")
    for line, (source, target) in zip(result.lines, read_pairs(folders.pairs), strict=True):
        for link in line.split():
            left, right = map(int, link.split("-"))
            assert left < len(source)
            assert right < len(target.split())


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_gold_links_equal_to_the_output_give_no_error(
    regard: Command, folders: Folders, tmp_path: Path, suffix: str
) -> None:
    translations = regard("align", folders.model, folders.pairs).out
    gold, metrics = tmp_path / f"gold{suffix}", tmp_path / "metrics.json"
    gold.write_bytes(gzip.compress(translations.encode()) if suffix else translations.encode())
    result = regard("align", folders.model, folders.pairs, "--gold", gold, "--json", metrics)
    assert (result.status, result.out) == (0, translations)
    assert result.err == "alignment error rate 0.0000, precision 1.0000, recall 1.0000\n"
    assert json.loads(metrics.read_text()) == {"n": 40, "aer": 0, "precision": 1, "recall": 1}


def test_wrong_gold_links_give_an_error_rate_of_1(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    predicted = regard("align", folders.model, folders.pairs).lines
    lengths = [len(source) for source, _ in read_pairs(folders.pairs)]
    wrong = [
        " ".join(f"{i}-{j}" for i in range(n) for j in range(n) if f"{i}-{j}" not in line.split())
        for n, line in zip(lengths, predicted, strict=True)
    ]
    (tmp_path / "gold").write_text("".join(f"{line}\n" for line in wrong))
    result = regard("align", folders.model, folders.pairs, "--gold", tmp_path / "gold")
    assert "alignment error rate 1.0000, precision 0.0000, recall 0.0000" in result.err


def test_gold_links_must_match_the_pairs(regard: Command, folders: Folders, tmp_path: Path) -> None:
    gold = tmp_path / "gold"
    gold.write_text("0-0\n" * 39)
    arguments = ["align", folders.model, folders.pairs]
    assert "gold has 39 lines for the 40 lines of" in error_line(
        regard(*arguments, "--gold", gold), 1
    )
    gold.write_text("0-0\n" * 39 + "0:0\n")
    assert "gold, line 40: expected links" in error_line(regard(*arguments, "--gold", gold), 1)
    gold.write_text("0-0\n" * 39 + "0-9\n")
    assert "gold, line 40: 0-9 is outside its texts" in error_line(
        regard(*arguments, "--gold", gold), 1
    )
    assert "give --gold too" in error_line(regard(*arguments, "--json", tmp_path / "j"), 1)


def test_align_counts_unknown_tokens(regard: Command, folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "swapped").write_text("x\tab\nb\tB\n")
    err = regard("align", folders.model, tmp_path / "swapped").err
    assert "aligning: source tokens not in the vocabulary: 1 ('x' 1x)\n" in err
    assert "aligning: target tokens not in the vocabulary: 1 ('ab' 1x)\n" in err


def test_align_writes_weights_and_log_probabilities(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    path = tmp_path / "weights.jsonl"
    result = regard("align", folders.model, folders.pairs, "--attention", path)
    assert result.lines == regard("align", folders.model, folders.pairs).lines
    pairs = read_pairs(folders.pairs)
    outputs = Translator.load(folders.model, "cpu").align(
        [source for source, _ in pairs], [target for _, target in pairs], length_penalty=0.0
    )
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry, output in zip(entries, outputs, strict=True):
        assert entry["text"] == output.text
        assert entry["source_tokens"] == output.source_tokens
        assert entry["log_prob"] == pytest.approx(output.score, rel=1e-5)
        np.testing.assert_allclose(entry["attention"], output.attention, atol=1e-5)


def test_align_computes_a_part_of_the_pairs_at_a_time(
    regard: Command, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold, files = tmp_path / "gold", [tmp_path / "all.jsonl", tmp_path / "parts.jsonl"]
    arguments = ["align", folders.model, folders.pairs, "--attention"]
    result = regard(*arguments, files[0])
    gold.write_text(result.out)
    monkeypatch.setattr("regard.cli.align._CHUNK", 7)
    in_parts = regard(*arguments, files[1], "--gold", gold)
    assert in_parts.out == result.out
    assert in_parts.err == "alignment error rate 0.0000, precision 1.0000, recall 1.0000\n"
    rows = [list(map(json.loads, path.read_text().splitlines())) for path in files]
    for row, other in zip(*rows, strict=True):
        attention, weights = row.pop("attention"), other.pop("attention")
        np.testing.assert_allclose(attention, weights, atol=2e-6)
        for name in ("score", "log_prob"):
            assert row.pop(name) == pytest.approx(other.pop(name), abs=2e-6)
        assert row == other
    gold.write_text("0-0\n" * 30 + "0-9\n" * 10)
    before = files[1].read_bytes()
    message = error_line(regard(*arguments, files[1], "--gold", gold), 1)
    assert f"{gold}, line 31: 0-9 is outside its texts" in message
    assert files[1].read_bytes() == before


def test_align_combines_both_directions(regard: Command, folders: Folders, tmp_path: Path) -> None:
    rows = read_pairs(folders.pairs)
    reverse = tmp_path / "reverse.tsv"
    reverse.write_text("".join(f"{target}\t{source}\n" for source, target in rows))
    other = tmp_path / "other"
    units = ["--source.unit", "whitespace", "--target.unit", "char"]
    regard("train", "--data.train", reverse, "--out", other, *TWO_UPDATES, *units)
    forward = Translator.load(folders.model, "cpu").align(*map(list, zip(*rows, strict=True)))
    swapped = [(target, source) for source, target in rows]
    backward = Translator.load(other, "cpu").align(*map(list, zip(*swapped, strict=True)))
    arguments = ["align", folders.model, folders.pairs, "--reverse", other]
    for options in ([], ["--symmetrize", "union", "--threshold", "0.2"]):
        method, threshold = (options[1], 0.2) if options else ("soft", 0.0)
        expected = [
            str(symmetrize(there, back, method, threshold))
            for there, back in zip(forward, backward, strict=True)
        ]
        assert regard(*arguments, *options).lines == expected
    result = regard("align", folders.model, folders.pairs, "--reverse", folders.model)
    assert f"{folders.pairs}, line 1: the models split the source" in result.err.splitlines()[-1]
    assert (result.status, result.out) == (1, "")


def test_options_of_two_directions_need_both(regard: Command, folders: Folders) -> None:
    arguments = ["align", folders.model, folders.pairs]
    assert "give --reverse DIR" in error_line(regard(*arguments, "--symmetrize", "union"), 1)
    assert "did you mean union?" in error_line(regard(*arguments, "--symmetrize", "unio"), 2)
    assert "must be from 0 to 1" in error_line(regard(*arguments, "--threshold", "2"), 1)


# regard plot


@pytest.mark.parametrize("suffix", ["json", "svg", "html"])
def test_plot_writes_a_chart(
    regard: Command, folders: Folders, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"map.{suffix}"
    result = regard("plot", folders.model, "abc", "-o", path)
    (text,) = regard("translate", folders.model, stdin="abc").lines
    assert (result.status, result.out, result.err) == (0, f"abc -> {text}, saved to {path}\n", "")
    assert os.listdir(tmp_path) == [path.name]
    content = path.read_text()
    if suffix == "json":
        assert np.array(json.loads(content)["attention"]).shape == (len(text.split()), 4)
    assert {"svg": "<svg", "html": "<!doctype html", "json": "{"}[suffix] in content.lower()[:200]


def test_a_chart_of_another_format_is_refused_before_the_model_is_loaded(
    regard: Command, tmp_path: Path
) -> None:
    result = regard("plot", tmp_path / "none", "abc", "-o", tmp_path / "map.jpg")
    assert result.status == 1
    assert "a chart is saved as .html, .png, .svg, .pdf or .json, got" in result.err


@pytest.mark.parametrize("text", ["- a b", "-5", "-.5 a", "- a=b"])
def test_a_text_may_begin_with_a_dash(
    regard: Command, folders: Folders, tmp_path: Path, text: str
) -> None:
    result = regard("plot", folders.model, text, "-o", tmp_path / "map.json", "--target", "D")
    assert (result.status, result.out) == (0, f"{text} -> D, saved to {tmp_path / 'map.json'}\n")


def test_plot_decodes_once(
    regard: Command, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.translator.forced_decode", None)
    assert regard("plot", folders.model, "abc", "-o", tmp_path / "map.svg").status == 0


def test_plot_can_force_the_output(regard: Command, folders: Folders, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    result = regard("plot", folders.model, "abc", "-o", path, "--target", "D D")
    assert result.out.startswith("abc -> D D, ")
    assert json.loads(path.read_text())["target_tokens"] == ["D", "D"]
    assert "not in the vocabulary" not in result.err
    for command in (
        ["plot", folders.model, "abcz", "-o", path],
        ["explain", "--model", folders.model, "abcz"],
    ):
        notes = regard(*command, "--target", "D Z").err
        assert "source tokens not in the vocabulary: 1 ('z' 1x)" in notes
        assert "target tokens not in the vocabulary: 1 ('Z' 1x)" in notes
    command = ["plot", folders.model, "abc", "-o", path, "--target", "D D", "--beam-size", 3]
    assert "--beam-size has no effect with --target" in error_line(regard(*command), 1)


def test_charts_that_cannot_be_drawn_are_reported(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    unknown_suffix = regard("plot", folders.model, "abc", "-o", tmp_path / "map.gif")
    assert "saved as .html, .png, .svg, .pdf or .json, got" in error_line(unknown_suffix, 1)
    empty = regard("plot", folders.model, " ", "-o", tmp_path / "map.svg")
    assert "there is nothing to draw: the text is empty" in error_line(empty, 1)
    empty_target = regard("plot", folders.model, "abc", "--target", "", "-o", tmp_path / "map.svg")
    assert "nothing to draw" in error_line(empty_target, 1)
    options = ["--method", "erasure", "--head", 0, "-o", tmp_path / "map.svg"]
    layer = regard("plot", folders.model, "abc", *options)
    assert "leave them out with --method erasure" in error_line(layer, 1)
    assert os.listdir(tmp_path) == []


def test_all_truncated_outputs_that_are_printed_are_counted(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folders.model, model)
    weights = load_file(model / "model.safetensors")
    (bias,) = (tensor for name, tensor in weights.items() if name.endswith("output.bias"))
    bias[EOS] -= 100
    save_file(weights, model / "model.safetensors")
    (tmp_path / "lines").write_text("ab\n\nb\n")
    for count, number in ((1, 2), (3, 6)):
        result = regard("translate", model, tmp_path / "lines", "--n-best", count)
        assert result.status == 0
        assert f"{number} outputs truncated at the length limit\n" in result.err


def test_a_model_that_outputs_nothing_is_reported(
    regard: Command, folders: Folders, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folders.model, model)
    weights = load_file(model / "model.safetensors")
    (bias,) = (tensor for name, tensor in weights.items() if name.endswith("output.bias"))
    bias[EOS] += 100
    save_file(weights, model / "model.safetensors")
    call = ["plot", model, "abc", "-o", tmp_path / "map.svg"]
    message = error_line(regard(*call), 1)
    assert "there is nothing to draw: the model's output for this text is empty; give another" in (
        message
    )
    config = json.loads((model / "config.json").read_text())
    config["metadata"]["warning"] = "the model has learned nothing yet: …; train longer"
    del config["sha256"]
    (model / "config.json").write_text(json.dumps(config))
    assert "is empty; the model has learned nothing yet: …; train longer" in (
        error_line(regard(*call), 1)
    )
    forced = regard(*call, "--target", "A B")
    assert (forced.status, forced.out) == (0, f"abc -> A B, saved to {tmp_path / 'map.svg'}\n")
    assert forced.err == "regard plot: the model has learned nothing yet: …; train longer\n"
    assert "there is no step to explain" in error_line(
        regard("explain", "--model", model, "abc"), 1
    )


# A model without attention


def test_a_model_without_attention_translates(
    regard: Command, folders: Folders, lines: str
) -> None:
    result = regard("translate", folders.no_attention, lines)
    assert result.status == 0
    assert [not line for line in result.lines] == BLANK
    assert regard("evaluate", folders.no_attention, folders.pairs).status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "translate NO_ATTENTION LINES --attention OUT",
        "translate NO_ATTENTION LINES --alignments OUT",
        "translate NO_ATTENTION LINES --heatmap",
        "align NO_ATTENTION PAIRS",
        "plot NO_ATTENTION abc -o OUT.svg",
    ],
)
def test_attention_of_a_model_without_attention_is_rejected(
    regard: Command, folders: Folders, lines: str, tmp_path: Path, arguments: str
) -> None:
    out = tmp_path / "new"
    names = {
        "NO_ATTENTION": folders.no_attention,
        "PAIRS": folders.pairs,
        "LINES": lines,
        "OUT": str(out),
    }
    names["OUT.svg"] = f"{out}.svg"
    result = regard(*(names.get(word, word) for word in arguments.split()))
    assert "has no attention" in error_line(result, 1)
    assert os.listdir(tmp_path) == [Path(lines).name]


# Other kinds of models


@pytest.mark.slow
def test_a_transformer_gives_the_same_in_python_and_on_the_command_line(
    regard: Command, folders: Folders, lines: str, tmp_path: Path
) -> None:
    out, weights_file = tmp_path / "model", tmp_path / "weights.jsonl"
    arguments = [
        "train",
        "--data.train",
        folders.pairs,
        "--data.dev",
        folders.pairs,
        "--out",
        out,
        *TINY,
    ]
    widths = [
        "--model.decoder_dim",
        16,
        "--model.feed_forward_dim",
        16,
        "--training.max_updates",
        60,
    ]
    assert regard(*arguments, "--model.kind", "transformer", *widths).status == 0
    result = regard("translate", out, lines, "--attention", weights_file)
    expected = Translator.load(out).translate(LINES)
    assert result.lines == [output.text for output in expected]
    entries = [json.loads(line) for line in weights_file.read_text().splitlines()]
    for output, entry in zip(expected, entries, strict=True):
        assert output.tokens == entry["tokens"]
        weights = np.array(entry["attention"]).reshape(output.attention.shape)
        np.testing.assert_allclose(output.attention, weights, atol=2e-6)
    layer = read_settings(out)["metadata"]["attention_layer"]
    np.testing.assert_allclose(
        expected[0].attention, expected[0].attention_heads[:, layer].mean(1), atol=1e-6
    )


def test_features_are_read_from_their_column(regard: Command, tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "model"
    rows = [(word, word + ending, f"N;{tag}") for word in ("ab", "ba", "bb", "aab")
            for ending, tag in (("x", "SG"), ("y", "PL"))]  # fmt: skip
    pairs.write_text("".join("\t".join(row) + "\n" for row in rows))
    arguments = ["train", "--data.train", pairs, "--data.dev", pairs, "--out", out, *TWO_UPDATES]
    assert regard(*arguments, "--data.features_column", 3).status == 0
    assert json.loads((out / "source.json").read_text())["features"] == ["N", "PL", "SG"]
    result = regard("translate", out, stdin="ab\tN;PL\nab\n\tN;PL\n")
    assert len(result.lines) == 3
    assert result.lines[2] == ""
    assert "1 line without features (TAB)" in result.err
    assert "second TAB" not in result.err
    three_columns = regard("translate", out, stdin="ab\tabx\tN;PL\n")
    assert (
        "1 line with a second TAB, which the model reads as part of the features"
        in three_columns.err
    )
    report = tmp_path / "report.json"
    assert regard("evaluate", out, pairs, "--json", report).status == 0
    assert json.loads(report.read_text())["n"] == len(rows)
    aligned = regard("align", out, pairs)
    assert len(aligned.lines) == len(rows)
    for command in (["plot", out, "ab", "-o", tmp_path / "map.html", "--target", "abx"],
                    ["explain", "--model", out, "ab", "--target", "abx"]):  # fmt: skip
        assert "the text has no features (TAB)" in regard(*command).err
    two_columns = tmp_path / "two.tsv"
    two_columns.write_text("ab\tabx\n")
    assert "line 1 has no column 3 with features" in error_line(
        regard("evaluate", out, two_columns), 1
    )


def test_each_of_two_models_reads_its_own_features(
    regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, third, fourth, none = (tmp_path / name for name in ("pairs.tsv", "3", "4", "none"))
    pairs.write_text("ab\tabx\tSG\tS\nab\taby\tPL\tP\nba\tbax\tSG\tS\n")
    for out, options in (
        (third, ["--data.features_column", 3]),
        (fourth, ["--data.features_column", 4]),
        (none, []),
    ):
        data = ["--data.train", pairs, "--data.dev", pairs]
        assert regard("train", *data, "--out", out, *TWO_UPDATES, *options).status == 0
    seen: list[list[str | None]] = []
    translate = Translator.translate

    def record(self: Translator, sources: Any, *args: Any, **options: Any) -> Any:
        seen.append([features for _, features in sources])
        return translate(self, sources, *args, **options)

    monkeypatch.setattr(Translator, "translate", record)
    assert regard("evaluate", third, pairs, "--compare", fourth).status == 0
    assert seen == [["SG", "PL", "SG"], ["S", "P", "S"]]
    for models in ((third, none), (none, third)):
        arguments = ["evaluate", models[0], pairs, "--compare", models[1]]
        result = regard(*arguments)
        assert (result.status, "read different source features" in result.err) == (1, True)
        arguments = ["align", models[0], pairs, "--reverse", models[1]]
        assert f"{third} reads source features" in error_line(regard(*arguments), 1)
    pairs.write_text("ab\tabx\tSG\tS\n")  # without ambiguous sources
    assert regard("evaluate", third, pairs, "--compare", none).status == 0


def test_models_that_read_other_texts_are_not_compared(regard: Command, tmp_path: Path) -> None:
    models: list[Path] = []
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"en": "ab", "es": "ba", "fr": "bb"}\n')
    for target in ("es", "fr"):
        models.append(tmp_path / target)
        columns = ["--data.source_column", "en", "--data.target_column", target]
        data = ["--data.train", pairs, "--data.dev", pairs]
        assert regard("train", *data, *columns, "--out", models[-1], *TWO_UPDATES).status == 0
    message = error_line(regard("evaluate", models[0], pairs, "--compare", models[1]), 1)
    assert "one was trained on the columns en, es, the other on en, fr" in message
    (tmp_path / "pairs.tsv").write_text("ab\tba\n")  # whose columns have no names
    arguments = ["evaluate", models[0], tmp_path / "pairs.tsv", "--compare", models[1]]
    assert regard(*arguments).status == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}),
    ],
)
def test_waiting_threads_sleep_unless_the_user_decides_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: dict[str, str]
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["data", "no such dataset"]) != 0
    assert {name: os.environ[name] for name in names if name in os.environ} == expected


def test_the_settings_of_a_model_repeat_its_training(regard: Command, tmp_path: Path) -> None:
    pairs, first, second = (tmp_path / name for name in ("pairs.tsv", "first", "second"))
    pairs.write_text("ab\tA B\nb\tB\n")
    options = [*TINY, "--training.max_updates", 2]
    train = ["--data.train", pairs, "--data.dev", pairs]
    assert regard("train", *train, "--out", first, *options).status == 0
    result = regard("train", "--config", first / "config.json", "--out", second)
    assert result.status == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, second)]
    assert weights[0] == weights[1]
    found = [{**read_settings(folder), "out": None, "sha256": None} for folder in (first, second)]
    commands = [each["metadata"].pop("command") for each in found]
    assert [command.split()[:3] for command in commands] == [
        ["regard", "train", "--data.train"],
        ["regard", "train", "--config"],
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_during_an_import_is_raised_afterwards(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = signal.Signals[name]
    module = f"imported_at_{name.lower()}"
    source = f"import signal\ntry:\n    signal.raise_signal({number})\n    complete = True\n"
    (tmp_path / f"{module}.py").write_text(f"{source}except BaseException:\n    complete = False\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(number)
    complete: list[bool] = []

    def run() -> None:
        with _signals_as_exceptions():
            complete.append(importlib.import_module(module).complete)
            time.sleep(60)

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    assert complete == [True]
    assert getattr(raised.value, "signal_number", signal.SIGINT) == number
    assert signal.getsignal(number) == before


def test_float32_replaces_bfloat16_where_the_processor_has_no_products_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    (tmp_path / "words.txt").write_text("attention\n", encoding="utf-8")
    main(["translate", "english-phones", str(tmp_path / "words.txt"), "--precision", "bfloat16"])
    found = capsys.readouterr()
    assert found.out == "AH T EH N SH AH N\n"
    assert "this processor has no products in bfloat16; float32 replaces it" in found.err
    assert not rounds_to_bfloat16()
