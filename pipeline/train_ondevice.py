"""Adapt an INT8 network on a board, with forward passes alone: python -m pipeline.train_ondevice --image FILE."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline import board_options, cli, datasets, selftest
from pipeline.datasets import shifts
from pipeline.datasets.dataset import Dataset, Split
from pipeline.run import Config, Run, read_config
from pipeline.samples import Samples, check_batch, checksum, link_share
from pipeline.stopwatch import Stopwatch
from pipeline.targets.boards import open_board
from pipeline.targets.lockstep import Lockstep
from pipeline.targets.target import NEAREST, STOCHASTIC, Target, board_title
from pipeline.trainer import Summary, Trainer
from pipeline.zo import estimator, schedule
from pipeline.zo.update import MAX_DIRECTIONS

if TYPE_CHECKING:
    from pipeline.targets.twin import Twin

# Defaults of q and its maximum; see docs/method.md for the others.
Q_SCHEDULES = {"qscheduler": (4, 32), "fixed": (8, 8), "linear": (4, 16), "adazeta": (1, 32)}
DEFAULT_BUDGET = 100_000
# A shift's noise does not depend on the run's seed: every seed adapts to the same pictures.
ADAPT_SHIFT_SEED, TEST_SHIFT_SEED = 1, 2
ON_RESUME = {"resume", "board", *board_options.NAMES, "budget", "steps", "data_dir", "keep", "lockstep"}
ON_SELFTEST = {"selftest", "image", "board", *board_options.NAMES}


@cli.command()
@click.option("--image", type=click.Path(path_type=Path), help="Device image (.zimg) made by pipeline.convert.")
@board_options.board_options("twin", help="twin: tflite-runtime, equal bit for bit.")
@click.option("--dataset", type=click.Choice(datasets.NAMES), help="Data set; the image's own by default.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where the data set's files are.")
@click.option("--shift", type=click.Choice(shifts.SHIFTS), default="brightness", help="What changed in the field.")
@click.option("--severity", type=click.IntRange(1, 5), default=3, help="How much of it.")
@click.option("--samples", type=click.IntRange(1, 65536), default=1000, help="Labelled images on the device.")
@click.option("--budget", type=click.IntRange(1), help=f"Forward passes to train for.  [default: {DEFAULT_BUDGET}]")
@click.option("--steps", type=click.IntRange(1, 2**32 - 1), help="Steps to train for, instead of --budget.")
@click.option("--batch", type=click.IntRange(1, 65536), default=64, help="Images a step, shared by its directions.")
@click.option(
    "--estimator",
    "estimator_",
    type=click.Choice([estimator.TWO_SIDED, estimator.ONE_SIDED]),
    default=estimator.TWO_SIDED,
    help="L(w+mu z) - L(w-mu z), or 2(L(w+mu z) - L(w)).",
)
@click.option("--mu", type=click.IntRange(1, 126), default=2, help="Size of a probe in LSB.")
@click.option("--lr", type=cli.FiniteRange(0, 64), default=1.0, help="RMS of a step in LSB.")
@click.option("--lr-schedule", type=click.Choice(schedule.LR_SCHEDULES), default=schedule.CONSTANT, help="Its course.")
@click.option(
    "--coupling", type=click.Choice(schedule.COUPLINGS), default=schedule.NONE, help="sqrt: lr times sqrt(q/8)."
)
@click.option("--rounding", type=click.Choice([NEAREST, STOCHASTIC]), default=NEAREST, help="Of the update to int8.")
@click.option("--q-schedule", type=click.Choice(list(Q_SCHEDULES)), default="qscheduler", help="How q is chosen.")
@click.option("--q", type=click.IntRange(1, MAX_DIRECTIONS), help="Directions a step at first.  [default: 4; fixed: 8]")
@click.option("--q-max", type=click.IntRange(1, MAX_DIRECTIONS), help="Most directions.  [default: 32; linear: 16]")
@click.option("--window", type=click.IntRange(1), help="Steps a window of q.  [default: whole epochs, >= 16 steps]")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=1, help="Decides everything random.")
@click.option(
    "--eval-every", type=click.IntRange(0), default=20_000, help="Forward passes between evaluations; 0: none."
)
@click.option("--eval-images", type=click.IntRange(0, 65536), default=2000, help="Shifted test images to evaluate on.")
@click.option("--keep", type=click.Choice(["last", "best"]), default="last", help="Weights to end with.")
@click.option("--lockstep", type=click.IntRange(1), metavar="N", help="Run the twin alongside for N steps and compare.")
@click.option("--selftest", is_flag=True, help="Check the board against the twin instead of training.")
@click.option("--run", "run_name", help="Run directory; a plain NAME means runs/NAME.  [default: from the image]")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Continue a run, wherever it stopped.")
def main(**options) -> None:
    """Adapt the network of a device image to a shifted domain on a board, with forward passes alone.

    Leaves a run directory with the adapted .tflite, all measurements, and a log from which the weights can be made
    again. A run that was stopped, by whatever, continues with --resume RUN as if nothing had happened; a larger
    --budget (or --steps) then goes on from there.
    """
    if options["selftest"]:
        _selftest(options)
        return
    run, splits = _resume(options) if options["resume"] else _create(options)
    try:
        where = " --port PORT" if run.config.board == "stm32n6" else " --port HOST:PORT"
        with _resumable(run, where * bool(run.config.port)) if options["resume"] else _discarding(run):
            target = _open(run, options["lockstep"])
        with _resumable(run), closing(target):
            summary = _train(run, target, *splits)
    finally:
        run.close()
    if options["lockstep"]:
        steps = min(options["lockstep"], summary.steps)
        click.echo(f"lockstep: {target.verdict(steps)}.")
    _print_summary(run, summary, len(splits[1]))


def _create(options: dict[str, Any]) -> tuple[Run, tuple[Split, Split]]:
    board_options.check(options)
    if options["image"] is None:
        raise click.UsageError("name a device image with --image, or a run to continue with --resume.")
    if options["run_name"] == "":
        raise click.UsageError("--run needs a name.")
    if options["budget"] is not None and options["steps"] is not None:
        raise click.UsageError("--budget and --steps exclude each other.")
    if options["batch"] > options["samples"]:
        raise click.UsageError(f"--batch {options['batch']} is more than --samples {options['samples']}.")
    if options["q_schedule"] == "adazeta" and options["q"] is not None:
        raise click.UsageError("--q-schedule adazeta starts with its own q: give --q-max only.")
    if options["q_schedule"] == "fixed" and options["q_max"] is not None:
        raise click.UsageError("--q-schedule fixed has one q: give --q only.")
    q, q_max = (
        given if given is not None else default
        for given, default in zip((options["q"], options["q_max"]), Q_SCHEDULES[options["q_schedule"]], strict=True)
    )
    if options["q_schedule"] == "fixed" or (options["q_max"] is None and q > q_max):
        q_max = q
    if q > q_max:
        raise click.UsageError(f"--q {q} is more than --q-max {q_max}.")
    if options["steps"] is None and options["budget"] is None:
        options["budget"] = DEFAULT_BUDGET
    cost = estimator.passes(options["estimator_"], q, options["batch"])
    if options["budget"] is not None and options["budget"] < cost:
        raise click.UsageError(f"--budget {options['budget']} does not pay for the first step, of {cost} passes.")
    image = read_image(options["image"])
    if options["mu"] > image.mu_max:
        raise UserError(
            f"--mu {options['mu']} is more than the {image.mu_max} that {options['image']} leaves room for: use a "
            "smaller one, or convert the model with a larger --mu-max."
        )
    name = options["dataset"] or image.meta.get("dataset")
    if name not in datasets.NAMES:
        raise UserError(f"{options['image']} does not say which data set it was made for: name one with --dataset.")
    own = image.meta.get("dataset")
    if own not in (None, name):
        click.echo(f"warning: {options['image']} was made for {own}, not for {name}.", err=True)
    config = Config(
        image=str(options["image"]),
        image_crc=image.crc,
        samples_crc=0,
        board=options["board"],
        port=options["port"],
        memory=options["memory"],
        threads=options["threads"],
        link=options["link"],
        kernels=options["kernels"],
        dataset=name,
        data_dir=str(options["data_dir"]) if options["data_dir"] else None,
        shift=options["shift"],
        severity=options["severity"],
        samples=options["samples"],
        budget=options["budget"],
        steps=options["steps"],
        batch=options["batch"],
        estimator=options["estimator_"],
        mu=options["mu"],
        lr=options["lr"],
        lr_schedule=options["lr_schedule"],
        coupling=options["coupling"],
        rounding=options["rounding"],
        q_schedule=options["q_schedule"],
        q=q,
        q_max=q_max,
        window=options["window"] or 0,
        seed=options["seed"],
        eval_every=options["eval_every"],
        eval_images=options["eval_images"],
        keep=options["keep"],
    )
    splits = load_splits(config, image)
    config = replace(config, samples_crc=checksum(splits[0]))
    return Run.create(_run_path(options["run_name"], config), config, image), splits


def _given(options: dict[str, Any], allowed: set[str], why_not: str) -> set[str]:
    """What the command line says. why_not: what is said of an option that is not allowed."""
    context = click.get_current_context()
    given = {name for name in options if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    if stray := sorted(given - allowed):
        flag = {"run_name": "run", "estimator_": "estimator"}.get(stray[0], stray[0]).replace("_", "-")
        raise click.UsageError(f"--{flag} {why_not}.")
    return given


def _selftest(options: dict[str, Any]) -> None:
    _given(options, ON_SELFTEST, "means nothing to --selftest: leave it out")
    board_options.check(options)
    if options["image"] is None or options["board"] == "twin":
        raise click.UsageError("--selftest needs a board and a device image: --board BOARD --image FILE.")
    image = read_image(options["image"])
    with closing(_twin(image, None)) as twin:
        where = {name: options[name] for name in board_options.NAMES}
        with closing(open_board(options["board"], image.raw, **where)) as board:
            selftest.run(board, twin)


def _resume(options: dict[str, Any]) -> tuple[Run, tuple[Split, Split]]:
    """Continue under the run's own settings; those that do not change what a step computes may be given anew."""
    given = _given(options, ON_RESUME, "is settled by the run: it cannot be given with --resume")
    path = options["resume"]
    old = read_config(path)
    kind, other = ("budget", "steps") if old.budget is not None else ("steps", "budget")
    if other in given:
        raise click.UsageError(f"this run counts its budget in {kind}: give --{kind}.")
    if kind in given and options[kind] < getattr(old, kind):
        raise click.UsageError(f"--{kind} may only grow: the run has {getattr(old, kind)}.")
    changes = {name: options[name] for name in given & {"board", *board_options.NAMES, "keep", kind}}
    if given & {"board", "port"}:  # what was said of the board before need not mean anything to this one
        changes = dict.fromkeys(board_options.NAMES) | changes
    board_options.check(asdict(old) | changes)
    if "data_dir" in given:
        changes["data_dir"] = str(options["data_dir"])
    run = Run.resume(path)
    try:
        return run, _continue(run, changes)
    except BaseException:
        run.close()
        raise


def _continue(run: Run, changes: dict[str, Any]) -> tuple[Split, Split]:
    """The images of a run that goes on with changes to its config. Raises UserError where it cannot."""
    _check_arithmetic(run, changes.get("board", run.config.board))
    splits = load_splits(replace(run.config, **changes), run.image)
    if checksum(splits[0]) != run.config.samples_crc:
        raise UserError(
            f"the on-device images are not those that {run.path} was trained with so far: restore the data set's files "
            f"({run.config.dataset}), or say with --data-dir where they are."
        )
    if changes:
        run.reconfigure(replace(run.config, **changes))
    return splits


def _check_arithmetic(run: Run, board: str) -> None:
    """An NPU rounds in its own way: losses from it and from elsewhere do not belong into one training."""
    before = run.config.board
    if run.image.npu is not None and (run.records or run.metrics) and board != before:
        raise UserError(
            f"{run.path} trains a network that was compiled for an NPU, and its losses come from "
            f"{board_title(before)}: those of {board_title(board)} are of another arithmetic. Resume with --board "
            f"{before}; the weights so far can be made without a board: python -m pipeline.replay {run.path}."
        )


def read_image(path: Path) -> DeviceImage:
    try:
        return DeviceImage.read(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): make it with python -m pipeline.convert."
        ) from error


def load_dataset(name: str, data_dir: Path | None, image: DeviceImage, limit: int) -> Dataset:
    """As the network takes it, at most `limit` images a split. Raises UserError where it does not fit the network."""
    size = image.input
    if size.height != size.width:
        raise UserError(f"the network takes images of {size.height}x{size.width}: only square ones are supported.")
    data = datasets.load(
        name,
        data_dir=data_dir,
        size=size.height,
        channels=size.channels,
        resize=size.preprocessing.resize,
        limit=limit,
    )
    if data.classes != image.classes:
        raise UserError(
            f"the network has {image.classes} classes, {name} has {data.classes}: choose the --dataset that "
            "the model was made for, or convert a model for this one."
        )
    return data


def shifted_splits(
    image: DeviceImage,
    *,
    dataset: str,
    data_dir: str | Path | None,
    shift: str,
    severity: int,
    samples: int,
    eval_images: int,
) -> tuple[Split, Split]:
    """The on-device set and the evaluation images, shifted. Raises UserError where they do not fit the network."""
    data = load_dataset(dataset, Path(data_dir) if data_dir else None, image, max(samples, eval_images))
    if len(data.adapt) < samples:
        raise UserError(f"{dataset} has {len(data.adapt)} images for the device: use fewer --samples.")
    return tuple(
        Split(shifts.apply(shift, split.images, severity, seed), split.labels)
        for split, seed in (
            (data.adapt.head(samples), ADAPT_SHIFT_SEED),
            (data.test.head(eval_images), TEST_SHIFT_SEED),
        )
    )


def load_splits(config: Config, image: DeviceImage) -> tuple[Split, Split]:
    """The same of a run."""
    names = ("dataset", "data_dir", "shift", "severity", "samples", "eval_images")
    return shifted_splits(image, **{name: getattr(config, name) for name in names})


def _run_path(name: str | None, config: Config) -> Path:
    if name is not None:
        return Path(name) if "/" in name else Path("runs") / name
    stem = f"{Path(config.image).stem}-{config.shift}-{config.seed}"
    candidates = (Path("runs") / (stem if i == 1 else f"{stem}-{i}") for i in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def _open(run: Run, lockstep: int | None) -> Target:
    """The board of the run, alone or in lockstep with the twin."""
    config = run.config
    where = {name: getattr(config, name) for name in board_options.NAMES}
    twin = config.board == "twin"
    target = _twin(run.image, config.threads) if twin else open_board(config.board, run.image.raw, **where)
    try:
        if target.info.image_crc != run.image.crc:
            raise UserError(
                f"{board_title(config.board)} runs image {target.info.image_crc:08x}, the run was made with "
                f"{run.image.crc:08x}: load the run's image ({config.image}) onto the board."
            )
        check_batch(target.info, config.batch)
        if lockstep:
            return Lockstep(target, _twin(run.image, config.threads), lockstep)
    except BaseException:
        target.close()
        raise
    return target


def _twin(image: DeviceImage, threads: int | None) -> Twin:
    try:
        from pipeline.targets.twin import Twin  # only here: boards do without tflite-runtime
    except ImportError as error:
        raise UserError(
            f"the twin needs tflite-runtime ({error}), which has wheels for Python 3.10 and 3.11: "
            "python -m pipeline.doctor says how to get it."
        ) from error
    return Twin(image, threads)


def _train(run: Run, target: Target, train: Split, test: Split) -> Summary:
    config, watch = run.config, Stopwatch()
    samples = Samples(target, train, test, config.batch, watch, cli.progress)
    trainer = Trainer(run, target, samples, watch)
    for note in samples.notes(config.batch):
        click.echo(f"note: {note}", err=True)
    click.echo(f"run {run.path}: {config.image} on {board_title(target.info.board)}, {config.domain}")
    with cli.progress(len(run.records), "restoring", "step", disable=not run.records) as bar:
        trainer.prepare()
        for _ in trainer.restore():
            bar.update()
    by_steps = config.budget is None
    total = config.steps if by_steps else config.budget
    done = trainer.state.step if by_steps else trainer.state.passes
    unit = "step" if by_steps else "pass"
    with cli.progress(total, "training", unit, unit_scale=not by_steps, initial=done) as bar:
        accuracy = next((line.accuracy for line in reversed(run.metrics) if line.accuracy is not None), None)
        for line in trainer.steps():
            accuracy = line.accuracy if line.accuracy is not None else accuracy
            shown = {"q": line.q, "loss": f"{line.loss:.3f}", "accuracy": _percent(accuracy)}
            if not samples.train_stays:
                shown["link"] = f"{100 * link_share(line.seconds):.0f}%"
            bar.set_postfix(shown, refresh=False)
            bar.update((line.step if by_steps else line.forward_passes) - bar.n)
        saturated = sum(line.saturated for line in run.metrics)
    if saturated:
        click.echo(
            f"note: {saturated} coefficients were cut to the largest that a board takes; a smaller --lr avoids it."
        )
    return trainer.finish()


@contextmanager
def _discarding(run: Run) -> Iterator[None]:
    """A new run whose board cannot be opened leaves no directory."""
    try:
        yield
    except BaseException:
        run.discard()
        raise


@contextmanager
def _resumable(run: Run, more: str = "") -> Iterator[None]:
    """Whatever stops a run, say how it goes on (`more`: with which other options)."""
    try:
        yield
    except KeyboardInterrupt:
        step = len(run.records)
        click.echo(f"\nstopped by Ctrl-C after step {step}: every step is kept; {run.resume_hint}{more}", err=True)
        sys.exit(130)
    except UserError as error:
        if run.resume_hint in str(error):
            raise
        raise UserError(f"{error} Every step up to {len(run.records)} is kept; {run.resume_hint}{more}") from error


def _percent(value: float | None) -> str:
    return "not evaluated" if value is None else f"{100 * value:.1f}%"


def _print_summary(run: Run, s: Summary, test_images: int) -> None:
    accuracy = f"{_percent(s.accuracy_before)} -> {_percent(s.accuracy_after)}"
    steps = cli.count(s.steps, "step")
    rows = [
        (
            "accuracy",
            f"{accuracy} on {cli.count(test_images, 'test image')}, {run.config.domain}"
            if test_images
            else "not evaluated",
        ),
        ("training loss", f"{s.loss_before:.3f} -> {s.loss_after:.3f} nats"),
        ("forward passes", f"{s.forward_passes:,} in {steps}, and {s.evaluation_passes:,} to evaluate"),
        ("seconds", ", ".join(f"{purpose} {value:.1f}" for purpose, value in sorted(s.seconds.items()))),
        ("link", f"{100 * link_share(s.seconds):.0f} % of them: images on their way (upload)"),
        (
            "speed",
            f"{s.passes_per_second:,.0f} forward passes/s on {s.board} ({s.runner}, {cli.count(s.threads, 'thread')})",
        ),
        ("weights", f"{s.weights_changed:,} of {s.weights:,} differ from the image; CRC-32 {s.weights_crc:08x}"),
        *((f"memory: {purpose}", f"{size:,} bytes") for purpose, size in s.memory.items() if size),
        ("adapted model", f"{run.path / 'adapted.tflite'} (the weights after step {s.kept_step})"),
    ]
    for name, value in rows:
        click.echo(f"  {name:<24} {value}")
    if s.loss_after > s.loss_before:
        click.echo(f"warning: the training loss ended above its start ({s.loss_after:.3f} > {s.loss_before:.3f}).")
        if s.best is not None and s.best.steps != s.kept_step:
            click.echo(
                f"The best window ended at step {s.best.steps} with {s.best.loss:.3f} nats. For those weights: "
                f"python -m pipeline.replay {run.path} --step {s.best.steps} --output {run.path / 'best.tflite'}"
            )
        else:
            click.echo("Try a smaller --lr, or another --q-schedule; the image itself is still the better model.")


if __name__ == "__main__":
    main()
