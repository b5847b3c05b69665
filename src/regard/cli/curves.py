"""regard curves RUN… -o curves.html: plot the training curves of several model folders."""

from regard.cli.options import add_chart_file, check_chart_file
from regard.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Draw the curves in one chart."""
    args = make_parser().parse_args(arguments)
    check_chart_file(args)
    from regard.curves import curves

    chart = curves(args.folders, args.metric, args.by)
    chart.save(args.out)
    runs = len(chart.series)
    print(f"{chart.y_title} of {runs} {'run' if runs == 1 else 'runs'}, saved to {args.out}")


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard curves", description=__doc__)
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="RUN",
        help="model folders, ensembles or pretrained models",
    )
    add_chart_file(parser)
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="key in metrics.jsonl to plot (default: the metric that selects the best checkpoint)",
    )
    parser.add_argument(
        "--by", default="minutes", metavar="NAME", help="quantity on the x axis: minutes or update"
    )
    return parser
