"""Where the time of a training step goes: python -m pipeline.profile --board qemu_an547 --image FILE.

The board itself measures, op by op and phase by phase: on the emulated Cortex-M55 instructions, which repeat exactly,
elsewhere seconds. One training step is run as training runs it, on random images.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline import board_options, cli
from pipeline.files import write_atomic
from pipeline.plan_ops import image_of, plan_ops
from pipeline.run import disk_errors
from pipeline.style import BLUE, ORANGE, STYLE, png
from pipeline.targets.boards import TICKS_PER_INSTRUCTION, open_board
from pipeline.targets.client import Board, CannotTrace
from pipeline.targets.target import Update, board_title
from pipeline.train_ondevice import read_image
from pipeline.validate import random_pixels
from pipeline.zo import philox
from pipeline.zo.update import MAX_DIRECTIONS, NEAREST, STOCHASTIC

INSTRUCTIONS, SECONDS = "instructions", "seconds"
SEED = 1  # of images, labels, directions and coefficients


@dataclass(frozen=True)
class OpCost:
    """cost: of one sample, in the profile's unit."""

    number: int
    kind: str
    shape: str
    cost: float


@dataclass(frozen=True)
class PhaseCost:
    """cost: of the whole step; each: cost for one of what `of` names."""

    phase: str
    cost: float
    each: float
    of: str


@dataclass(frozen=True)
class Profile:
    """unit: INSTRUCTIONS or SECONDS. step: the phases' sum. ops: none where the runner only runs whole networks."""

    network: str
    board: str
    runner: str
    unit: str
    weights: int
    q: int
    batch: int
    mu: int
    rounding: str
    samples_of_a_pass: int
    ops: list[OpCost]
    phases: list[PhaseCost]

    @property
    def forward(self) -> float:
        if not self.ops:
            return next(phase.each for phase in self.phases if phase.phase == "forward")
        return sum(op.cost for op in self.ops)

    @property
    def step(self) -> float:
        return sum(phase.cost for phase in self.phases)


@cli.command()
@click.option("--image", type=click.Path(path_type=Path), help="Device image made by pipeline.convert.")
@click.option(
    "--tflite", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Or a full-integer .tflite file."
)
@board_options.board_options(help="What runs the network, with one thread.")
@click.option("--q", type=click.IntRange(1, MAX_DIRECTIONS), default=4, help="Directions of the step.")
@click.option("--batch", type=click.IntRange(1), default=64, help="Images of the step.")
@click.option("--mu", type=click.IntRange(1), default=2, help="Size of a probe, in LSB.")
@click.option("--rounding", type=click.Choice([NEAREST, STOCHASTIC]), default=NEAREST, help="Of the update.")
@click.option("--rounds", type=click.IntRange(1), help="The best of so many counts.  [default: 5; counting: 1]")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write profile.json and profile.png there.")
def main(**options: Any) -> None:
    """Show where the time of a forward pass and of a training step goes, on a board."""
    if (options["image"] is None) == (options["tflite"] is None):
        raise click.UsageError("name the network: either --image FILE.zimg or --tflite FILE.")
    board_options.check(options)
    if options["threads"] not in (None, 1):
        raise click.UsageError("--threads: a profile is of one thread.")
    out = options["out"]
    if out is not None:
        with disk_errors(out, "name another place with --out."):
            out.mkdir(parents=True, exist_ok=True)
    network = options["image"] or options["tflite"]
    image = DeviceImage.read(image_of(network)) if options["image"] is None else read_image(network)
    where = {name: options[name] for name in board_options.NAMES}
    if options["board"] == "native":
        where["threads"] = None if options["port"] else 1
    counting = options["board"] == "qemu_an547"
    rounds = options["rounds"] or (1 if counting else 5)
    with closing(open_board(options["board"], image.raw, count=counting, **where)) as board:
        if board.info.threads != 1:
            raise UserError(f"the board runs {board.info.threads} threads: start it with --threads 1 to profile it.")
        per_unit = TICKS_PER_INSTRUCTION if counting else board.info.ticks_per_second
        settings = {name: options[name] for name in ("q", "batch", "mu", "rounding")}
        ops, samples, phases = measure(board, rounds=rounds, **settings)
    result = Profile(
        network=str(network),
        board=board.info.board,
        runner=board.info.runner,
        unit=INSTRUCTIONS if counting else SECONDS,
        weights=board.info.weights,
        samples_of_a_pass=samples,
        ops=[
            OpCost(i, op.kind, op.shape, ticks / per_unit / samples)
            for i, (op, ticks) in enumerate(zip(plan_ops(image.tflite), ops.tolist(), strict=True))
        ]
        if ops is not None
        else [],
        phases=phase_costs({name: ticks / per_unit for name, ticks in phases.items()}, board.info.weights, options),
        **settings,
    )
    click.echo("\n".join(table(result)))
    if out is not None:
        facts = asdict(result) | {"forward": result.forward, "step": result.step}
        with disk_errors(out, "name another place with --out."):
            write_atomic(out / "profile.json", json.dumps(facts, indent=1).encode() + b"\n")
            write_atomic(out / "profile.png", figure(result))


def measure(
    board: Board, *, q: int, batch: int, mu: int, rounding: str, rounds: int
) -> tuple[np.ndarray | None, int, dict[str, int]]:
    """The least of several rounds: ticks of each op in a pass, the samples of that pass, ticks of each phase of a step.

    None for the ops where the board's runner only runs whole networks.
    Every round is a training step on random images: q probes of both sides, an update that moves a weight by about 1.
    """
    most = min(board.info.max_batch, board.info.capacity)
    if batch > most:
        raise UserError(f"a batch of {batch} images is beyond the board's limit of {most}: use a smaller --batch.")
    spec, rng = board.image.input, np.random.default_rng(SEED)
    pixels = random_pixels(batch, (spec.height, spec.width, spec.channels), SEED)
    board.write_samples(0, pixels, rng.integers(0, board.info.classes, batch))
    board.select(range(batch))
    coefficients = np.rint(2**16 / np.sqrt(q) * rng.standard_normal(q)).astype(int)
    best_ops: np.ndarray | None = None
    samples = 1
    best_phases: dict[str, int] = {}
    with cli.progress(rounds * q, "profiling", "direction") as bar:
        for step in range(rounds):
            seeds = philox.direction_seeds(SEED, step, q)
            before = board.profile_phases()
            for seed in seeds:
                board.probe(seed, mu)
                bar.update()
            board.update(Update(rounding, philox.rounding_seed(SEED, step), seeds, tuple(coefficients.tolist())))
            spent = {name: ticks - before[name] for name, ticks in board.profile_phases().items()}
            best_phases = {name: min(ticks, best_phases.get(name, ticks)) for name, ticks in spent.items()}
            with suppress(CannotTrace):
                ops, samples = board.profile_ops()
                best_ops = ops if best_ops is None else np.minimum(ops, best_ops)
    return best_ops, samples, best_phases


def phase_costs(costs: Mapping[str, float], weights: int, step: Mapping[str, Any]) -> list[PhaseCost]:
    passes = 2 * step["q"] * step["batch"]
    parts = {
        "perturb": (weights * step["q"], "weight and direction"),
        "forward": (passes, "sample"),
        "loss": (passes, "sample"),
        "update": (weights, "weight"),
        "crc": (weights, "weight"),
    }
    return [PhaseCost(name, costs[name], costs[name] / count, of) for name, (count, of) in parts.items()]


def amount(cost: float, unit: str) -> str:
    """ "12,345" or "9.35" instructions, "1.23 ms"."""
    if unit == INSTRUCTIONS:
        return f"{cost:,.0f}" if cost >= 100 else f"{cost:.2f}"
    for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if cost >= size:
            return f"{cost / size:.2f} {name}"
    return f"{cost * 1e9:.2f} ns"


def table(p: Profile) -> Iterable[str]:
    yield f"{p.network} on {board_title(p.board)} (runner {p.runner}, {p.weights:,} weights), {p.unit}"
    if p.ops:
        yield f"  {'op':>4} {'':<18} {'':<38}{p.unit:>14}{'share':>9}"
    else:
        yield "  the board's runner only runs whole networks: what an op takes is not known"
    for op in p.ops:
        share = f"{100 * op.cost / p.forward:.1f} %"
        yield f"  {op.number:>4} {op.kind:<18} {op.shape:<38}{amount(op.cost, p.unit):>14}{share:>9}"
    among = f" (among {p.samples_of_a_pass})" if p.samples_of_a_pass > 1 else ""
    yield f"  {'':>4} {f'whole pass of one sample{among}':<57}{amount(p.forward, p.unit):>14}"
    yield f"one training step, q = {p.q}, batch of {p.batch}, two-sided, {p.rounding} rounding"
    for phase in p.phases:
        each = f"{amount(phase.each, p.unit)} a {phase.of}"
        share = f"{100 * phase.cost / p.step:.1f} %"
        yield f"  {phase.phase:<18}{amount(phase.cost, p.unit):>16}{share:>9}   {each}"
    yield f"  {'step':<18}{amount(p.step, p.unit):>16}"


def figure(p: Profile) -> bytes:
    """A PNG: a bar for every op of a pass, and one for every phase of the step."""
    with matplotlib.rc_context(STYLE):
        lists = [([phase.phase for phase in p.phases], [phase.cost for phase in p.phases], ORANGE)]
        titles = [f"Training step, q = {p.q}, batch {p.batch}: {amount(p.step, p.unit)} {_noun(p)}"]
        if p.ops:
            lists.insert(0, ([f"{op.kind} {op.number}" for op in p.ops], [op.cost for op in p.ops], BLUE))
            titles.insert(0, f"Forward pass of one sample: {amount(p.forward, p.unit)} {_noun(p)}")
        height = 1.2 + 0.16 * (sum(len(names) for names, _, _ in lists) + 2 * len(lists))
        picture = Figure(figsize=(7.5, height), layout="constrained")
        panels = picture.subplots(len(lists), 1, height_ratios=[len(names) + 2 for names, _, _ in lists], squeeze=False)
        for axes, title, (names, costs, color) in zip(panels.flat, titles, lists, strict=True):
            _bars(axes, names, costs, color)
            axes.set_title(title)
            axes.xaxis.set_major_formatter(EngFormatter("s" if p.unit == SECONDS else ""))
        return png(picture)


def _noun(p: Profile) -> str:
    return p.unit if p.unit == INSTRUCTIONS else ""


def _bars(axes: Any, names: Sequence[str], costs: Sequence[float], color: str) -> None:
    places = range(len(names))
    axes.barh(places, costs, color=color, height=0.7)
    axes.set_yticks(places, names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


if __name__ == "__main__":
    main()
