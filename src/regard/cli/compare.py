"""regard compare --data.train F --data.dev F --attention none,additive,transformer --out DIR.

Without --training.max_minutes, which is for each model, all trainings share 8 minutes; without
--config the models are the small ones of the recipe `compare`.
"""

import os
import sys
from pathlib import Path

from regard.cli.parser import Parser, add_settings, recipe_first, settings
from regard.config import Device
from regard.errors import ConfigError
from regard.files import require_empty_folder


def run(arguments: list[str]) -> None:
    """Train the models one after the other, and print the table."""
    parser = Parser(prog="regard compare", description=__doc__)
    add_settings(parser)
    parser.add_argument(
        "--attention",
        type=str,
        default="none,additive,luong:dot,transformer",
        help="models, with commas: none, transformer, a score, luong:SCORE, bahdanau:SCORE, transformer:SCORE",
    )
    parser.add_argument("--out", type=str, required=True, help="folder for models, table and chart")
    parser.add_argument(
        "--seeds", type=str, default="1", help="a training of each model per seed, with commas"
    )
    parser.add_argument(
        "--test", type=str, help="pairs to measure on; those of --data.dev by default"
    )
    parser.add_argument(
        "--gold", type=str, help="gold links of the pairs to measure on, a Pharaoh line each"
    )
    parser.add_argument(
        "--beam-size",
        type=int,
        default=1,
        help="open hypotheses when measuring; 1 is greedy search",
    )
    parser.add_argument("--resume", action="store_true", help="keep models that are finished")
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    chosen = any(argument.partition("=")[0] == "--config" for argument in arguments)
    given = parser.parse_args(
        recipe_first(arguments if chosen else ["--config", "compare", *arguments])
    )
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    from regard.alignment import read_gold
    from regard.cli.pairs import good_pairs
    from regard.compare import compare, model_settings, table

    values = {**settings(given), "device": given.device}
    items = [item.strip() for item in given.attention.split(",")]
    for item in items:
        model_settings(item)
    if values["data"]["dev"] is None:
        raise ConfigError("models are compared on the same pairs: give --data.dev F")
    pairs = given.test or values["data"]["dev"]
    test = good_pairs(pairs, values["data"]["features_column"])
    gold = read_gold(given.gold) if given.gold else None
    runs = compare(
        values,
        items,
        Path(given.out) if given.resume else require_empty_folder(Path(given.out)),
        test,
        seeds=_seeds(given.seeds),
        gold=gold,
        beam_size=given.beam_size,
        resume=given.resume,
        say=lambda text: print(f"regard compare: {text}", file=sys.stderr),
    )
    print(table(runs), end="")
    print(f"\n{given.out} holds the models, table.md, table.json and by_length.html")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds takes whole numbers with commas, got {text!r}") from None
