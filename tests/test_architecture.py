"""Import ranks of the modules, public names, and what importing the package loads."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SRC = Path(regard.__file__).parent

RANKS = {
    "errors": 0, "text_table": 0, "setting_checks": 1, "quantization": 1, "pretrained": 1,
    "score_registry": 1, "arrays": 1, "signals": 1,
    "config": 2, "files": 2, "lines": 2, "migrations": 2, "progress": 2,
    "kernels": 3, "text": 3, "metrics": 3, "calibration": 1, "alignment": 3, "charts": 3,
    "scores": 4, "positions": 4, "layers": 5, "batching": 4, "guided_alignment": 6, "word_links": 5, "table_files": 3, "pairs": 4,
    "datasets": 4, "curves": 4, "significance": 4, "confusions": 4, "overlap": 5,
    "attention": 5, "copy_mechanism": 5, "adaptation": 6, "mapped_pairs": 6, "recombination": 5, "edit_alignment": 1, "hidden_markov": 4, "examples": 7, "corpus": 8, "cells": 5, "schedule": 5, "optimizers": 5,
    "encoders": 6, "folded_encoder": 7,
    "decoders": 7,
    "models": 8, "hypotheses": 8,
    "model_folder": 9, "inference": 9, "search": 9, "distributed": 3,
    "translation": 8, "symmetrization": 9, "attribution": 10, "faithfulness": 11, "request": 10, "outputs": 11,
    "ensemble": 10, "version": 0,
    "reranking": 11, "translator": 12,
    "evaluation": 13, "dictionary": 13, "model_card": 12, "model_info": 13,
    "checkpoints": 12, "resume": 13,
    "accelerator": 13, "trainer": 14,
    "training": 15,
    "comparison": 4, "demo": 16, "aligner": 16, "compare": 16, "distillation": 16, "explanation": 16, "export": 16,
    "serving": 17,
    "cli": 18,
    "__main__": 19,
}  # fmt: skip


def _modules() -> list[Path]:
    return sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def _component(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Return the modules and packages of `regard` that a file imports, inside functions included."""
    imported: set[str] = set()
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
        imported |= {name.split(".")[1] for name in names if name.startswith("regard.")}
    return imported


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_modules_import_only_lower_ranks(path: Path) -> None:
    component = _component(path)
    for imported in _imports(path) - {component}:
        assert RANKS[imported] < RANKS[component], (
            f"{component} ({RANKS[component]}) imports {imported} ({RANKS[imported]})"
        )


def test_imports_are_detected() -> None:
    assert _imports(SRC / "trainer.py") >= {"model_folder", "translator", "text"}
    assert "charts" in _imports(SRC / "translation.py")  # inside a function


def test_ranks_cover_exactly_the_modules_and_packages() -> None:
    assert {_component(path) for path in _modules()} == set(RANKS)


def test_public_names_are_listed_in_order_and_exist() -> None:
    assert regard.__all__ == sorted(regard.__all__, key=lambda name: (name.islower(), name))
    for name in regard.__all__:
        assert getattr(regard, name).__doc__
    with pytest.raises(AttributeError, match="atention"):
        _ = regard.atention  # type: ignore[attr-defined]


def test_public_names_are_defined_in_the_module_they_report() -> None:
    assert regard.__version__[0].isdigit()
    for name in set(regard.__all__) - {"__version__"}:
        value = getattr(regard, name)
        module = importlib.import_module(value.__module__)
        assert getattr(module, name) is value


ATTEND = """
import torch
from regard.kernels import additive
for size, workspace in ((3, additive.WORKSPACE), (9, 100)):
    a, b, values, v = (torch.randn(shape, requires_grad=True) for shape in [(1, size, 4)] * 3 + [4])
    additive.attend(a, b, v, values, workspace=workspace).context.sum().backward()
"""


@pytest.mark.parametrize(
    "steps",
    [
        [
            ("import regard", "torch altair vl_convert fastapi triton tokenizers accelerate"),
            ("regard.Attention", "altair vl_convert fastapi triton numba tokenizers accelerate"),
            # PyTorch's compiler takes 140 MB
            (ATTEND, "altair vl_convert fastapi triton tokenizers accelerate sympy torch._dynamo"),
            ("regard.Translator", "altair vl_convert fastapi triton accelerate sacrebleu"),
        ],
        [("from regard.cli.main import main; main(['--help'])", "torch numpy jsonargparse")],
        [("import regard.cli.train", "torch numpy")],
    ],
)
def test_imports_do_not_load_heavy_packages(steps: list[tuple[str, str]]) -> None:
    """Run statements one after the other, each of which leaves some packages unloaded."""
    code = "import sys\n"
    for statement, absent in steps:
        code += (
            f"{statement}\nprint('loaded:', [n for n in {absent.split()} if n in sys.modules])\n"
        )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = [line for line in completed.stdout.splitlines() if line.startswith("loaded:")]
    assert loaded == ["loaded: []"] * len(steps)
