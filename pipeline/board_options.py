"""Command-line options of every command that opens a board: which one, and how it is started or reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from pipeline.targets.boards import BOARDS, KERNELS, LINKS, OPTIONS

NAMES = ("port", "threads", "memory", "link", "kernels")


def board_options(*others: str, help: str = "What runs the network.") -> Callable[[Callable], Callable]:
    """Adds --board and NAMES. others: what --board may be besides a board."""
    options = [
        click.option("--board", type=click.Choice([*BOARDS, *others]), default="native", help=help),
        click.option(
            "--port",
            help="HOST:PORT of a native board that listens elsewhere; PORT[@BAUD], serial, of an stm32n6, by default "
            "that of the one ST-LINK.",
        ),
        click.option(
            "--threads", type=click.IntRange(1, 256), help="Threads of a native board or twin.  [default: all cores]"
        ),
        click.option(
            "--memory",
            type=click.IntRange(1),
            metavar="MIB",
            help="Memory of a native board, or DDR of the emulated one, in MiB.",
        ),
        click.option("--link", type=click.Choice(LINKS), help=f"To the emulated board.  [default: {LINKS[0]}]"),
        click.option("--kernels", type=click.Choice(KERNELS), help=f"Of the emulated board.  [default: {KERNELS[0]}]"),
    ]

    def decorate(function: Callable) -> Callable:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def check(options: Mapping[str, Any], names: Iterable[str] = NAMES) -> None:
    """Raises click.UsageError for an option that means nothing to the board."""
    board = options["board"]
    for name in names:
        if options[name] is not None and name not in OPTIONS[board]:
            raise click.UsageError(f"--{name} means nothing to --board {board}: leave it out.")
    for name in {"threads", "memory"} & set(names):
        if options["port"] is not None and options[name] is not None:
            raise click.UsageError(f"--{name} is for a board started here: it excludes --port.")
