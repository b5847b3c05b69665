"""Train a model on source-target pairs and save it as a model folder.

The folder contains the best weights so far; Ctrl-C interrupts training.
"""

import re
import shlex
from pathlib import Path

import yaml
from jsonargparse import Namespace

from regard.cli.members import stop_with_parent, train_members
from regard.cli.options import (
    add_device,
    add_output_folder,
    enable_huge_pages,
    loading,
    print_saved,
)
from regard.cli.parser import Flag, Parser, add_settings, recipe_first, settings
from regard.errors import ConfigError

_COMMON = (
    *("--data.train", "--data.dev", "--out", "--config", "--model.kind", "--model.attention"),
    *("--training.max_minutes", "--training.metric", "--resume", "--init-from", "--device"),
    "--members",
)

_NO_FOLDER = "-"
"""In place of an output folder that is not given, if only the settings are printed."""

_EXAMPLES = """
examples:
  regard data reverse --out data
  regard train --data.train data/train.tsv --data.dev data/dev.tsv --out run
  regard train --data.train pairs.tsv.gz --out run --training.max_minutes 10
  regard train --data.train train.en,train.de --data.dev dev.en,dev.de --out en-de \\
      --config translation
  regard train --data.train pairs.tsv --out transformer --model.kind transformer
  regard train --data.train pairs.tsv --out run --resume
  regard train --data.train pairs.tsv --out all --members 3 --jobs 3
"""


def run(arguments: list[str]) -> None:
    """Train, with progress on standard error."""
    parser, expanded = make_parser(), recipe_first(arguments)
    if "--print-config" in expanded:
        print(_printed_settings(parser, expanded), end="")
        return
    args = parser.parse_args(expanded)
    given = parser.parse_args(expanded, defaults=False)
    enable_huge_pages()
    if args.members is not None or args.member:
        _train_ensemble(parser, expanded, args)
        return
    if args.jobs != 1:
        raise ConfigError(
            "--jobs needs --members, the number of models to train; give both or none"
        )
    with loading("PyTorch"):
        from regard.config import from_dict
        from regard.training import train

    config = from_dict({**settings(given), "out": args.out, "device": args.device})
    stop_with_parent()
    translator = train(
        config,
        resume=args.resume,
        init_from=args.init_from,
        tokenizers_from=args.tokenizers_from,
        adapt=args.adapt or args.config is None,
        command=shlex.join(["regard", "train", *arguments]),
    )
    print_saved(translator, args.out)


def _printed_settings(parser: Parser, arguments: list[str]) -> str:
    """Return a file of settings that trains as these arguments do.

    It lists all settings, but only the given ones if the others are chosen from the pairs or taken from a
    model.
    """
    from regard.config import from_dict

    expanded = [f"--out={_NO_FOLDER}", *arguments]  # required, but not for this
    args = parser.parse_args(expanded)
    from_dict(settings(parser.parse_args(expanded, defaults=False)))  # the file can be used
    adapts = args.adapt or args.config is None
    open_ones = adapts or args.init_from is not None or args.tokenizers_from is not None
    values = parser.parse_args(expanded, defaults=not open_ones).as_dict()
    values = {name: value for name, value in values.items() if value not in (None, {}, _NO_FOLDER)}
    values.pop("config", None)
    text = yaml.dump(
        values | {"adapt": adapts}, Dumper=_Dumper, allow_unicode=True, sort_keys=False
    )
    if not open_ones:
        return text
    origin = "chosen from the pairs" if adapts else "those of the model, or defaults"
    return f"# settings that are not listed are {origin}\n{text}"


class _Dumper(yaml.SafeDumper):
    """Writes strings so that they are read as strings: not 1e3 as a number, nor U+0085 as a space."""

    def represent_text(self, text: str) -> yaml.Node:
        """Return the node of a string, in double quotes unless it consists of plain characters."""
        plain = re.fullmatch(r"[A-Za-z/_][\w./ -]*", text, re.ASCII)
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def _train_ensemble(parser: Parser, arguments: list[str], args: Namespace) -> None:
    count = train_members(parser, arguments, args)
    with loading("PyTorch"):
        from regard import ensemble

    ensemble.complete(Path(args.out), count)
    print(
        f"the ensemble is saved in {args.out}; to use it, run: regard translate {shlex.quote(args.out)}"
    )


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(
        prog="regard train",
        usage="regard train --data.train FILE [--data.dev FILE] --out DIR [options]",
        description=__doc__,
        epilog=_EXAMPLES,
        common=_COMMON,
    )
    add_settings(parser, adapts=True)
    parser.add_argument(
        "--print-config", action=Flag, help="print the settings as a file for --config, and exit"
    )
    add_output_folder(parser)
    add_device(parser)
    parser.add_argument(
        "--adapt",
        action="store_true",
        help="choose the settings missing in --config to suit the pairs and the time budget, as "
        "without --config",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the last checkpoint in the output folder",
    )
    parser.add_argument(
        "--init-from",
        metavar="DIR",
        help="model folder, or pretrained model, to start from",
    )
    parser.add_argument(
        "--tokenizers-from",
        metavar="DIR",
        help="model folder to take the tokenizers from, so that both models can form an ensemble",
    )
    parser.add_argument(
        "--members",
        type=int | None,
        help="number of models to train as an ensemble",
    )
    parser.add_argument(
        "--member",
        action="append",
        metavar="SETTINGS",
        help="settings of one member, such as 'model.decoder=bahdanau model.cell=gru'; repeatable, in "
        "the order of the members",
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of members to train at once")
    return parser
