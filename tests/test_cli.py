"""The wrapper that every command shares."""

import click
import pytest
from click.testing import CliRunner

from converters.errors import UserError
from pipeline import cli


@cli.command()
@click.option("--fail", type=click.Choice(("no", "user", "ctrl-c", "bug")), default="no")
def sample(fail: str) -> None:
    """A command."""
    if fail == "user":
        raise UserError("the shelf is empty: fill it.")
    if fail == "ctrl-c":
        raise KeyboardInterrupt
    if fail == "bug":
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 0, ""),
        (["--fail", "user"], 1, "error: the shelf is empty: fill it.\n"),
        (["--fail", "ctrl-c"], 130, "\nstopped by Ctrl-C: what was finished is kept.\n"),
        (["--fail", "maybe"], 2, None),
        (["--nonsense"], 2, None),
    ],
)
def test_exit_codes_and_sentences(arguments, code, says):
    result = CliRunner().invoke(sample, arguments)
    assert result.exit_code == code
    assert says is None or result.stderr == says


def test_progress_off_a_terminal_is_plain_lines(capsys):
    with cli.progress(3, "working", "step") as bar:
        for _ in range(3):
            bar.update()
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("working: 0/3 (0 %)") and last.startswith("working: 3/3 (100 %)")


def test_progress_within_progress_moves_no_cursor(capsys):
    with cli.progress(1, "outer", "step"), cli.progress(2, "inner", "step", leave=False) as bar:
        bar.update(2)
    printed = capsys.readouterr().err
    assert "\x1b" not in printed and "inner: 2/2 (100 %)" in printed


def test_progress_of_short_work_can_stay_unseen(capsys):
    with cli.progress(3, "working", "step", delay=60) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""


def test_count():
    assert (cli.count(1, "step"), cli.count(2000, "step")) == ("1 step", "2,000 steps")


def test_a_bug_keeps_its_traceback():
    assert isinstance(CliRunner().invoke(sample, ["--fail", "bug"]).exception, ZeroDivisionError)
