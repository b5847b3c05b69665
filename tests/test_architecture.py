"""The house: who may import whom, what is public, and what importing costs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SRC = Path(regard.__file__).parent

RANKS = {
    "errors": 0,
    "score_registry": 1,
    "config": 2, "files": 2, "migrations": 2, "progress": 2,
    "kernels": 3, "text": 3, "metrics": 3, "alignment": 3, "charts": 3,
    "scores": 4, "positions": 4, "layers": 5, "batching": 4, "pairs": 4, "datasets": 4,
    "attention": 5, "copy_mechanism": 5, "corpus": 6, "cells": 5, "schedule": 5,
    "encoders": 6,
    "decoders": 7,
    "models": 8,
    "model_folder": 9, "search": 9,
    "request": 10, "translation": 10,
    "translator": 11,
    "evaluation": 12, "model_card": 12,
    "checkpoints": 12,
    "trainer": 13,
    "training": 14,
    "demo": 15, "compare": 15, "curves": 15, "explanation": 15,
    "serving": 16,
    "cli": 17,
}  # fmt: skip


def _modules() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def _room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """The rooms that a file imports from, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path.name} imports relatively; write regard.…")
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "regard":
            names = [f"regard.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("regard.")}
    return found


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_downwards(path: Path) -> None:
    room = _room(path)
    for other in _imports(path) - {room}:
        assert RANKS[other] < RANKS[room], (
            f"{room} ({RANKS[room]}) imports {other} ({RANKS[other]})"
        )


def test_the_import_check_sees_imports() -> None:
    assert _imports(SRC / "trainer.py") >= {"model_folder", "translator", "text"}
    assert "charts" in _imports(SRC / "translation.py")  # inside a function


def test_every_room_has_a_rank_and_every_rank_a_room() -> None:
    assert {_room(path) for path in _modules()} == set(RANKS)


def test_public_names_are_listed_in_order_and_exist() -> None:
    assert regard.__all__ == sorted(regard.__all__, key=lambda name: (name.islower(), name))
    for name in regard.__all__:
        assert getattr(regard, name).__doc__
    with pytest.raises(AttributeError, match="atention"):
        _ = regard.atention  # type: ignore[attr-defined]


def test_public_names_are_documented_where_they_live() -> None:
    for name in regard.__all__:
        thing = getattr(regard, name)
        module = importlib.import_module(thing.__module__)
        assert getattr(module, name) is thing


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import regard", "torch altair vl_convert fastapi triton tokenizers accelerate"),
        (
            "import regard; regard.Attention",
            "altair vl_convert fastapi triton numba tokenizers accelerate",
        ),
        (
            "import regard; regard.Translator",
            "altair vl_convert fastapi triton accelerate sacrebleu",
        ),
        ("from regard.cli.main import main; main(['--help'])", "torch numpy jsonargparse"),
        ("import regard.cli.train", "torch numpy"),
    ],
)
def test_importing_stays_cheap(statement: str, absent: str) -> None:
    code = f"import sys; {statement}; print([n for n in {absent.split()} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
