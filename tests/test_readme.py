"""README, CONTRIBUTING and examples: commands and code run, and named files exist."""

import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import COMMANDS, main

pytestmark = pytest.mark.usefixtures("unchecked")

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def _commands(text: str) -> list[list[str]]:
    """Return the arguments of every `regard` command, after a pipe or not."""
    lines = text.replace("\\\n", " ").splitlines()
    pieces = [piece.strip() for line in lines for piece in line.split("#")[0].split("|")]
    return [shlex.split(piece)[1:] for piece in pieces if piece.startswith("regard ")]


TOUR = next(block for block in _blocks("sh") if "regard data" in block)


@pytest.mark.slow
def test_the_tour_and_the_python_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands: list[str] = []
    for command, *arguments in _commands(TOUR):
        if command == "train":
            arguments += ["--training.max_updates", "3", "--training.validate_every", "3"]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b c\n")))
        assert main([command, *arguments]) == 0, (command, capsys.readouterr().err)
        commands.append(command)
        if command == "data":
            for name in ("dev.tsv", "test.tsv", "test.align"):
                lines = (tmp_path / "data" / name).read_text("utf-8").splitlines(keepends=True)
                (tmp_path / "data" / name).write_text("".join(lines[:20]), "utf-8")
    assert set(commands) == {"data", "train", "translate", "evaluate", "align", "plot"}
    blocks = _blocks("python")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "call", [call for block in _blocks("sh") for call in _commands(block)], ids=" ".join
)
def test_every_option_of_the_readme_exists(
    call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *arguments = call
    assert command in COMMANDS
    with pytest.raises(SystemExit) as exit_info:
        sys.exit(main([command, "--help-all" if command in ("train", "compare") else "--help"]))
    assert not exit_info.value.code
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w.-]*", capsys.readouterr().out))
    for argument in arguments:
        if re.fullmatch(r"--?[a-z].*", argument):
            assert argument.split("=")[0] in known, f"regard {command} has no {argument}"


def test_files_that_the_readme_points_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_the_source_tree_names_every_module() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")[1]
    for path in (ROOT / "src" / "regard").rglob("*.py"):
        folder = path.parent.name
        assert folder == "regard" or f"{folder}/" in tree, folder
        # built-in datasets, charts and commands: one file each, named after its content
        if path.stem != "__init__" and folder not in ("datasets", "charts", "cli"):
            assert f" {path.name} " in tree, path.name


def test_the_files_named_under_where_a_change_goes_exist() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = contributing.split("## Where a change goes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| (.*`.*) \| (.*`.*) \|$", section, re.MULTILINE)
    assert len(rows) == 11
    for sources, tests in rows:
        files = [ROOT / "src" / "regard" / name for name in re.findall(r"`(.+?)`", sources)]
        files += [ROOT / "tests" / name for name in re.findall(r"`(.+?)`", tests)]
        for path in files:
            assert (path if path.stem != "NAME" else path.parent).exists(), path


def test_the_names_of_the_reference_exist() -> None:
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name in re.findall(r"auto\w+:: ([\w.]+)", page.read_text(encoding="utf-8")):
            assert pkgutil.resolve_name(name), name


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
    completed = subprocess.run(
        [command, "--version"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert re.fullmatch(r"regard \d+\.\d+\.\d+\n", completed.stdout)
