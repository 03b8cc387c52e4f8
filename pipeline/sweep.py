"""Grids of training runs: python -m pipeline.sweep CONFIG.toml.

A sweep is a grid of `pipeline.train_ondevice` command lines. The config file says which (docs/sweep.md):

    seed = [1, 2, 3]                # options of train_ondevice by name, for all runs; a list makes a grid

    [tasks.contrast]                # what to adapt to
    image = "artifacts/es/es.zimg"
    shift = "contrast"

    [methods.fixed]                 # how
    q-schedule = "fixed"
    q = [1, 4, 16]

Every run is a directory of its own, SWEEP/runs/TASK/METHOD/SETTINGS, made by that command in a process of its own: what
was interrupted is resumed, what is complete is not run again. One table holds them all.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import tomli

from converters.errors import UserError
from pipeline import cli
from pipeline import run as run_module
from pipeline.files import write_atomic
from pipeline.train_ondevice import main as train_ondevice

TABLE = "table.csv"
# Not a sweep's to set: it names its runs itself, and starts them anew or resumes them as needed.
_OWN = {"run", "resume", "help"}
_OPTIONS = {
    option.lstrip("-"): parameter for parameter in train_ondevice.params for option in parameter.opts
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run of a grid. settings: options of train_ondevice, one value each; varied: those that the grid varies."""

    task: str
    method: str
    settings: Mapping[str, Any]
    varied: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its directory under SWEEP/runs."""
        values = [f"{option}={self.settings[option]}" for option in self.varied]
        return "/".join((self.task, self.method, ",".join(values) or "run")).replace(" ", "")

    def arguments(self, folder: Path) -> list[str]:
        """Of train_ondevice."""
        line = ["--run", str(folder / "runs" / self.name)]
        for option, value in self.settings.items():
            line += [f"--{option}", str(value)]
        return line


# -- the config file ---------------------------------------------------------------------------------------------------


def read_config(path: Path) -> list[Cell]:
    """The cells, in the order of the file. Raises UserError for what is no sweep."""
    try:
        config = tomli.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a sweep's config file.") from error
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML ({error}): mend it there.") from error
    groups = {kind: config.pop(kind, None) for kind in ("tasks", "methods")}
    for kind, group in groups.items():
        if not isinstance(group, dict) or not group or not all(isinstance(v, dict) for v in group.values()):
            raise UserError(
                f"{path} has no [{kind}.NAME]: a sweep is every method on every task, at least one of each."
            )
    cells = []
    for (task, of_task), (method, of_method) in itertools.product(groups["tasks"].items(), groups["methods"].items()):
        settings = config | of_task | of_method
        for option, value in settings.items():
            _check(path, f"{task}/{method}", option, value)
        varied = tuple(option for option, value in settings.items() if isinstance(value, list))
        for values in itertools.product(*(settings[option] for option in varied)):
            cells.append(Cell(task, method, settings | dict(zip(varied, values, strict=True)), varied))
    names = [cell.name for cell in cells]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path} asks for the run {twice} twice: remove the value that is repeated.")
    return cells


def _check(path: Path, where: str, option: str, value: Any) -> None:
    if option not in _OPTIONS or option in _OWN:
        raise UserError(f"{path}: {option} is no option that a sweep can set (in {where}): see train_ondevice --help.")
    for one in value if isinstance(value, list) else [value]:
        try:
            if isinstance(one, (bool, dict, list)):
                raise click.BadParameter("one plain value is needed, or a list of them.")
            _OPTIONS[option].type.convert(str(one), _OPTIONS[option], None)
        except click.BadParameter as error:
            raise UserError(f"{path}: {option} = {one!r} in {where}: {error.message}") from error
    if value == []:
        raise UserError(f"{path}: {option} in {where} is an empty list: give it a value.")


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """error: the last line that a run said before it failed; "" for one that is complete."""

    cell: Cell
    error: str = ""


class Interrupted(Exception):
    """The sweep is being stopped."""


class Local:
    """Runs cells in processes of this machine, so many at a time."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, cells: Iterable[Cell], folder: Path) -> Iterator[Outcome]:
        """As they are complete."""
        futures: list[Future[Outcome]] = [self._pool.submit(self._run, cell, folder) for cell in cells]
        for future in as_completed(futures):
            yield future.result()

    def _run(self, cell: Cell, folder: Path) -> Outcome:
        with self._lock:
            if self._stopped:
                raise Interrupted
            process = start(cell, folder)
            self._processes.add(process)
        said = process.communicate()[0]
        with self._lock:
            self._processes.discard(process)
        return outcome(cell, folder, process.returncode, said)

    def stop(self) -> None:
        """Interrupt what is running, as Ctrl-C would: every step is kept."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.send_signal(signal.SIGINT)
        self._pool.shutdown(cancel_futures=True)


class Ray:
    """Runs cells on the workers of a Ray cluster, which see this directory under the same path."""

    def __init__(self, address: str, jobs: int | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError("--ray needs Ray: python -m pip install 'zo-npu[study]'.") from error
        self._ray = ray
        try:
            ray.init(
                None if address == "local" else address,
                num_cpus=jobs if address == "local" else None,
                include_dashboard=False,
                log_to_driver=False,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise UserError(f"no Ray cluster answers at {address} ({str(error).splitlines()[0]}).") from error

    def run(self, cells: Iterable[Cell], folder: Path) -> Iterator[Outcome]:
        """As they are complete."""
        execute = self._ray.remote(num_cpus=1, max_retries=2)(execute_here)
        where = Path.cwd()
        pending = [execute.remote(cell, folder.resolve(), where) for cell in cells]
        while pending:
            done, pending = self._ray.wait(pending)
            for reference in done:
                try:
                    yield self._ray.get(reference)
                except self._ray.exceptions.RayError as error:
                    raise UserError(
                        f"the Ray cluster failed ({str(error).splitlines()[0]}): run the sweep again."
                    ) from error

    def stop(self) -> None:
        self._ray.shutdown()


def execute_here(cell: Cell, folder: Path, where: Path) -> Outcome:
    """In a worker of a cluster: relative paths are those of the sweep's own directory."""
    if not where.is_dir():
        return Outcome(cell, f"{where} is not there on a worker of the cluster: it has to be a shared directory.")
    os.chdir(where)
    process = start(cell, folder)
    said = process.communicate()[0]
    return outcome(cell, folder, process.returncode, said)


def start(cell: Cell, folder: Path) -> subprocess.Popen[str]:
    """Begin the run of a cell, or go on with it."""
    run = folder / "runs" / cell.name
    arguments = ["--resume", str(run)] if (run / "config.json").exists() else cell.arguments(folder)
    # One thread each unless the config says otherwise: there is a process for every core.
    if (
        "--resume" not in arguments
        and "threads" not in cell.settings
        and cell.settings.get("board", "native") == "native"
    ):
        arguments += ["--threads", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.train_ondevice", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is the sweep's to pass on
    )


def outcome(cell: Cell, folder: Path, code: int, said: str) -> Outcome:
    if code == 0 and is_complete(folder, cell):
        return Outcome(cell)
    lines = [line for line in said.splitlines() if line.strip()]
    return Outcome(cell, lines[-1].removeprefix("error: ") if lines else f"it ended with exit code {code}.")


def check_runs(cells: Iterable[Cell], folder: Path) -> None:
    """Raises UserError where a run of this name was made with other settings."""
    for cell in cells:
        run = folder / "runs" / cell.name
        if not (run / "config.json").exists():
            continue
        made = asdict(run_module.read_config(run))
        for option, value in cell.settings.items():
            before = made[option.replace("-", "_")]
            if _plain(option, value) != before:
                raise UserError(
                    f"{run} was made with {option} = {before}, the sweep now says {value}: name another directory with "
                    "--out, or remove that run."
                )


def _plain(option: str, value: Any) -> Any:
    """As config.json has it."""
    parameter = _OPTIONS[option]
    plain = parameter.type.convert(str(value), parameter, None)
    return str(plain) if isinstance(plain, Path) else plain


def is_complete(folder: Path, cell: Cell) -> bool:
    return (folder / "runs" / cell.name / "summary.json").exists()


# -- the table ---------------------------------------------------------------------------------------------------------

_RESULTS = (
    "accuracy_before", "accuracy_after", "loss_before", "loss_after", "forward_passes", "evaluation_passes",
    "kept_step", "weights_changed", "weights", "weights_crc", "passes_per_second",
)  # fmt: skip


_SETTINGS = (
    "dataset", "shift", "severity", "samples", "budget", "steps", "batch", "estimator", "mu", "lr", "lr_schedule",
    "coupling", "rounding", "q_schedule", "q", "q_max", "seed",
)  # fmt: skip


def table(folder: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row for every complete run: task, method, options, results."""
    rows = []
    for cell in cells:
        if not is_complete(folder, cell):
            continue
        run = folder / "runs" / cell.name
        summary = json.loads((run / "summary.json").read_text())
        config = json.loads((run / "config.json").read_text())
        settings = {name: config[name] for name in _SETTINGS}
        rows.append(
            {"task": cell.task, "method": cell.method, "run": cell.name}
            | settings
            | {name: summary[name] for name in _RESULTS}
            | {"steps_taken": summary["steps"], "seconds": round(sum(summary["seconds"].values()), 3)}
        )
    return rows


def write_table(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """table.csv, and table.parquet where pyarrow is installed."""
    import pandas

    frame = pandas.DataFrame(rows)
    written = [folder / TABLE]
    write_atomic(written[0], frame.to_csv(index=False).encode())
    try:
        import pyarrow  # noqa: F401 (pandas writes Parquet with it)
    except ImportError:
        return written
    written.append(folder / "table.parquet")
    write_atomic(written[1], frame.to_parquet(index=False))
    return written


# -- the command -------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The sweep's directory.  [default: sweeps/CONFIG's name]")
@click.option("--jobs", type=click.IntRange(1), help="Runs at a time.  [default: one a core]")
@click.option("--ray", "address", help="Run on the Ray cluster at this address; local: one on this machine.")
@click.option("--dry-run", is_flag=True, help="Print the command line of every run, and do nothing.")
def main(config: Path, out: Path | None, jobs: int | None, address: str | None, dry_run: bool) -> None:
    """Train every cell of a grid that a CONFIG file describes; leave one table of all results.

    Stopped by whatever, the same command goes on where it was. `python -m pipeline.report DIRECTORY` draws the table.
    """
    folder = out or Path("sweeps") / config.stem
    cells = read_config(config)
    if dry_run:
        for cell in cells:
            click.echo(" ".join(["python -m pipeline.train_ondevice", *cell.arguments(folder)]))
        return
    check_runs(cells, folder)
    _keep_config(config, folder)
    left = [cell for cell in cells if not is_complete(folder, cell)]
    click.echo(f"{folder}: {cli.count(len(cells), 'run')}, {len(cells) - len(left)} of them complete")
    failed = _run(left, folder, jobs, address) if left else []
    rows = table(folder, cells)
    if rows:
        click.echo(f"wrote {' and '.join(map(str, write_table(folder, rows)))}: {cli.count(len(rows), 'run')}")
    if failed:
        first = failed[0]
        raise UserError(f"{len(failed)} of {cli.count(len(cells), 'run')} failed. {first.cell.name}: {first.error}")


def _keep_config(config: Path, folder: Path) -> None:
    """The sweep's directory tells how it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "sweep.toml", config.read_bytes())


def _run(cells: Sequence[Cell], folder: Path, jobs: int | None, address: str | None) -> list[Outcome]:
    """Those that failed."""
    runner = Ray(address, jobs) if address else Local(jobs or os.cpu_count() or 1)
    failed = []
    with _stopping(runner), cli.progress(len(cells), "sweep", "run") as bar:
        for done in runner.run(cells, folder):
            if done.error:
                failed.append(done)
                bar.set_postfix(failed=len(failed), refresh=False)
            bar.update()
    return failed


@contextmanager
def _stopping(runner: Local | Ray) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\nstopping: every run keeps the steps that it has taken ...", err=True)
        raise
    finally:
        runner.stop()


if __name__ == "__main__":
    main()
