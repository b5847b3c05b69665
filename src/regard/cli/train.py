"""regard train --data.train F --data.dev F --out DIR: train a model and save a model folder."""

import shlex

from regard.cli.options import add_device, add_output_folder, enable_huge_pages
from regard.cli.parser import Parser, add_settings, recipe_first, settings


def run(arguments: list[str]) -> None:
    """Train, with progress on standard error."""
    parser = Parser(prog="regard train", description=__doc__)
    add_settings(parser)
    add_output_folder(parser)
    add_device(parser)
    parser.add_argument(
        "--resume", action="store_true", help="continue from the folder's last checkpoint"
    )
    parser.add_argument("--init-from", help="model folder to take initial weights from")
    args = parser.parse_args(recipe_first(arguments))
    enable_huge_pages()
    from regard.config import from_dict
    from regard.training import train

    config = from_dict({**settings(args), "out": args.out, "device": args.device})
    train(
        config,
        resume=args.resume,
        init_from=args.init_from,
        command=shlex.join(["regard", "train", *arguments]),
    )
    print(f"{args.out} is trained; regard translate {args.out} uses it")
