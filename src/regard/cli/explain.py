"""regard explain --query 1,2 --keys '1,0;0,1;1,1': walk through one look, every move with numbers.

Vectors are numbers with commas, rows divided by semicolons, or the name of a .json or .npy file. With
--model DIR TEXT --step T the query, the keys and the score are those of a trained model at that step.
"""

import json
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError


def run(arguments: list[str]) -> None:
    """Print the walk."""
    parser = Parser(prog="regard explain", description=__doc__)
    parser.add_argument("text", type=str, nargs="?", help="with --model: what to translate")
    parser.add_argument("--query", type=str, help="the decoder's state")
    parser.add_argument("--keys", type=str, help="the encoder's states, a row each")
    parser.add_argument("--values", type=str, help="what is averaged; the keys by default")
    parser.add_argument("--weights", type=str, help="average with these instead of scoring")
    parser.add_argument("--labels", type=str, help="names of the states, with commas")
    parser.add_argument("--score", type=str, default="dot", help="name of the score")
    parser.add_argument(
        "--parameters", type=str, help="of the score, by letter (W, U, v, …): a .json or .npz file"
    )
    parser.add_argument("--model", type=str, help="a model folder")
    parser.add_argument("--step", type=int, default=1, help="output symbol to explain, from 1")
    parser.add_argument("--target", type=str, help="with --model: the output to force")
    parser.add_argument("--layer", type=int, help="with --model: layer of a transformer, from 0")
    parser.add_argument("--head", type=int, default=0, help="with --model: its head, from 0")
    parser.add_argument(
        "--without-normalising", action="store_true", help="show the raw average beside it"
    )
    parser.add_argument(
        "--dim", type=str, help="widths A..B: variance of dot products, measured and derived"
    )
    parser.add_argument("--digits", type=int, default=4, help="digits that are shown")
    parser.add_argument(
        "--format", type=str, default="text", help="text, markdown (formulas in LaTeX) or json"
    )
    given = parser.parse_args(arguments)
    if given.format not in ("text", "markdown", "json"):
        raise ConfigError(f"--format is text, markdown or json, got {given.format!r}")
    if given.dim:
        print(_variances(given.dim, given.format), end="")
        return
    found = _from_model(given) if given.model else _from_vectors(given)
    match given.format:
        case "json":
            print(found.to_json(), end="")
        case "markdown":
            print(found.to_markdown(given.digits, given.without_normalising), end="")
        case _:
            print(found.to_text(given.digits, given.without_normalising), end="")


def _from_model(given: Namespace) -> Any:
    from regard.explanation.from_model import explain_step
    from regard.translator import Translator

    if not (given.text or "").strip():
        raise DataError(
            "--model needs a text to translate: regard explain --model DIR TEXT --step 1"
        )
    translator = Translator.load(given.model, "cpu")
    found, output = explain_step(
        translator, given.text, given.step, target=given.target, layer=given.layer, head=given.head
    )
    if given.format != "json":
        print(
            f"{given.text} -> {output.text}; step {given.step}: {output.tokens[given.step - 1]}\n"
        )
    return found


def _from_vectors(given: Namespace) -> Any:
    from regard.explanation import explain

    if given["keys"] is None or (given.query is None and given.weights is None):
        raise ConfigError(
            "give --query and --keys, such as --query 1,2 --keys '1,0;0,1;1,1', or --model DIR TEXT"
        )
    return explain(
        None if given.query is None else _flat(_numbers(given.query, "--query")),
        _numbers(given["keys"], "--keys"),
        None if given["values"] is None else _numbers(given["values"], "--values"),
        given.score,
        parameters=None if given.parameters is None else _parameters(given.parameters),
        weights=None if given.weights is None else _flat(_numbers(given.weights, "--weights")),
        labels=None if given.labels is None else given.labels.split(","),
    )


def _numbers(text: str, option: str) -> Any:
    """Rows of numbers from the line, or from a file."""
    if text.endswith((".json", ".npy")):
        return _read(text)
    try:
        return [[float(number) for number in row.split(",")] for row in text.split(";")]
    except ValueError:
        raise ConfigError(
            f"{option} takes numbers with commas, rows divided by semicolons (1,0;0,1), or a .json "
            f"or .npy file, got {text!r}"
        ) from None


def _flat(rows: Any) -> Any:
    """One row as a vector."""
    return (
        rows[0] if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], list) else rows
    )


def _parameters(path: str) -> dict[str, Any]:
    if not path.endswith((".json", ".npz")):
        raise ConfigError(f"--parameters takes a .json or .npz file, got {path!r}")
    found = _read(path)
    if not isinstance(found, dict):
        raise DataError(f'{path} holds no parameters by letter, such as {{"W": [[1, 0], [0, 1]]}}')
    return found


def _read(path: str) -> Any:
    import numpy as np

    try:
        if path.endswith(".json"):
            return json.loads(Path(path).read_text(encoding="utf-8"))
        found = np.load(path, allow_pickle=False)  # nothing in a file can execute
        return dict(found) if path.endswith(".npz") else found
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}") from None


def _variances(span: str, form: str) -> str:
    from regard.explanation import variances

    low, separator, high = span.partition("..")
    try:
        first, last = int(low), int(high if separator else low)
    except ValueError:
        first, last = 0, -1
    if not 1 <= first <= last <= 100_000:
        raise ConfigError(f"--dim takes widths such as 1..1024 (at most 100000), got {span!r}")
    dims = [first]
    while dims[-1] < last:
        dims.append(min(2 * dims[-1], last))
    rows = variances(dims)
    if form == "json":
        return json.dumps(rows, indent=2) + "\n"
    lines = [
        "Variance of a dot product of components N(0, 1): derived D, divided by sqrt(D) 1, by D 1 / D.",
        "", "| D | s . h | s . h / sqrt(D) | s . h / D |", "|---|---|---|---|",
        *(f"| {row['dim']} | {row['dot']:.4g} | {row['scaled_dot']:.4f} | {row['over_dim']:.6f} |" for row in rows),
        "", "(20,000 pairs of vectors per width, seed 1.)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
