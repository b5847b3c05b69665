"""regard evaluate DIR PAIRS: BLEU, chrF, exact match and error rates, with 95 % intervals."""

import json
from typing import Any

from regard.cli.parser import Parser
from regard.config import Device
from regard.files import write_text
from regard.metrics import BleuTokenizer
from regard.progress import Progress


def run(arguments: list[str]) -> None:
    """Measure a model, print a table, and write JSON if asked."""
    parser = Parser(prog="regard evaluate", description=__doc__)
    parser.add_argument("folder", type=str, help="a model folder")
    parser.add_argument("pairs", type=str, help="a TSV file, or two parallel files as F.src,F.tgt")
    parser.add_argument(
        "--beam-size", type=int, default=5, help="open hypotheses; 1 is greedy search"
    )
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, help="exponent of ((5 + length) / 6)"
    )
    parser.add_argument(
        "--bleu-tokenize", type=BleuTokenizer, default="13a", help="how BLEU cuts the strings"
    )
    parser.add_argument(
        "--lowercase", action="store_true", help="lower-case outputs and references first"
    )
    parser.add_argument("--json", type=str, help="write the figures here")
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    given = parser.parse_args(arguments)
    from regard.cli.pairs import good_pairs
    from regard.evaluation import evaluate
    from regard.translator import Translator

    translator = Translator.load(given.folder, given.device)
    pairs = good_pairs(given.pairs, translator.trained.config.data.features_column)
    with Progress("translating", len({pair.source for pair in pairs}), "sources") as progress:
        report = evaluate(
            translator,
            pairs,
            given.beam_size,
            length_penalty=given.length_penalty,
            bleu_tokenize=given.bleu_tokenize,
            lowercase=given.lowercase,
            on_progress=progress.advance,
        )
    if given.json:
        write_text(given.json, json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n")
    _show(report.to_dict(), sum(not output.complete for output in report.translations))


def _show(figures: dict[str, Any], cut: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("figure", "value", "95 % interval", "signature", box=box.SIMPLE)
    names = {
        "exact_match": "exact match", "wer": "WER", "per": "PER", "cer": "CER", "bleu": "BLEU", "chrf": "chrF",
    }  # fmt: skip
    for key, name in names.items():
        figure = figures[key]
        low, high = f"{figure['low']:.2f}", f"{figure['high']:.2f}"
        table.add_row(
            name,
            f"{figure['value']:.2f}",
            f"{low} – {high}",
            figure.get("signature", ""),
        )
    console.print(f"{figures['n']:,} distinct sources, percent")
    console.print(table)
    lengths = Table("source length", "sources", "exact match", "PER", "CER", box=box.SIMPLE)
    for part in figures["by_length"]:
        lengths.add_row(
            f"{part['low']}–{part['high']}", f"{part['n']:,}",
            *(f"{part[key]:.2f}" for key in ("exact_match", "per", "cer")),
        )  # fmt: skip
    console.print(lengths)
    if cut:
        console.print(f"{cut:,} outputs were cut at their length limit")
