"""Options shared by several commands, and the environment of those that train."""

import os

from regard.cli.parser import Parser
from regard.config import Device


def add_model(parser: Parser) -> None:
    """Add the model folder and the device."""
    parser.add_argument("folder", help="model folder")
    add_device(parser)


def add_device(parser: Parser) -> None:
    """Add the device."""
    parser.add_argument("--device", type=Device, default="auto", help="device to compute on")


def add_pairs(parser: Parser) -> None:
    """Add a file of sentence pairs."""
    parser.add_argument("pairs", help="TSV file, or two parallel files as F.src,F.tgt")


def add_search(parser: Parser) -> None:
    """Add beam size and length penalty."""
    add_beam_size(parser)
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, help="exponent of ((5 + length) / 6)"
    )


def add_beam_size(parser: Parser, default: int = 5) -> None:
    """Add the beam size."""
    parser.add_argument(
        "--beam-size",
        type=int,
        default=default,
        help="number of hypotheses kept per source; 1 is greedy search",
    )


def add_output_folder(parser: Parser, default: str | None = None) -> None:
    """Add the folder to write, required unless it has a default."""
    parser.add_argument("--out", required=default is None, default=default, help="folder to write")


def add_chart_file(parser: Parser) -> None:
    """Add the file that a chart is saved to."""
    parser.add_argument(
        "-o", "--out", required=True, help=".html, .png, .svg or .json file to write"
    )


def enable_huge_pages() -> None:
    """Let PyTorch's CPU allocator use huge pages: fewer page faults while training.

    Call it before PyTorch is imported. A value set by the user stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
