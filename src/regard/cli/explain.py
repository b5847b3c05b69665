"""regard explain --query 1,2 --keys '1,0;0,1;1,1': show every number in one attention step.

Separate the numbers of a vector with commas and rows with semicolons, or give a .json or .npy file.
With --model DIR TEXT --step T, the query, the keys and the score function are those of a trained
model at that step.
"""

import json
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from regard.cli.options import load_translator, report_missing_features, report_unknown
from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError, not_one_of

_FORMATS = ("text", "markdown", "json")
_OF_MODELS = ("text", "step", "target", "layer", "head")
_OF_VECTORS = ("query", "keys", "values", "weights", "labels", "score", "parameters")
_WITHOUT_EFFECT = {
    "--dim": ("model", *_OF_MODELS, *_OF_VECTORS, "unnormalised", "digits"),
    "--model": _OF_VECTORS,
    "--weights": ("score", "parameters", "unnormalised"),
    "--format json": ("unnormalised", "digits"),
}
"""Arguments that are refused, by the option that makes them useless."""


def run(arguments: list[str]) -> None:
    """Print the explanation."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.format not in _FORMATS:
        raise not_one_of("--format", options.format, _FORMATS)
    _refuse_arguments_without_effect(parser, options)
    if options.dim is not None:
        print(_variances(options.dim, options.format), end="")
        return
    explanation = _from_model(options) if options.model else _from_vectors(options)
    if options.format == "json":
        print(explanation.to_json(), end="")
    else:
        write = explanation.to_markdown if options.format == "markdown" else explanation.to_text
        print(write(options.digits, options.unnormalised), end="")


def _refuse_arguments_without_effect(parser: Parser, options: Namespace) -> None:
    def is_given(name: str) -> bool:
        return options[name] != parser.get_default(name)

    active = [f"--{name}" for name in ("dim", "model", "weights") if is_given(name)]
    active.append(f"--format {options.format}")
    reasons = [
        (name, f"has no effect with {mode}")
        for mode, names in _WITHOUT_EFFECT.items()
        if mode in active
        for name in names
    ]
    if not {"--dim", "--model"} & set(active):
        reasons += [(name, "needs --model") for name in _OF_MODELS]
    for name, reason in reasons:
        if is_given(name):
            what = "TEXT" if name == "text" else f"--{name}"
            raise ConfigError(f"{what} {reason}; omit {what}")


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard explain", description=__doc__)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="with --model: text to translate")
    parser.add_argument("--query", metavar="VECTOR", help="decoder state")
    parser.add_argument("--keys", metavar="ROWS", help="encoder states, one per row")
    parser.add_argument("--values", metavar="ROWS", help="values (default: the keys)")
    parser.add_argument(
        "--weights",
        metavar="VECTOR",
        help="attention weights, instead of computing them from scores",
    )
    parser.add_argument(
        "--labels", metavar="NAMES", help="names of the states, separated by commas"
    )
    parser.add_argument(
        "--score",
        default="dot",
        metavar="NAME",
        help="score function: dot, scaled_dot, cosine, bilinear, inner_product, additive or concat",
    )
    parser.add_argument(
        "--parameters",
        metavar="FILE",
        help=".json or .npz file with the parameters of the score function, named W, U, v, …",
    )
    parser.add_argument("--model", metavar="DIR", help="model folder or pretrained model")
    parser.add_argument(
        "--step", type=int, default=0, help="output token to explain, counted from 0"
    )
    parser.add_argument("--target", metavar="TEXT", help="with --model: output to force")
    parser.add_argument(
        "--layer", type=int, help="with --model: layer of a Transformer, counted from 0"
    )
    parser.add_argument(
        "--head", type=int, default=0, help="with --model: head of a Transformer, counted from 0"
    )
    parser.add_argument(
        "--unnormalised",
        action="store_true",
        help="also show the sum of the values weighted by the scores",
    )
    parser.add_argument(
        "--dim",
        metavar="A..B",
        help="show the measured and the theoretical variance of dot products for widths from A to B",
    )
    parser.add_argument("--digits", type=int, default=4, help="digits after the decimal point")
    parser.add_argument(
        "--format",
        default="text",
        metavar="NAME",
        help="text, markdown (formulas in LaTeX) or json",
    )
    return parser


def _from_model(options: Namespace) -> Any:
    if not (options.text or "").strip():
        raise DataError(
            "--model needs a text to translate: regard explain --model DIR TEXT --step 0"
        )
    translator = load_translator(options.model, "cpu")
    from regard.explanation.from_model import explain_step
    from regard.text import display_token

    source = translator.source.parse_source(options.text)
    report_missing_features("regard explain", translator, source[1])
    names = ("step", "target", "layer", "head")
    explanation, output = explain_step(translator, source, **{n: options[n] for n in names})
    report_unknown("regard explain", translator, output, options.target)
    if options.format != "json":
        token = display_token(output.tokens[options.step])
        print(f"{options.text} -> {output.text}; step {options.step}: {token}\n")
    return explanation


def _from_vectors(options: Namespace) -> Any:
    from regard.explanation import explain

    if options["keys"] is None or (options.query is None and options.weights is None):
        raise ConfigError(
            "give --query and --keys, such as --query 1,2 --keys '1,0;0,1;1,1', or --model DIR TEXT"
        )
    return explain(
        None if options.query is None else _flat(_numbers(options.query, "--query")),
        _numbers(options["keys"], "--keys"),
        None if options["values"] is None else _numbers(options["values"], "--values"),
        options.score,
        parameters=None if options.parameters is None else _parameters(options.parameters),
        weights=None if options.weights is None else _flat(_numbers(options.weights, "--weights")),
        labels=None if options.labels is None else options.labels.split(","),
    )


def _numbers(text: str, option: str) -> Any:
    """Parse rows of numbers, or read them from a file."""
    if text.endswith((".json", ".npy")):
        return _read(text)
    try:
        return [[float(number) for number in row.split(",")] for row in text.split(";")]
    except ValueError:
        raise ConfigError(
            f"{option} takes numbers separated by commas and rows separated by semicolons (1,0;0,1), "
            f"or a .json or .npy file, got {text!r}"
        ) from None


def _flat(rows: Any) -> Any:
    """Return a single row as a vector."""
    is_single = isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], list)
    return rows[0] if is_single else rows


def _parameters(path: str) -> dict[str, Any]:
    if not path.endswith((".json", ".npz")):
        raise ConfigError(f"--parameters takes a .json or .npz file, got {path!r}")
    parameters = _read(path)
    if not isinstance(parameters, dict):
        raise DataError(
            f'{path} must contain parameters by name, such as {{"W": [[1, 0], [0, 1]]}}'
        )
    return parameters


def _read(path: str) -> Any:
    import numpy as np

    try:
        if path.endswith(".json"):
            return json.loads(Path(path).read_text(encoding="utf-8"))
        with Path(path).open("rb") as file:
            arrays = np.load(file, allow_pickle=False)  # never executes code from the file
            return dict(arrays) if path.endswith(".npz") else arrays
    except Exception as error:  # a damaged file can raise any exception
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
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
        "Variance of the dot product of two vectors with components from N(0, 1). In theory, the variances in the three columns are D, 1 and 1 / D.",
        "", "| D | s . h | s . h / sqrt(D) | s . h / D |", "|---|---|---|---|",
        *(f"| {row['dim']} | {row['dot']:.4g} | {row['scaled_dot']:.4f} | {row['over_dim']:.6f} |" for row in rows),
        "", "Each number is measured on 20,000 pairs of vectors (seed 1).",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
