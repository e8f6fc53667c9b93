"""`lmworks report RUN`: write the run's report.html."""

from lmworks.cli.parser import make_parser
from lmworks.train.run_folder import RunFolder


def main(argv: list[str]) -> int:
    """Run `lmworks report ...` and return its exit status."""
    parser = make_parser(
        "report",
        "Write RUN/report.html: curves, samples, tokenizer, model, machine and recipe in one file.",
        "lmworks report runs/tiny_cpu",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, finished or not")
    args = parser.parse_args(argv)
    from lmworks.train.report import write_report

    print(f"wrote {write_report(RunFolder(args.run))}")
    return 0
