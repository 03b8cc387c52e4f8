"""What a sweep says: methods on each task, with spread, paired differences and the cost of each method's search.

A method of several settings is represented on a task by the one with the best mean accuracy there, chosen on the same
test images: that flatters it against a method of one setting, which is the comparison's other side.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pandas
from matplotlib.figure import Figure
from scipy import stats

from converters.errors import UserError
from pipeline.run import read_metrics
from pipeline.style import BLUE, GREY, ORANGE, STYLE, png
from pipeline.style import page as html_page

CONFIDENCE = 0.95
# Settings by which the runs of a method may differ, apart from the seed.
SETTINGS = (
    "samples", "budget", "steps", "batch", "estimator", "mu", "q_schedule", "q", "q_max", "lr", "lr_schedule",
    "coupling", "rounding",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A method on a task, in its best setting there. accuracy: of each seed, in seed order; passes: of one training;
    search: of all its settings, once each."""

    task: str
    method: str
    setting: str
    settings: int
    seeds: tuple[int, ...]
    accuracy: tuple[float, ...]
    before: float
    passes: float
    search: float
    runs: tuple[str, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracy))

    @property
    def deviation(self) -> float:
        """Of the seeds; nan for one."""
        return float(np.std(self.accuracy, ddof=1)) if len(self.accuracy) > 1 else float("nan")


@dataclass(frozen=True)
class Difference:
    """A method minus another on a task, seed by seed, in points; half the width of the confidence interval."""

    task: str
    method: str
    other: str
    mean: float
    half_width: float
    seeds: int


def results(frame: pandas.DataFrame) -> list[Result]:
    """Of every task and method, in the order of the table."""
    varied = [name for name in SETTINGS if name in frame and frame[name].nunique(dropna=False) > 1]
    return [
        _result(str(task), str(method), group, varied)
        for (task, method), group in frame.groupby(["task", "method"], sort=False)
    ]


def _result(task: str, method: str, group: pandas.DataFrame, varied: Sequence[str]) -> Result:
    own = [name for name in varied if group[name].nunique(dropna=False) > 1]
    if "q" in own and "q_max" in own and (group.q_max == group.q).all():
        own.remove("q_max")
    settings = list(group.groupby(own, sort=False, dropna=False)) if own else [((), group)]
    values, best = max(settings, key=lambda item: item[1].accuracy_after.mean())
    values = values if isinstance(values, tuple) else (values,)
    best = best.sort_values("seed")
    return Result(
        task,
        method,
        ", ".join(f"{name} {value}" for name, value in zip(own, values, strict=True)),
        len(settings),
        tuple(best.seed),
        tuple(100 * best.accuracy_after),
        100 * float(best.accuracy_before.iloc[0]),
        float(best.forward_passes.mean()),
        float(sum(rows.forward_passes.mean() for _, rows in settings)),
        tuple(best.run),
    )


def difference(one: Result, other: Result) -> Difference:
    """Of the seeds that both have, by Student's t for paired samples. Raises UserError where there are none."""
    a, b = dict(zip(one.seeds, one.accuracy, strict=True)), dict(zip(other.seeds, other.accuracy, strict=True))
    both = sorted(a.keys() & b.keys())
    if not both:
        raise UserError(f"{one.method} and {other.method} share no seed on {one.task}: give both the same seeds.")
    d = np.array([a[seed] - b[seed] for seed in both])
    half = float("nan")
    if len(d) > 1:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)))
    return Difference(one.task, one.method, other.method, float(d.mean()), half, len(d))


# -- figures -----------------------------------------------------------------------------------------------------------


def draw(folder: Path, found: Sequence[Result]) -> dict[str, bytes]:
    """PNG files by name: `methods`, and the course of accuracy on every task."""
    tasks = list(dict.fromkeys(result.task for result in found))
    with matplotlib.rc_context(STYLE):
        pictures = {"methods": png(_methods(found, tasks))}
        for task in tasks:
            pictures[f"course_{task}"] = png(_course(folder, [result for result in found if result.task == task]))
    return pictures


def _methods(found: Sequence[Result], tasks: Sequence[str]) -> Figure:
    """Every seed, mean and standard deviation of each method, a panel a task."""
    height = 0.9 + 0.3 * max(sum(r.task == task for r in found) for task in tasks)
    figure = Figure(figsize=(8, height * len(tasks)), layout="constrained")
    for axes, task in zip(figure.subplots(len(tasks), 1, squeeze=False).flat, tasks, strict=True):
        rows = [result for result in found if result.task == task]
        for y, result in enumerate(rows):
            axes.plot(result.accuracy, [y] * len(result.accuracy), "o", ms=3, color=GREY, alpha=0.7)
            axes.errorbar(result.mean, y, xerr=np.nan_to_num(result.deviation), fmt="D", ms=5, color=BLUE, capsize=3)
        axes.axvline(rows[0].before, color=ORANGE, ls="--", lw=1)
        axes.set_yticks(range(len(rows)), [_label(result) for result in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(f"{task} (dashed: before, {rows[0].before:.1f} %)")
        axes.set_xlabel("correct after training, %")
    return figure


def _course(folder: Path, found: Sequence[Result]) -> Figure:
    """Mean accuracy over forward passes, by method."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    for result in found:
        courses = [
            [
                (line.forward_passes, 100 * line.accuracy)
                for line in read_metrics(folder / "runs" / run)
                if line.accuracy is not None
            ]
            for run in result.runs
        ]
        ends = min(course[-1][0] for course in courses)
        grid = np.linspace(0, ends, 60)
        axes.plot(
            grid,
            np.mean([np.interp(grid, *zip(*course, strict=True)) for course in courses], axis=0),
            lw=1.6,
            label=_label(result),
        )
    axes.set_title(f"{found[0].task}: accuracy on test images, mean of the seeds")
    axes.set_xlabel("forward passes")
    axes.set_ylabel("correct, %")
    axes.legend(loc="lower right")
    return figure


def _label(result: Result) -> str:
    return f"{result.method} ({result.setting})" if result.setting else result.method


# -- tables ------------------------------------------------------------------------------------------------------------

HEAD = (
    "task",
    "method",
    "best setting",
    "accuracy, %",
    "seeds",
    "minus the best other, points",
    "forward passes",
    "with search",
)


def table(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows under HEAD. What is compared with: the method of the same task with the best mean among the others."""
    rows = []
    for result in found:
        others = [other for other in found if other.task == result.task and other.method != result.method]
        best = max(others, key=lambda other: other.mean, default=None)
        words = ""
        if best is not None:
            d = difference(result, best)
            words = f"{d.mean:+.1f}" + (f" ± {d.half_width:.1f}" if d.seeds > 1 else "") + f" ({best.method})"
        spread = f" ± {result.deviation:.1f}" if len(result.accuracy) > 1 else ""
        rows.append(
            (
                result.task,
                result.method,
                result.setting or "one",
                f"{result.mean:.1f}{spread}",
                str(len(result.seeds)),
                words,
                f"{result.passes:,.0f}",
                f"{result.search:,.0f}",
            )
        )
    return rows


def markdown(found: Sequence[Result]) -> str:
    """The same as a Markdown table, for documents."""
    lines = [HEAD, ("---",) * len(HEAD), *table(found)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


PAGE = html_page(
    """<p>{{ runs }} runs. A method of several settings stands in the one that is best on the task, by mean accuracy on
the same test images. ± after an accuracy: standard deviation of the seeds; after a difference: half of the
{{ confidence }} % interval of paired seeds (Student's t).</p>
<img alt="Accuracy of each method on each task" src="data:image/png;base64,{{ pictures.methods }}">
<h2>Results</h2>
<table><tr>{% for title in head %}<th>{{ title }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table>
<h2>Courses</h2>
{% for name, picture in pictures.items() if name != "methods" %}
<img alt="{{ name }}" src="data:image/png;base64,{{ picture }}">
{% endfor %}<h2>The sweep</h2>
<pre>{{ config }}</pre>
""",
    width="70rem",
    css="""  th { color: #5b616b; font-weight: normal } pre { background: #f6f7f9; padding: 0.8rem; overflow-x: auto }
""",
)


def page(folder: Path, frame: pandas.DataFrame, found: Sequence[Result], pictures: dict[str, bytes]) -> str:
    return PAGE.render(
        name=folder.name,
        runs=len(frame),
        confidence=round(100 * CONFIDENCE),
        head=HEAD,
        rows=table(found),
        pictures={name: base64.b64encode(picture).decode() for name, picture in pictures.items()},
        config=(folder / "sweep.toml").read_text(),
    )


def make(folder: Path) -> dict[str, bytes]:
    """The files of a report by name. Raises UserError for a sweep without results."""
    try:
        frame = pandas.read_csv(folder / "table.csv", dtype={"task": str, "method": str, "run": str})
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} has no table of results yet: run python -m pipeline.sweep first.") from error
    if frame.accuracy_after.isna().any():
        raise UserError(f"{folder}: runs without --eval-images have no accuracy to compare: sweep with some.")
    found = results(frame)
    pictures = draw(folder, found)
    files = {f"{name}.png": picture for name, picture in pictures.items()}
    files["results.md"] = markdown(found).encode()
    files["report.html"] = page(folder, frame, found, pictures).encode()
    return files
