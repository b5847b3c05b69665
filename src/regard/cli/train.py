"""regard train --data.train F --data.dev F --out DIR: learn from pairs and leave a model folder."""

import os
import shlex

from regard.cli.parser import Parser, add_settings, recipe_first, settings
from regard.config import Device


def run(arguments: list[str]) -> None:
    """Train, with progress on standard error."""
    parser = Parser(prog="regard train", description=__doc__)
    add_settings(parser)
    parser.add_argument("--out", type=str, required=True, help="folder to write the model to")
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    parser.add_argument("--resume", action="store_true", help="go on where the folder stopped")
    parser.add_argument("--init-from", type=str, help="a trained folder to start from")
    given = parser.parse_args(recipe_first(arguments))
    # large blocks of torch's CPU allocator in huge pages: fewer page faults while training
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    from regard.config import from_dict
    from regard.training import train

    config = from_dict({**settings(given), "out": given.out, "device": given.device})
    train(
        config,
        resume=given.resume,
        init_from=given.init_from,
        command=shlex.join(["regard", "train", *arguments]),
    )
    print(f"{given.out} is trained; regard translate {given.out} uses it")
