"""Train several models on the same pairs, for the same length of time, and compare them.

Without --config, the models are the small ones of the recipe `compare`.
"""

import shlex
import sys
from pathlib import Path

from regard.cli.options import (
    add_beam_size,
    add_device,
    add_output_folder,
    enable_huge_pages,
    loading,
)
from regard.cli.parser import Parser, add_settings, recipe_first, settings
from regard.config import DataConfig
from regard.errors import ConfigError
from regard.files import require_empty_folder
from regard.setting_checks import is_seed

_COMMON = (
    *("--data.train", "--data.dev", "--out", "--config", "--attention", "--seeds", "--test"),
    *("--gold", "--training.max_minutes", "--beam-size", "--resume", "--device"),
)

_EXAMPLES = """
examples:
  regard data reverse --out data
  regard compare --attention none,additive,luong:dot,transformer \\
      --data.train data/train.tsv --data.dev data/dev.tsv --out ladder
  regard compare --attention dot,additive --seeds 1,2,3 --training.max_minutes 2 \\
      --data.train data/train.tsv --data.dev data/dev.tsv --out scores
"""


def run(arguments: list[str]) -> None:
    """Train the models one after the other and print the table."""
    args = make_parser().parse_args(recipe_first(arguments, default=["compare"]))
    enable_huge_pages()
    with loading("PyTorch"):
        from regard.cli.pairs import read_gold_links, read_valid_pairs
        from regard.compare import compare, table

    models = [name.strip() for name in args.attention.split(",")]
    _require_effect(arguments, models)
    values = {**settings(args), "device": args.device}
    data = DataConfig(**values["data"])
    if data.dev is None:
        raise ConfigError("models are compared on the same pairs: give --data.dev F")
    out = Path(args.out)
    if not args.resume:
        require_empty_folder(out, "choose another folder (--out), or continue (--resume)")
    test = read_valid_pairs(args.test or data.dev, data, skip=data.bad_lines == "skip")
    runs = compare(
        values,
        models,
        out,
        test.pairs,
        seeds=_seeds(args.seeds),
        gold=read_gold_links(args.gold, test) if args.gold else None,
        names=[f"{test.name}, {test.unit} {number:,}" for number in test.numbers],
        beam_size=args.beam_size,
        resume=args.resume,
        log=lambda text: print(f"regard compare: {text}", file=sys.stderr),
        command=shlex.join(["regard", "compare", *arguments]),
    )
    print(table(runs), end="")
    print(f"\n{args.out} contains the models, table.md, table.json and by_length.html")


def _require_effect(arguments: list[str], models: list[str]) -> None:
    """Raise a ConfigError for an option that the models or the seeds replace; a file may contain it."""
    from regard.compare import model_settings

    options = [text for text in recipe_first(arguments) if not text.startswith("--config=")]
    options.insert(0, "--out=-")  # required, but a file may contain it
    given = settings(make_parser().parse_args(options, defaults=False))
    for name in sorted(set.intersection(*({*model_settings(model)} for model in models))):
        if name in given["model"]:
            raise ConfigError(
                f"--model.{name} has no effect here, because --attention selects it; leave it out"
            )
    if "seed" in given["training"]:
        raise ConfigError("--training.seed has no effect here; give --seeds")


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(
        prog="regard compare",
        usage="regard compare --data.train FILE --data.dev FILE --out DIR [options]",
        description=__doc__,
        epilog=_EXAMPLES,
        common=_COMMON,
    )
    add_settings(parser)
    options = parser.options()
    options["--data.dev"].help = "Validation pairs"
    options["--training.max_minutes"].help = (
        "Time budget of each model, in minutes (default: 8 minutes in total, divided among the models, unless "
        "a recipe sets it); the learning rate reaches 0 at its end."
    )
    parser.add_argument(
        "--attention",
        metavar="MODELS",
        default="none,additive,luong:dot,transformer",
        help="comma-separated list of models: none, transformer, SCORE, luong:SCORE, bahdanau:SCORE, "
        "posterior:SCORE or transformer:SCORE, where SCORE is the name of a score function; without a prefix, "
        "the decoder is model.decoder",
    )
    add_output_folder(parser)
    parser.add_argument(
        "--seeds",
        default="1",
        metavar="LIST",
        help="comma-separated list of seeds; each model is trained once per seed",
    )
    parser.add_argument(
        "--test", metavar="PAIRS", help="pairs to evaluate on (default: --data.dev)"
    )
    parser.add_argument(
        "--gold", metavar="FILE", help="gold links for the test pairs, one Pharaoh line per pair"
    )
    add_beam_size(parser, 1)
    parser.add_argument(
        "--resume", action="store_true", help="continue unfinished models, reuse the others"
    )
    add_device(parser)
    return parser


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds takes comma-separated integers, got {text!r}") from None
    if not all(map(is_seed, seeds)):
        raise ConfigError(f"--seeds must lie in [0, 2^63), got {text}")
    return seeds
