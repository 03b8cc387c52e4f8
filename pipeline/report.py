"""Figures of a run, or of a sweep, and one HTML page that holds them: python -m pipeline.report RUN|SWEEP."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from converters.errors import UserError
from pipeline import cli
from pipeline.files import write_atomic
from pipeline.run import Config, Metrics, disk_errors, read_config, read_metrics
from pipeline.samples import link_share
from pipeline.style import BLUE, GREY, ORANGE, STYLE, png
from pipeline.style import page as html_page
from pipeline.targets.target import board_title
from pipeline.zo.qscheduler import window_length


def accuracy_panel(axes: Axes, config: Config, lines: Sequence[Metrics]) -> None:
    seen = [line for line in lines if line.accuracy is not None]
    axes.set_title(f"Accuracy on test images, {config.domain}")
    axes.set_ylabel("correct, %")
    if not seen:
        axes.text(0.5, 0.5, "not evaluated", ha="center", transform=axes.transAxes, color=GREY)
        return
    x, y = [line.forward_passes for line in seen], [100 * line.accuracy for line in seen]
    axes.axhline(y[0], color=GREY, ls="--", lw=1, label=f"before: {y[0]:.1f} %")
    axes.plot(x, y, color=BLUE, marker="o", ms=4, lw=1.8, label=f"last: {y[-1]:.1f} %")
    axes.legend(loc="lower right")


def loss_panel(axes: Axes, config: Config, lines: Sequence[Metrics]) -> None:
    steps = lines[1:]
    axes.set_title("Training loss")
    axes.set_ylabel("cross-entropy, nats")
    axes.axhline(lines[0].loss, color=GREY, ls="--", lw=1, label=f"before: {lines[0].loss:.2f}")
    if not steps:
        return
    x, y = np.array([line.forward_passes for line in steps]), np.array([line.loss for line in steps])
    axes.plot(x, y, color=BLUE, lw=0.6, alpha=0.35)
    span = max(1, -(-config.samples // config.batch))
    if len(y) >= span:
        axes.plot(
            x[span - 1 :], np.convolve(y, np.ones(span) / span, "valid"), color=BLUE, lw=1.8, label="mean of an epoch"
        )
    axes.legend(loc="upper right")


def q_panel(axes: Axes, config: Config, lines: Sequence[Metrics]) -> None:
    steps = lines[1:] or lines
    axes.set_title(f"Directions a step, q ({config.q_schedule})")
    axes.set_ylabel("q")
    axes.step(
        [0, *(line.forward_passes for line in steps)], [steps[0].q, *(line.q for line in steps)], color=ORANGE, lw=1.8
    )
    axes.set_ylim(0, 1.15 * max(line.q for line in steps))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def step_size_panel(axes: Axes, config: Config, lines: Sequence[Metrics]) -> None:
    steps = lines[1:] or lines
    axes.set_title("Step size")
    axes.set_ylabel("RMS of the update, LSB")
    axes.plot([line.forward_passes for line in steps], [line.lr for line in steps], color=ORANGE, lw=1.8)
    axes.set_ylim(0, 1.25 * max(line.lr for line in steps) or 1)


PANELS: dict[str, Callable[[Axes, Config, Sequence[Metrics]], None]] = {
    "accuracy": accuracy_panel,
    "loss": loss_panel,
    "q": q_panel,
    "step_size": step_size_panel,
}


def figures(config: Config, lines: Sequence[Metrics], kept: int | None = None) -> dict[str, bytes]:
    """PNG files by name: one for every panel, and `overview` with all of them. kept: the step whose weights are."""
    with matplotlib.rc_context(STYLE):
        pictures = {"overview": _draw(config, lines, kept, list(PANELS.values()))}
        for name, panel in PANELS.items():
            pictures[name] = _draw(config, lines, kept, [panel])
    return pictures


def _draw(config: Config, lines: Sequence[Metrics], kept: int | None, panels: list) -> bytes:
    rows, columns = (2, 2) if len(panels) == 4 else (1, 1)
    figure = Figure(figsize=(4.6 * columns, 2.8 * rows), layout="constrained")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        panel(axes, config, lines)
        if kept is not None and kept != lines[-1].step:
            mark_step(axes, lines[kept])
        axes.set_xlabel("forward passes")
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlim(0, max(1, lines[-1].forward_passes) * 1.02)
    return png(figure)


def mark_step(axes: Axes, line: Metrics) -> None:
    """Where the weights that were kept come from, when they are not the last."""
    axes.axvline(line.forward_passes, color=GREY, ls=":", lw=1.2)
    at = (line.forward_passes, 0.02)
    axes.annotate(f" kept: step {line.step}", at, xycoords=axes.get_xaxis_transform(), color=GREY, fontsize=7)


def _short(value: float, _position: int) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


@dataclass(frozen=True)
class Row:
    name: str
    value: str


def rows(config: Config, lines: Sequence[Metrics], summary: dict | None) -> list[Row]:
    """The table of the page: what came out, by the summary of a finished run, else by the metrics so far."""
    last = lines[-1]
    if summary is None:
        seen = [line.accuracy for line in lines if line.accuracy is not None] or [None]
        return [
            accuracy_row(seen[0], seen[-1]),
            Row("Steps", f"{last.step:,}"),
            passes_row(last.forward_passes, last.evaluation_passes),
            *seconds_rows([line.seconds for line in lines]),
            Row("State", "not finished"),
        ]
    table = [
        accuracy_row(summary["accuracy_before"], summary["accuracy_after"]),
        Row("Weights kept", f"step {summary['kept_step']:,} of {summary['steps']:,}"),
        passes_row(summary["forward_passes"], summary["evaluation_passes"]),
        *seconds_rows([summary["seconds"]]),
        Row("Training loss", f"{summary['loss_before']:.3f} → {summary['loss_after']:.3f} nats"),
        Row(
            "Speed", f"{summary['passes_per_second']:,.0f} forward passes/s on {summary['board']} ({summary['runner']})"
        ),
        Row("Weights changed", f"{summary['weights_changed']:,} of {summary['weights']:,}"),
        Row("CRC-32 of the weights", f"{summary['weights_crc']:08x}"),
    ]
    return table + [Row(f"Memory: {name}", f"{size:,} bytes") for name, size in summary["memory"].items()]


def accuracy_row(before: float | None, after: float | None) -> Row:
    missing = before is None or after is None
    return Row("Accuracy", "not evaluated" if missing else f"{100 * before:.1f} % → {100 * after:.1f} %")


def passes_row(training: int, evaluation: int) -> Row:
    return Row("Forward passes", f"{training:,} to train, {evaluation:,} to evaluate")


def seconds_rows(parts: Sequence[Mapping[str, float]]) -> list[Row]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    link = f"{100 * link_share(total):.0f} % of the seconds, for images on their way to the board"
    return [Row("Seconds", f"{sum(total.values()):,.1f}"), Row("Link", link)]


def settings(config: Config) -> list[Row]:
    """The config as a reader wants it: checksums in hex, defaults by name or value, only the budget that counts."""
    resolved = replace(config, window=config.window or window_length(config.samples, config.batch))
    values = asdict(resolved)
    del values["steps" if config.steps is None else "budget"]
    return [
        Row(name, "default" if value is None else f"{value:08x}" if name.endswith("_crc") else str(value))
        for name, value in values.items()
    ]


PAGE = html_page(
    """<p>{{ config.image }} on {{ board }},
{{ config.dataset }}, {{ config.domain }}</p>
<img alt="Accuracy, loss, q and step size over forward passes" src="data:image/png;base64,{{ picture }}">
<h2>Results</h2>
<table>
{% for row in rows %}<tr><td>{{ row.name }}</td><td>{{ row.value }}</td></tr>
{% endfor %}</table>
<h2>Settings</h2>
<table>
{% for row in settings %}<tr><td>{{ row.name }}</td><td><code>{{ row.value }}</code></td></tr>
{% endfor %}</table>
""",
    width="60rem",
    css="""  p { margin-top: 0 } code { font-size: 0.9em } td:first-child { color: #5b616b; white-space: nowrap }
""",
)


def page(name: str, config: Config, lines: Sequence[Metrics], summary: dict | None, picture: bytes) -> str:
    return PAGE.render(
        name=name,
        config=config,
        board=board_title(config.board),
        picture=base64.b64encode(picture).decode(),
        rows=rows(config, lines, summary),
        settings=settings(config),
    )


def make(run: Path) -> dict[str, bytes]:
    """The files of a run's report by name. Raises UserError for a run without measurements."""
    config, lines = read_config(run), read_metrics(run)
    if not lines:
        raise UserError(f"{run} has no measurements yet: start it with train_ondevice --resume {run}.")
    try:
        summary = json.loads((run / "summary.json").read_text())
    except (OSError, ValueError):
        summary = None
    if summary is not None and summary["steps"] != lines[-1].step:  # it goes on since, with a larger budget
        summary = None
    pictures = figures(config, lines, summary and summary["kept_step"])
    files = {f"{name}.png": picture for name, picture in pictures.items()}
    files["report.html"] = page(run.name, config, lines, summary, pictures["overview"]).encode()
    return files


@cli.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|SWEEP")
def main(run: Path) -> None:
    """Draw loss, accuracy, q and step size of a run over forward passes, or compare the methods of a sweep.

    Leaves PNG files and report.html, which needs nothing beside itself, in its folder report.
    """
    if (run / "sweep.toml").exists():
        from pipeline import sweep_report  # pandas and scipy take a second

        files = sweep_report.make(run)
    else:
        files = make(run)
    out = run / "report"
    with disk_errors(out, "what it was made from is untouched."):
        out.mkdir(exist_ok=True)
        for name, data in files.items():
            write_atomic(out / name, data)
    click.echo(f"{out / 'report.html'}, and {len(files) - 1} files beside it")


if __name__ == "__main__":
    main()
