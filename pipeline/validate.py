"""Does a board compute what TensorFlow Lite computes? python -m pipeline.validate --image FILE.

The same inputs go to the board and to the oracles, and every logit has to be equal. Where one is not, the board runs
the network op by op, and the first op whose output differs from that of tflite-runtime's reference kernels is named:
its inputs were still equal, so it is where to look.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.plan import Plan, compile_plan
from converters.tflite_model import Graph, read_graph
from pipeline import board_options, cli, datasets
from pipeline.files import write_atomic
from pipeline.oracles import Oracle, TfliteInterpreter, open_oracles
from pipeline.run import disk_errors
from pipeline.targets.boards import open_board
from pipeline.targets.client import Board, CannotTrace
from pipeline.targets.target import NPU, board_title
from pipeline.targets.tolerance import MEAN_LSB, MOST_LSB, of_logits
from pipeline.train_ondevice import load_dataset, read_image

MOST_TRACED = 8  # inputs that are compared op by op


@dataclass(frozen=True)
class Inputs:
    """pixels: uint8 [n, h, w, c]; labels: [n], None for random pixels."""

    title: str
    pixels: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True)
class LogitsResult:
    """One oracle against the board over all inputs; mean and largest: of the differences; samples: inputs with one."""

    oracle: str
    logits: int
    differing: int
    mean: float
    largest: int
    samples: list[int]
    accuracy: float | None


@dataclass(frozen=True)
class OpResult:
    """One op over the traced inputs; op: its number in the PLAN, tensor: that of its output in the graph.

    largest: the largest difference of a value; first: where an input differs first, None when all are equal.
    """

    op: int
    place: str
    kind: str
    tensor: int
    shape: list[int]
    values: int
    differing: int
    largest: int
    first: dict[str, Any] | None


@cli.command()
@click.option("--image", type=click.Path(path_type=Path), required=True, help="Device image made by pipeline.convert.")
@board_options.board_options(help="What is to be compared.")
@click.option("--dataset", type=click.Choice(datasets.NAMES), help="Test images of a data set, with accuracies.")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where its files are; alone: the image's own data set."
)
@click.option("--samples", type=click.IntRange(1, 65536), default=32, help="Inputs; random ones without a data set.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=1, help="Of the random inputs.")
@click.option("--ops", "every_op", is_flag=True, help="Compare the output of every op, even if all logits are equal.")
@click.option("--dump", type=click.Path(path_type=Path), metavar="DIR", help="Where to write the first differing op.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the results.")
def main(**options) -> None:
    """Compare a board's outputs with tflite-runtime's reference kernels and, where its wheel is there, TFLM.

    Exit code 0 says that every value was equal; on an NPU, which rounds in its own way, that all are within a
    tolerance, which is named.
    """
    for path in (options["json_file"], options["dump"]):
        if path is not None and not path.parent.is_dir():
            raise UserError(f"there is no folder {path.parent}: make it, or name another place.")
    # --threads are the oracles' as well, whatever the board.
    board_options.check(options, set(board_options.NAMES) - {"threads"})
    image = read_image(options["image"])
    inputs = _inputs(image, options)
    with ExitStack() as stack:
        where = {name: options[name] for name in board_options.NAMES}
        board = stack.enter_context(closing(open_board(options["board"], image.raw, **where)))
        oracles = open_oracles(image.tflite, options["threads"] or os.cpu_count() or 1)
        for oracle in oracles:
            stack.enter_context(closing(oracle))
        title = f"{board_title(board.info.board)} (runner {board.info.runner})"
        click.echo(f"{options['image']} on {title}, {inputs.title}")
        results, accuracy = compare_logits(board, oracles, inputs)
        _print_logits(results, accuracy, board)
        tolerated = is_tolerated(board, results)
        wrong = [] if tolerated else [sample for result in results for sample in result.samples]
        ops, note = _trace(board, inputs.pixels, wrong, options["every_op"], options["dump"])
    first = next((op for op in ops if op.first), None)
    if options["every_op"]:
        _print_ops(ops)
    if first:
        _print_first(first, results[0].oracle)
    verdict = "" if tolerated else _verdict(board, results, ops, first) + note
    if options["json_file"] is not None:
        facts = {
            "image": str(options["image"]),
            "image_crc": image.crc,
            "board": board.info.board,
            "runner": board.info.runner,
            "inputs": inputs.title,
            "equal": not verdict and not any(result.differing for result in results),
            "tolerance": {"mean": MEAN_LSB, "largest": MOST_LSB} if board.info.runner == NPU else None,
            "tolerated": tolerated,
            "accuracy": accuracy,
            "oracles": [asdict(result) for result in results],
            "ops": [asdict(op) for op in ops],
            "first_differing_op": first.op if first else None,
        }
        with disk_errors(options["json_file"], "name another place with --json."):
            write_atomic(options["json_file"], json.dumps(facts, indent=1).encode() + b"\n")
    if verdict:
        raise UserError(verdict)
    click.echo(tolerated or "equal: every value that was compared.")


def _trace(
    board: Board, pixels: np.ndarray, wrong: Sequence[int], every_op: bool, dump: Path | None
) -> tuple[list[OpResult], str]:
    """Op by op on inputs whose logits are wrong (by tflite-runtime first), then, with every_op, on others.

    Nothing where none is wrong and nobody asked; a sentence where the board's runner cannot.
    """
    if not wrong and not every_op:
        return [], ""
    samples = list(dict.fromkeys([*wrong, *(range(len(pixels)) if every_op else ())]))
    try:
        return compare_ops(board, pixels, samples[:MOST_TRACED], dump), ""
    except CannotTrace as error:
        if not wrong:
            raise
        return [], f" {str(error)[0].upper()}{str(error)[1:]}"


# -- inputs ------------------------------------------------------------------------------------------------------------


def _inputs(image: DeviceImage, options: dict[str, Any]) -> Inputs:
    count = options["samples"]
    if options["dataset"] is None and options["data_dir"] is None:
        shape = (image.input.height, image.input.width, image.input.channels)
        pixels = random_pixels(count, shape, options["seed"])
        return Inputs(f"{cli.count(count, 'random input')} of seed {options['seed']}", pixels, None)
    name = options["dataset"] or image.meta.get("dataset")
    if name not in datasets.NAMES:
        raise UserError(f"{options['image']} does not say which data set it was made for: name one with --dataset.")
    test = load_dataset(name, options["data_dir"], image, count).test
    if len(test) < count:
        raise UserError(f"{name} has {len(test)} test images: use fewer --samples.")
    test = test.head(count)
    return Inputs(f"{cli.count(count, 'test image')} of {name}", test.images, test.labels)


def random_pixels(count: int, shape: tuple[int, int, int], seed: int) -> np.ndarray:
    """uint8 [n, h, w, c]: from noise to smooth ramps (noise alone saturates nothing and excites little)."""
    rng = np.random.default_rng(seed)
    h, w, c = shape
    noise = rng.integers(0, 256, (count, *shape))
    ramps = np.linspace(0, 255, h)[:, None, None] * rng.random((count, 1, 1, c))
    smooth = ramps + np.linspace(0, 255, w)[None, :, None] * rng.random((count, 1, 1, c))
    mix = rng.random((count, 1, 1, 1))
    return np.clip(mix * noise + (1 - mix) * smooth, 0, 255).astype(np.uint8)


# -- logits ------------------------------------------------------------------------------------------------------------


def compare_logits(
    board: Board, oracles: Sequence[Oracle], inputs: Inputs
) -> tuple[list[LogitsResult], dict[str, float]]:
    """The result of each oracle; with labels, the accuracy of the board and of each oracle by name."""
    pixels, labels = inputs.pixels, inputs.labels
    count, step = len(pixels), min(board.most_logits, 64)  # small enough for progress to be seen
    names = [board.info.board, *(oracle.name for oracle in oracles)]
    logits = {name: np.empty((count, board.info.classes), np.int8) for name in names}
    with cli.progress(count, "comparing", "input") as bar:
        for at in range(0, count, step):
            part = slice(at, at + step)
            size = len(pixels[part])
            board.write_samples(0, pixels[part], np.zeros(size) if labels is None else labels[part])
            board.select(range(size))
            logits[board.info.board][part] = board.logits()
            quantised = board.image.quantize_pixels(pixels[part])
            for oracle in oracles:
                logits[oracle.name][part] = oracle.logits(quantised)
            bar.update(size)
    right = {} if labels is None else {name: float((v.argmax(axis=1) == labels).mean()) for name, v in logits.items()}
    results = []
    for name in names[1:]:
        distance = np.abs(logits[names[0]].astype(int) - logits[name])
        samples = np.flatnonzero(distance.any(axis=1)).tolist()
        differing, mean, largest = int(np.count_nonzero(distance)), float(distance.mean()), int(distance.max())
        results.append(LogitsResult(name, distance.size, differing, mean, largest, samples, right.get(name)))
    return results, right


def is_tolerated(board: Board, results: Sequence[LogitsResult]) -> str:
    """A sentence where logits differ, and an NPU's rounding explains it; "" where nothing differs, or too much."""
    mean, largest = max(r.mean for r in results), max(r.largest for r in results)
    if board.info.runner != NPU or largest == 0 or not of_logits(mean, largest):
        return ""
    return (
        f"within the tolerance for an NPU's rounding: logits are {mean:.2f} apart on average ({MEAN_LSB:g} allowed) "
        f"and {largest} at most ({MOST_LSB} allowed)."
    )


# -- op by op ----------------------------------------------------------------------------------------------------------


def compare_ops(board: Board, pixels: np.ndarray, samples: Sequence[int], dump: Path | None) -> list[OpResult]:
    """Every op of the PLAN on these inputs, one input at a time, against tflite-runtime. Raises CannotTrace."""
    graph = read_graph(board.image.tflite)
    plan = compile_plan(graph)
    if list(plan.op_names) != board.image.meta.get("ops"):
        raise UserError("the image was made by another version of the converter: make it anew to compare op by op.")
    reference = TfliteInterpreter(board.image.tflite, keep=True)
    last = {tensor: op for op, tensor in enumerate(plan.outputs)}  # a tensor may be written in parts
    totals = [_Total(plan, graph, op) for op in sorted(last.values())]
    with cli.progress(len(samples) * len(totals), "op by op", "op") as bar:
        for sample in samples:
            board.write_samples(0, pixels[sample : sample + 1], np.zeros(1))
            board.select([0])
            reference.run(board.image.quantize_pixels(pixels[sample : sample + 1])[0])
            for total in totals:
                total.add(sample, board, reference)
                bar.update()
    results = [total.result() for total in totals]
    first = next((result for result in results if result.first), None)
    if dump is not None and first:
        _dump(dump, first, totals[results.index(first)].tensors)
    return results


class _Total:
    """What the comparisons of one op add up to. Kept of the first difference: all tensors of the op."""

    def __init__(self, plan: Plan, graph: Graph, number: int) -> None:
        self._number, self._place, self._graph = number, plan.op_names[number], graph
        self._out = graph.tensors[plan.outputs[number]]
        self._op = next(op for op in graph.ops if self._out.index in op.outputs)
        self._values = self._differing = self._largest = 0
        self._first: dict[str, Any] | None = None
        self.tensors: dict[str, np.ndarray] = {}

    def add(self, sample: int, board: Board, reference: TfliteInterpreter) -> None:
        expected = reference.tensor(self._out.index)
        found = board.trace(self._number, expected.size).reshape(expected.shape)
        distance = np.abs(found.astype(int) - expected)
        self._values += distance.size
        self._differing += int(np.count_nonzero(distance))
        self._largest = max(self._largest, int(distance.max()))
        if self._first is None and distance.any():
            at = tuple(int(i) for i in np.argwhere(distance)[0])
            inputs = {i: reference.tensor(t) for i, t in enumerate(self._op.inputs) if t >= 0}
            self.tensors = {f"input_{i}": values for i, values in inputs.items()}
            self.tensors |= {"board": found, "reference": expected}
            self._first = {
                "sample": sample,
                "at": list(at),
                "board": int(found[at]),
                "reference": int(expected[at]),
                "inputs": [self._describe(self._op.inputs[i], values) for i, values in inputs.items()],
            }

    def _describe(self, tensor: int, values: np.ndarray) -> dict[str, Any]:
        return {
            "name": self._graph.tensors[tensor].name,
            "dtype": values.dtype.name,
            "shape": list(values.shape),
            "min": int(values.min()),
            "max": int(values.max()),
            "mean": round(float(values.mean()), 3),
        }

    def result(self) -> OpResult:
        shape = list(self._out.shape)
        counts = (self._values, self._differing, self._largest)
        return OpResult(self._number, self._place, self._op.kind, self._out.index, shape, *counts, self._first)


def _dump(folder: Path, op: OpResult, tensors: dict[str, np.ndarray]) -> None:
    file = folder / f"op-{op.op}-input-{op.first['sample']}.npz"
    with disk_errors(file, "name another place with --dump."):
        folder.mkdir(exist_ok=True)
        np.savez(file, **tensors)
    click.echo(f"{file}: inputs, output and reference of {op.place}")


# -- for people --------------------------------------------------------------------------------------------------------


def _print_logits(results: Sequence[LogitsResult], accuracy: dict[str, float], board: Board) -> None:
    click.echo(f"  {'':<36}{'logits':>10}{'differ':>10}{'by most':>10}{'right' if accuracy else '':>10}".rstrip())
    rows = [(board_title(board.info.board), board.info.board, ("", "", ""))]
    rows += [(r.oracle, r.oracle, (f"{r.logits:,}", f"{r.differing:,}", r.largest)) for r in results]
    for title, name, numbers in rows:
        right = f"{100 * accuracy[name]:.2f} %" if accuracy else ""
        click.echo(f"  {title:<36}{numbers[0]:>10}{numbers[1]:>10}{numbers[2]:>10}{right:>10}".rstrip())
    if len(results) == 1:
        click.echo("  (TFLM is no oracle here: pip install tflite-micro)")


def _print_ops(ops: Sequence[OpResult]) -> None:
    click.echo(f"  {'op':<76}{'values':>10}{'differ':>10}{'by most':>10}")
    for op in ops:
        place = op.place if len(op.place) <= 75 else op.place[:72] + "..."
        click.echo(f"  {place:<76}{op.values:>10,}{op.differing:>10,}{op.largest:>10}")


def _print_first(op: OpResult, oracle: str) -> None:
    first = op.first
    click.echo(f"first differing op: {op.place}, number {op.op} of the PLAN; first on input {first['sample']}:")
    click.echo(f"  output {op.shape} at {first['at']}: the board has {first['board']}, {oracle} {first['reference']}")
    for i, t in enumerate(first["inputs"]):
        values = f"min {t['min']}, max {t['max']}, mean {t['mean']:g}"
        click.echo(f"  operand {i} {t['dtype']} {t['shape']} '{t['name']}': {values}")


def _verdict(board: Board, results: Sequence[LogitsResult], ops: Sequence[OpResult], first: OpResult | None) -> str:
    """What differs, in a sentence; "" when nothing does."""
    name = board_title(board.info.board)
    wrong = [r for r in results if r.differing]
    text = " and ".join(f"{r.oracle} in {r.differing:,} of {r.logits:,} logits" for r in wrong)
    if first:
        how = f"in {first.differing:,} of {first.values:,} values, by at most {first.largest}"
        logits = f"{name} differs from {text}" if wrong else f"{name} has equal logits"
        return f"{logits}, {'and' if wrong else 'but'} its first differing op is {first.place}, {how}."
    if not wrong:
        return ""
    if not results[0].differing:
        return f"{name} equals {results[0].oracle} but differs from {text}: the oracles disagree with each other."
    if ops:
        return f"{name} differs from {text}, though every op is equal on one input at a time: look at how batches run."
    if board.info.runner == NPU:
        mean, largest = max(r.mean for r in wrong), max(r.largest for r in wrong)
        return (
            f"{name} differs from {text}, by {mean:.2f} on average and {largest} at most, where an NPU's rounding "
            f"explains {MEAN_LSB:g} and {MOST_LSB}: the NPU sees other weights or inputs (layouts, caches; "
            "docs/neural_art.md)."
        )
    return f"{name} differs from {text}."


if __name__ == "__main__":
    main()
