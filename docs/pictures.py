"""Create the charts of README.md and benchmarks/README.md from stored numbers and a model.

    python docs/pictures.py                # docs/bottleneck.svg and docs/operator.svg
    python docs/pictures.py demo/model     # also docs/map.png

bottleneck.svg has the numbers of benchmarks/bottleneck.json, which come from the table.json of the
second `regard compare` of the README; operator.svg has those of the tables in benchmarks/README.md.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

from regard import Translator
from regard.comparison import by_length
from regard.demo import MAP_SENTENCE

DOCS = Path(__file__).parent
BENCHMARKS = DOCS.parent / "benchmarks"
PASSES = {"Forward and backward, median ms": "Forward and backward", "Forward:": "Forward"}


def main(model: str | None) -> None:
    runs = json.loads((BENCHMARKS / "bottleneck.json").read_text("utf-8"))
    for run in runs:
        fields = ("low", "high", "n", "exact_match")
        run["lengths"] = [
            SimpleNamespace(**dict(zip(fields, row, strict=True))) for row in run["lengths"]
        ]
    by_length([SimpleNamespace(**run) for run in runs]).save(DOCS / "bottleneck.svg")
    load_benchmark().save_chart(ratios(), str(DOCS / "operator.svg"))
    if model is not None:
        output = Translator.load(model).translate([MAP_SENTENCE])[0]
        output.chart(f"{output.source} → {output.text}").save(DOCS / "map.png")


def ratios() -> list[tuple[str, str, str, float]]:
    """Return pass, size, implementation and ratio of every time in the tables."""
    rows: list[tuple[str, str, str, float]] = []
    name, sizes = "", []
    for line in (BENCHMARKS / "README.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            started = [title for start, title in PASSES.items() if line.startswith(start)]
            name = started[0] if started else name if not line else ""
        elif name and cells[0] == "implementation":
            sizes = cells[1:]
        elif name and cells[0] != "---":
            for size, cell in zip(sizes, cells[1:], strict=True):
                if match := re.search(r"\(([\d.e+]+)x\)", cell):
                    rows.append((name, size, cells[0], float(match[1])))
    return rows


def load_benchmark() -> ModuleType:
    """Import benchmarks/operator.py, whose name is that of a standard module."""
    path = BENCHMARKS / "operator.py"
    spec = importlib.util.spec_from_file_location("operator_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
