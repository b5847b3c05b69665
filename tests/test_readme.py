"""README and examples: every command and every line of Python in them works."""

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def _commands(text: str) -> list[list[str]]:
    """The words of every `regard` command, behind a pipe or not."""
    lines = text.replace("\\\n", " ").splitlines()
    pieces = [piece.strip() for line in lines for piece in line.split("#")[0].split("|")]
    return [shlex.split(piece)[1:] for piece in pieces if piece.startswith("regard ")]


TOUR = next(block for block in _blocks("sh") if "regard data" in block)


def test_the_tour_and_the_python_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    verbs: list[str] = []
    for verb, *arguments in _commands(TOUR):
        if verb == "train":
            arguments += ["--training.max_updates", "3", "--training.validate_every", "3"]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b c\n")))
        assert main([verb, *arguments]) == 0, (verb, capsys.readouterr().err)
        verbs.append(verb)
    assert set(verbs) == {"data", "train", "translate", "evaluate", "align", "plot"}
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "command", [words for block in _blocks("sh") for words in _commands(block)], ids=" ".join
)
def test_every_option_of_the_readme_exists(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *arguments = command
    assert verb in COMMANDS
    with pytest.raises(SystemExit) as left:
        sys.exit(main([verb, "--help"]))
    assert not left.value.code
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w.-]*", capsys.readouterr().out))
    for argument in arguments:
        if re.fullmatch(r"--?[a-z].*", argument):
            assert argument.split("=")[0] in known, f"regard {verb} has no {argument}"


def test_files_that_the_readme_points_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_the_source_tree_names_every_module() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")[1]
    for path in (ROOT / "src" / "regard").rglob("*.py"):
        folder = path.parent.name
        assert folder == "regard" or f"{folder}/" in tree, folder
        # built-in datasets, charts and commands: one file each, named for what it holds
        if path.stem != "__init__" and folder not in ("datasets", "charts", "cli"):
            assert f" {path.name} " in tree, path.name


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    few = ["2"] if "UPDATES" in path.read_text(encoding="utf-8") else []
    monkeypatch.setattr(sys, "argv", [str(path), *few])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).parent / "regard"
    done = subprocess.run(
        [command, "--version"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert re.fullmatch(r"regard \d+\.\d+\.\d+\n", done.stdout)
