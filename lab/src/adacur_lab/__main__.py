"""`python -m adacur_lab`: the paper's experiments from the shell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from adacur.errors import AdacurError
from adacur_lab.experiments.reproduction import EXPERIMENTS, Sources, experiment_names
from adacur_lab.experiments.reproduction import reproduce as reproduce_one
from adacur_lab.experiments.runner import evaluate as run_spec
from adacur_lab.experiments.spec import Spec
from adacur_lab.report import measure_table, panels

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The laboratory of adacur.")


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|all", help="An experiment of the paper; without one, they are listed.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Folders of exact scores by collection: compute what is not stored yet.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --scores: folders of texts and judgements by collection.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="The repository's folder of experiments.")] = Path("lab/reproduction"),
) -> None:
    """Draw an experiment of the paper from stored results; with --scores, compute missing results first.

    Interrupt it at any time: the same command continues.
    """
    if name is None:
        for one, experiment in EXPERIMENTS.items():
            print(f"{one}. The paper: {experiment.claim}")
        return
    if (scores is None) != (data is None):
        raise typer.BadParameter("--scores and --data go together: scores, and texts and judgements of the same items.")
    sources = None if scores is None or data is None else Sources(scores, data)
    failures = []
    for one in experiment_names(name):
        made = reproduce_one(one, folder, sources=sources)
        failures += [f"{one}: {failure}" for failure in made.failed]
        print(f"{one}. The paper: {made.claim}")
        print(f"  {', '.join(str(file) for file in made.files)}")
        print(f"  {folder / one / 'README.md'} says what came out here.")
    _fail(failures)


@app.command()
def evaluate(
    spec: Annotated[Path, typer.Argument(help="A spec (.toml): collections × methods × settings.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Instead of the spec's folder.")] = None,
    trec: Annotated[bool, typer.Option("--trec", help="Also write each run's hits as a TREC run file.")] = False,
) -> None:
    """Make the runs of a spec that are not stored yet, and print what all of them measured."""
    asked = Spec.from_file(spec)
    asked = asked if output is None else replace(asked, output=output)
    done = run_spec(asked, trec=trec)
    for panel in panels([stored.run for stored in done.runs]):
        print(measure_table(panel, measures=[*(f"recall@{k}" for k in asked.ks), "nDCG@10"]).to_markdown())
    print(f"{len(done.runs)} runs stored in {asked.output / 'runs'}, {done.found} of them reused.")
    _fail([f"{one.collection}, {dict(one.settings)}: {one.error}" for one in done.failed])


def _fail(failures: list[str]) -> None:
    for failure in failures:
        typer.echo(f"Error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


def run() -> None:
    """Run the command line; an error of ours is one message."""
    try:
        app()
    except AdacurError as error:
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    run()
