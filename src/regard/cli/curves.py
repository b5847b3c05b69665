"""regard curves RUN… -o curves.html: how training went, several folders in one chart."""

from regard.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Draw the curves."""
    parser = Parser(prog="regard curves", description=__doc__)
    parser.add_argument("folders", type=str, nargs="+", help="model folders")
    parser.add_argument(
        "-o", "--out", type=str, required=True, help="a .html, .png, .svg or .json file"
    )
    parser.add_argument(
        "--metric", type=str, help="a key of metrics.jsonl; by default what the best is chosen by"
    )
    parser.add_argument("--by", type=str, default="minutes", help="minutes or update")
    given = parser.parse_args(arguments)
    from regard.curves import curves

    chart = curves(given.folders, given.metric, given.by)
    chart.save(given.out)
    print(f"{chart.y_title} of {len(chart.series)} runs, drawn in {given.out}")
