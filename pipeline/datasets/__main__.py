"""`python -m pipeline.datasets`: which data sets are here, what is missing or damaged, and where to get it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from converters.errors import UserError
from pipeline import cli, datasets
from pipeline.datasets import Part


@cli.command()
@click.argument("names", nargs=-1, type=click.Choice(datasets.NAMES))
@click.option("--data-dir", type=click.Path(path_type=Path), help="Directory of the official files, of one data set.")
def main(names: tuple[str, ...], data_dir: Path | None) -> None:
    """Say which data sets are here, and check their files. Nothing is downloaded.

    With NAMES, the exit code is 1 where one of them is missing or damaged.

    \b
    Examples:
      python -m pipeline.datasets
      python -m pipeline.datasets stl10 --data-dir ~/stl10_binary
    """
    if data_dir is not None and len(names) != 1:
        raise click.UsageError("--data-dir is the directory of one data set: name it.")
    states = [_describe(name, data_dir) for name in names or datasets.NAMES]
    if names and not all(states):
        sys.exit(1)


def _describe(name: str, data_dir: Path | None) -> bool:
    """Print what is there of a data set; whether it can be used as it is."""
    click.echo(f"{name} ({datasets.home(name)})")
    try:
        parts = datasets.examine(name, data_dir)
    except UserError as error:
        click.echo(f"  not here: {error}")
        return False
    width = max(len(part.name) for part in parts)
    for part in parts:
        click.echo(f"  {part.name:<{width}}  {part.state:<8}{part.found}".rstrip())
    return all(part.state in (Part.OK, Part.OTHER) for part in parts)


if __name__ == "__main__":
    main()
