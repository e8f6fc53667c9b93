"""`lmworks report RUN`: write the run's report.html, and with --show its gist in the terminal."""

import textwrap

from lmworks.cli.next_steps import next_steps
from lmworks.cli.parser import make_parser
from lmworks.plan.time import readable_time
from lmworks.train.metrics import Record, read_metrics
from lmworks.train.run_folder import RunFolder


def main(argv: list[str]) -> int:
    """Run `lmworks report ...` and return its exit status."""
    parser = make_parser(
        "report",
        "Write RUN/report.html: curves, samples, tokenizer, model, machine and recipe in one file.",
        "lmworks report runs/tiny_cpu",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, finished or not")
    parser.add_argument(
        "--show", action="store_true", help="print the samples and the main figures as well"
    )
    args = parser.parse_args(argv)
    from lmworks.train.report import write_report

    run = RunFolder(args.run)
    path = write_report(run)
    if args.show:
        print(f"{gist(read_metrics(run.path))}\n\nreport: {path}")
        print(next_steps(run.path, with_report=False))
    else:
        print(f"wrote {path}")
    return 0


def gist(records: list[Record]) -> str:
    """The last samples, how well the model predicts held-out text, and what training took."""
    samples = [record for record in records if record["kind"] == "sample"]
    evals = [record for record in records if record["kind"] == "eval"]
    last = [record for record in records if record["kind"] == "train"][-1]
    texts = [
        textwrap.indent((record["prompt"] + record["text"]).strip(), "  ")
        for record in samples
        if record["step"] == samples[-1]["step"]
    ]
    lines = []
    if texts:
        heading = f"what it writes after step {samples[-1]['step']:,}:"
        lines.append("\n\n".join([heading, *texts]) + "\n")
    lines.append(f"trained   {last['step']:,} steps, {last['tokens']:,} tokens")
    lines[-1] += f" in {readable_time(last['elapsed_s'])}"
    if evals:
        loss, bits = evals[-1]["loss"], evals[-1]["bits_per_byte"]
        lines.append(f"held out  loss {loss:.3f} nats per token, {bits:.3f} bits per byte")
    return "\n".join(lines)
