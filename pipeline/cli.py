"""What every command line of the pipeline shares: one sentence for an error, 130 for Ctrl-C."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import click
from tqdm import tqdm

from converters.errors import UserError

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 120}


def command(**settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A `click.command` whose UserError becomes `error: ...` on stderr and exit code 1.

    Ctrl-C exits with 130; wrong options stay click's own (a usage line and exit code 2).
    Options are added below it as usual::

        @cli.command()
        @click.argument("run")
        def main(run: str) -> None: ...
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                function(*args, **kwargs)
            except UserError as error:
                click.echo(f"error: {error}", err=True)
                sys.exit(1)
            except OSError as error:  # the file system's words, where nothing closer to it knew better ones
                click.echo(f"error: {_shorten(error.filename)}{error.strerror or error}.", err=True)
                sys.exit(1)
            except KeyboardInterrupt:
                click.echo("\nstopped by Ctrl-C: what was finished is kept.", err=True)
                sys.exit(130)

        return click.command(context_settings=_SETTINGS, **settings)(guarded)

    return decorate


def _shorten(path: Any) -> str:
    return "" if path is None else f"{path}: " if len(str(path)) <= 200 else f"{str(path)[:200]}...: "


class FiniteRange(click.FloatRange):
    """A float range to which nan and inf do not belong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def progress(total: int, title: str, unit: str, **settings: Any) -> tqdm:
    """A bar with an ETA on stderr; off a terminal, a plain line at the start, at most every 10 s, and at the end."""
    settings |= {"total": total, "desc": title, "unit": unit}
    if sys.stderr.isatty():
        return tqdm(mininterval=0.3, dynamic_ncols=True, **settings)
    return _Lines(mininterval=10, bar_format=_LINE, **settings)


_LINE = "{desc}: {n_fmt}/{total_fmt} ({percentage:.0f} %) [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class _Lines(tqdm):
    """Progress for a log file, where a carriage return means nothing."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        return lambda text: print(text, file=file, flush=True)

    def moveto(self, n: int) -> None:
        """A line in a file stays where it is, whatever other bars there are."""

    def close(self) -> None:
        begun = getattr(self, "start_t", None)  # not there when Ctrl-C came before the first line was out
        if not self.disable and begun is not None and self._time() >= begun + self.delay:
            self.display(pos=0)
            self.sp = None  # tqdm's own last words are for a terminal
        super().close()


def count(number: int, noun: str) -> str:
    """ "1 step", "2,000 steps"."""
    return f"{number:,} {noun}" + "s" * (number != 1)
