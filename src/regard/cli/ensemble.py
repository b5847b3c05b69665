"""Combine several models into one that averages their log-probabilities.

The models must have the same tokenizers; their architectures may differ. Right-to-left models
rescore the outputs that the other models find. The output folder contains
copies of the models. Commands that translate, evaluate, align, plot or serve accept it like a model folder;
it has no training curve of its own, and it can be neither exported nor trained further.
"""

import shlex

from regard.cli.options import add_output_folder, loading
from regard.cli.parser import Parser
from regard.errors import quantity

_EXAMPLES = """
examples:
  regard ensemble run-1 run-2 run-3 --out all
  regard evaluate all test.tsv
"""


def run(arguments: list[str]) -> None:
    """Copy the models into an ensemble."""
    args = make_parser().parse_args(arguments)
    with loading("PyTorch"):
        from regard import ensemble

    combined = ensemble.save(args.folders, args.out)
    print(
        f"{args.out} is an ensemble of {quantity(max(1, len(combined.members)), 'model')}; to use it, run: "
        f"regard translate {shlex.quote(args.out)}"
    )


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(
        prog="regard ensemble",
        usage="regard ensemble DIR DIR… --out DIR",
        description=__doc__,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="model folder, ensemble or pretrained model"
    )
    add_output_folder(parser)
    return parser
