"""How fast forward passes and probes are on this host, against what a user would do today: python -m pipeline.bench.

Every figure is the best of several rounds in which ours and the peers take turns; the ratios are what counts.
docs/speed.md explains the columns and holds a table from a real run.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from converters.errors import UserError
from pipeline import cli
from pipeline.files import write_atomic
from pipeline.models import ModelSpec

ROOT = Path(__file__).resolve().parents[1]
BATCH = 32
MU = 2
SPECS = {
    f"{kind}_{size}": ModelSpec(name, size, 3, 10, stem="small" if size <= 64 else "standard", **options)
    for size in (64, 96)
    for kind, name, options in (
        ("resnet18_w16", "resnet18", {"width": 16}),
        ("resnet18_w64", "resnet18", {"width": 64}),
        ("mobilenet_v2_035", "mobilenet_v2", {"alpha": 0.35}),
        ("mobilenet_v2_10", "mobilenet_v2", {"alpha": 1.0}),
    )
}


@dataclass
class Rates:
    """Images a second; 0 where it was not measured."""

    runner: float = 0.0
    xnnpack: float = 0.0
    litert: float = 0.0
    tflite_runtime: float = 0.0
    builtin_ref: float = 0.0
    tflm_wheel: float = 0.0


@dataclass
class Result:
    """One model's row. Probes are evaluations of the perturbed network on the batch, a second: two a direction."""

    model: str
    macs: int
    weights: int
    forward: Rates
    probe_runner: float
    probe_xnnpack: float
    xnnpack_ms: dict[str, float]
    share_of_peak: float
    equal_to_builtin_ref: bool

    @property
    def probe_ratio_vs_xnnpack(self) -> float:
        return self.probe_runner / self.probe_xnnpack

    @property
    def forward_ratio_vs_xnnpack(self) -> float:
        return self.forward.runner / self.forward.xnnpack

    @property
    def forward_ratio_vs_builtin_ref(self) -> float:
        return self.forward.runner / self.forward.builtin_ref

    def to_json(self) -> dict[str, Any]:
        ratios = ("probe_ratio_vs_xnnpack", "forward_ratio_vs_xnnpack", "forward_ratio_vs_builtin_ref")
        return asdict(self) | {name: getattr(self, name) for name in ratios}


def best_time(call: Callable[[], Any], *, least: float, most: int = 100) -> float:
    """Seconds of the fastest call among those that fit into `least` seconds (at least one)."""
    best, spent, calls = float("inf"), 0.0, 0
    while calls == 0 or (spent < least and calls < most):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        best, spent, calls = min(best, took), spent + took, calls + 1
    return best


class Peer:
    """An interpreter of LiteRT or tflite-runtime on a batch: all at once, or image by image where that is faster."""

    def __init__(self, interpreter_class: Any, tflite: bytes, batch: int, threads: int, resolver: Any):
        options = {} if resolver is None else {"experimental_op_resolver_type": resolver}
        self.interpreter = interpreter_class(model_content=tflite, num_threads=threads, **options)
        details = self.interpreter.get_input_details()[0]
        self.source = details["index"]
        if batch > 1:
            self.interpreter.resize_tensor_input(self.source, [batch, *details["shape"][1:]])
        self.interpreter.allocate_tensors()
        self.sink = self.interpreter.get_output_details()[0]["index"]
        self.batch = batch

    def __call__(self, images: np.ndarray) -> np.ndarray:
        outputs = []
        for first in range(0, len(images), self.batch):
            self.interpreter.set_tensor(self.source, images[first : first + self.batch])
            self.interpreter.invoke()
            outputs.append(self.interpreter.get_tensor(self.sink))
        return np.concatenate(outputs)


class XnnpackProbes:
    """Zeroth-order evaluations as one would write them today: numpy perturbs the weights inside the flatbuffer, a new
    interpreter (XNNPACK packs weights when it is made) evaluates the batch; once for each sign."""

    def __init__(self, tflite: bytes, images: np.ndarray, threads: int, batch: int):
        from converters.tflite_model import read_graph, read_weights, trainable_segments

        self.tflite, self.images, self.threads, self.batch = tflite, images, threads, batch
        self.segments = trainable_segments(read_graph(tflite))
        self.weights = read_weights(tflite, self.segments)
        self.ms = {"perturb": float("inf"), "create": float("inf"), "invoke": float("inf")}

    def __call__(self) -> None:
        from ai_edge_litert.interpreter import Interpreter

        from converters.tflite_model import write_weights

        for sign in (MU, -MU):
            marks = [time.perf_counter()]
            rng = np.random.default_rng(7)
            z = rng.integers(0, 2, self.weights.size, dtype=np.int8) * np.int8(2) - np.int8(1)
            probe = write_weights(self.tflite, self.segments, self.weights + np.int8(sign) * z)
            marks.append(time.perf_counter())
            peer = Peer(Interpreter, probe, self.batch, self.threads, None)
            marks.append(time.perf_counter())
            peer(self.images)
            marks.append(time.perf_counter())
            for part, took in zip(self.ms, np.diff(marks), strict=True):
                self.ms[part] = min(self.ms[part], 1000 * took)


def count_macs(tflite: bytes) -> int:
    """Multiply-accumulates of one forward pass."""
    from converters.tflite_model import read_graph

    graph, total = read_graph(tflite), 0
    for op in graph.ops:
        if op.kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            weights, out = graph.tensors[op.inputs[1]].shape, graph.tensors[op.outputs[0]].shape
            channels = weights[-1] if op.kind == "DEPTHWISE_CONV_2D" else weights[0]
            total += int(np.prod(out)) * int(np.prod(weights)) // channels
    return total


def measured_peak() -> dict[str, float]:
    """int8 GMAC/s of one core from registers, by instruction set; empty where there is no program that measures it."""
    from pipeline.targets.boards import build_native

    try:
        program = build_native("zo_peak")
    except UserError:  # no x86-64, or a compiler that does not know AMX: the board itself builds
        return {}
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: float(rate) for name, rate in (line.split() for line in printed.splitlines())}


def make_model(name: str, spec: ModelSpec, folder: Path) -> bytes:
    """The network with random weights, int8, with headroom; kept in the folder for the next time."""
    path = folder / f"{name}.tflite"
    if not path.exists():
        from converters.keras_env import keras
        from converters.keras_to_int8 import post_training
        from converters.tflite_model import add_headroom
        from pipeline.models import build

        keras.utils.set_random_seed(1)
        model = build(spec)
        images = np.random.default_rng(1).uniform(-1, 1, (8, spec.input_size, spec.input_size, 3)).astype(np.float32)
        write_atomic(path, add_headroom(post_training(model, images), 4))
    return path.read_bytes()


def bench_model(name: str, tflite: bytes, *, threads: int, rounds: int, peak: float) -> Result:
    from ai_edge_litert.interpreter import Interpreter as LiteRt
    from ai_edge_litert.interpreter import OpResolverType as LiteRtResolver
    from tflite_runtime.interpreter import Interpreter as TfliteRuntime
    from tflite_runtime.interpreter import OpResolverType

    from converters import device_image
    from converters.device_image import Preprocessing
    from pipeline.targets.boards import open_board

    try:
        from tflite_micro import runtime as tflm
    except ImportError:
        tflm = None

    image = device_image.build(tflite, Preprocessing())
    board = open_board("native", image, threads=threads)
    spec = board.image.input
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (BATCH, spec.height, spec.width, spec.channels), dtype=np.uint8)
    board.write_samples(0, pixels, np.zeros(BATCH, int))
    board.select(range(BATCH))
    images = np.stack([spec.lut[c][pixels[..., c]] for c in range(spec.channels)], axis=-1)

    best: dict[str, float] = {}
    peers: dict[str, tuple[Callable[[], Any], int]] = {  # a call, and the images it evaluates
        "runner": (board.loss, BATCH),
        "probe": (lambda: board.probe(7, MU), 2),
    }
    for batch in (1, BATCH):
        xnnpack = Peer(LiteRt, tflite, batch, threads, None)
        peers[f"xnnpack {batch}"] = (lambda p=xnnpack: p(images), BATCH)
        builtin = Peer(LiteRt, tflite, batch, threads, LiteRtResolver.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
        peers[f"litert {batch}"] = (lambda p=builtin: p(images), BATCH)
        runtime = Peer(TfliteRuntime, tflite, batch, threads, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
        peers[f"tflite_runtime {batch}"] = (lambda p=runtime: p(images), BATCH)
    today = [XnnpackProbes(tflite, images, threads, batch) for batch in (1, BATCH)]
    for i, probes in enumerate(today):
        peers[f"probe xnnpack {i}"] = (probes, 2)
    reference = Peer(TfliteRuntime, tflite, 1, threads, OpResolverType.BUILTIN_REF)
    peers["builtin_ref"] = (lambda: reference(images[:1]), 1)
    if tflm is not None:
        wheel = tflm.Interpreter.from_bytes(tflite, arena_size=64 << 20)

        def tflm_pass() -> None:
            wheel.set_input(images[:1], 0)
            wheel.invoke()

        peers["tflm_wheel"] = (tflm_pass, 1)

    with cli.progress(rounds * len(peers), name, "measurement") as bar:
        for _ in range(rounds):
            for key, (call, _) in peers.items():
                best[key] = min(best.get(key, float("inf")), best_time(call, least=0.15))
                bar.update()
    rate = {key: count / best[key] for key, (_, count) in peers.items()}
    equal = bool((board.logits()[:2] == reference(images[:2]).reshape(2, -1)).all())
    macs = count_macs(tflite)
    weights = board.info.weights
    board.close()

    def fastest(kind: str) -> float:
        return max(value for key, value in rate.items() if key.startswith(kind))

    forward = Rates(
        rate["runner"], fastest("xnnpack "), fastest("litert "), fastest("tflite_runtime "), rate["builtin_ref"],
        rate.get("tflm_wheel", 0.0),
    )  # fmt: skip
    slow = min(today, key=lambda t: sum(t.ms.values()))
    share = forward.runner * macs / (peak * 1e9 * threads) if peak else 0.0
    return Result(name, macs, weights, forward, rate["probe"], fastest("probe xnnpack"), slow.ms, share, equal)


def table(results: list[Result]) -> str:
    head = (
        f"{'model':20} {'MMAC':>6} | {'ours':>8} {'XNNPACK':>8} {'LiteRT':>7} {'tflite':>7} {'REF':>7} {'TFLM':>7}"
        f" {'/XNN':>5} {'/REF':>5} | {'probes':>7} {'XNNPACK':>8} {'ratio':>6} | {'peak':>5}"
    )
    lines = [head, "-" * len(head)]
    for r in results:
        f = r.forward
        lines.append(
            f"{r.model:20} {r.macs / 1e6:6.1f} | {f.runner:8.0f} {f.xnnpack:8.0f} {f.litert:7.0f} "
            f"{f.tflite_runtime:7.0f} {f.builtin_ref:7.1f} {f.tflm_wheel:7.1f} {r.forward_ratio_vs_xnnpack:5.1f} "
            f"{r.forward_ratio_vs_builtin_ref:5.0f} | {r.probe_runner:7.1f} {r.probe_xnnpack:8.1f} "
            f"{r.probe_ratio_vs_xnnpack:6.1f} | {100 * r.share_of_peak:4.1f}%"
        )
    return "\n".join(lines)


@cli.command()
@click.option("--models", help="Comma-separated beginnings of model names; all by default.")
@click.option("--threads", type=click.IntRange(1), default=1, help="Of our runner and of every peer that takes it.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="In each, ours and the peers take turns.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures there.")
def main(models: str | None, threads: int, rounds: int, json_path: Path | None) -> None:
    """Forward passes and probe evaluations a second, of our runner and of its peers, on this machine."""
    wanted = [m for m in (models or "").split(",") if m]
    chosen = {n: s for n, s in SPECS.items() if not wanted or any(n.startswith(m) for m in wanted)}
    if not chosen:
        raise UserError(f"no model begins with {models}: there are {', '.join(SPECS)}.")
    if json_path is not None and not json_path.parent.is_dir():
        raise UserError(f"the folder of {json_path} does not exist: make it first.")
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    tflites = {}
    for name, spec in chosen.items():
        if not (folder / f"{name}.tflite").exists():
            click.echo(f"making {spec} with random weights ...", err=True)
        tflites[name] = make_model(name, spec, folder)
    peaks = measured_peak()
    peak = max(peaks.values(), default=0.0)
    results = [bench_model(n, t, threads=threads, rounds=rounds, peak=peak) for n, t in tflites.items()]
    click.echo(f"{cpu_name()}, {cli.count(threads, 'thread')}, batch of {BATCH}; images a second (best of the rounds)")
    click.echo(f"int8 peak of a core, GMAC/s: {', '.join(f'{k} {v:.0f}' for k, v in peaks.items()) or 'not measured'}")
    click.echo(table(results))
    click.echo(
        "probes: evaluations a second of all weights perturbed on the batch; XNNPACK: numpy perturbs the flatbuffer, "
        "a new interpreter each."
    )
    if json_path is not None:
        report = {
            "machine": cpu_name(), "threads": threads, "batch": BATCH, "peak_gmacs": peaks,
            "models": [r.to_json() for r in results],
        }  # fmt: skip
        write_atomic(json_path, (json.dumps(report, indent=2) + "\n").encode())
    wrong = [r.model for r in results if not r.equal_to_builtin_ref]
    if wrong:
        raise UserError(f"the runner's outputs differ from BUILTIN_REF on {', '.join(wrong)}: report this with --json.")


def cpu_name() -> str:
    """The processor's name as its maker gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()} ({os.cpu_count()} cores)"


if __name__ == "__main__":
    main()
