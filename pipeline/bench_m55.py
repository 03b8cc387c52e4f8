"""Count the instructions of a forward pass on an emulated Cortex-M55: ``make bench-m55`` (boards/qemu_an547/README.md).

Without MODELS the trained networks of tests/fixtures. Counts are exact and repeat; they are instructions, not cycles.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline import cli
from pipeline.plan_ops import KINDS, image_of, plan_ops
from pipeline.targets.boards import ROOT, TICKS_PER_INSTRUCTION, build_an547

KERNELS = ("portable", "words", "mve")


@dataclass(frozen=True)
class Peer:
    """TFLM with CMSIS-NN on the same emulated core (docs/m55.md has how it was measured)."""

    instructions: int
    arena: int


PEERS = {"fm_rn": Peer(1_194_000, 22_292), "fm_mb": Peer(1_656_000, 86_244)}


@dataclass(frozen=True)
class Run:
    """What a firmware did: outputs int8 [probes, inputs, classes], instructions of each op and of a whole pass."""

    outputs: np.ndarray
    ops: np.ndarray
    instructions: int
    activations: int
    scratch: int


def emulate(firmware: Path, folder: Path) -> None:
    """Run a firmware to its end, with a clock that counts instructions; its files are in the folder."""
    if shutil.which("qemu-system-arm") is None:
        raise UserError("qemu-system-arm is missing, it emulates the Cortex-M55: apt-get install qemu-system-arm.")
    command = [
        "qemu-system-arm", "-M", "mps3-an547", "-display", "none", "-monitor", "none", "-serial", "none",
        "-icount", "shift=5,sleep=off", "-semihosting-config", "enable=on,target=native", "-kernel", str(firmware),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join((done.stdout + done.stderr).split())
        raise UserError(f"the emulated Cortex-M55 ended with exit code {done.returncode}: {words[:500]}")


def run(firmware: Path, image: bytes, inputs: np.ndarray, probes: Sequence[tuple[int, int]] = ((0, 0),)) -> Run:
    """Run int8 inputs [n, h, w, c] on the firmware in QEMU under each probe (seed, step)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "image.zimg").write_bytes(image)
        (folder / "inputs.bin").write_bytes(np.ascontiguousarray(inputs).tobytes())
        packed = b"".join(struct.pack("<Qii", seed, step, 0) for seed, step in probes)
        (folder / "probes.bin").write_bytes(struct.pack("<I", len(inputs)) + packed)
        emulate(firmware, folder)
        outputs = np.fromfile(folder / "outputs.bin", np.int8).reshape(len(probes), len(inputs), -1)
        report = (folder / "report.bin").read_bytes()
    ops, activations, scratch, _ = struct.unpack_from("<IIII", report)
    ticks = np.frombuffer(report, "<u8", ops + 1, 16)
    counts = np.rint(ticks / TICKS_PER_INSTRUCTION).astype(np.int64)
    return Run(outputs, counts[:-1], int(counts[-1]), activations, scratch)


def code_bytes(firmware: Path) -> int:
    """Code and constants of the whole bench firmware."""
    done = subprocess.run(["arm-none-eabi-size", str(firmware)], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[1].split()[0])


def random_inputs(image: DeviceImage, count: int) -> np.ndarray:
    shape = (count, image.input.height, image.input.width, image.input.channels)
    return image.quantize_pixels(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def table(model: str, image: DeviceImage, runs: dict[str, Run]) -> Iterable[str]:
    """Instructions by op kind and network for each set of kernels."""
    ops = plan_ops(image.tflite)
    kinds = sorted({op.kind for op in ops}, key=KINDS.index)
    peer = PEERS.get(model)
    yield f"{model}: instructions of a forward pass"
    yield f"  {'':<20}" + "".join(f"{name:>18}" for name in runs) + (f"{'TFLM+CMSIS-NN':>16}" if peer else "")
    for kind in kinds:
        rows = [i for i, op in enumerate(ops) if op.kind == kind]
        yield f"  {kind:<20}" + "".join(f"{r.ops[rows].sum():>18,}" for r in runs.values())
    total = "".join(f"{r.instructions:>18,}" for r in runs.values())
    yield f"  {'whole pass':<20}{total}" + (f"{peer.instructions:>16,}" if peer else "")
    memory = "".join(f"{f'{r.activations:,} + {r.scratch:,}':>18}" for r in runs.values())
    yield f"  {'arena + scratch, B':<20}{memory}" + (f"{peer.arena:>16,}" if peer else "")


def op_table(image: DeviceImage, runs: dict[str, Run]) -> Iterable[str]:
    for i, op in enumerate(plan_ops(image.tflite)):
        counts = "".join(f"{r.ops[i]:>12,}" for r in runs.values())
        yield f"  {i:>3} {op.kind:<18} {op.shape:<36}{counts}"


@cli.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--kernels", "sets", type=click.Choice(KERNELS), multiple=True, default=KERNELS, help="Only these sets.")
@click.option("--ops", is_flag=True, help="Every op by itself as well.")
def main(models: tuple[Path, ...], sets: tuple[str, ...], ops: bool) -> None:
    """Count the instructions of a forward pass of MODELS (.tflite) for each set of kernels."""
    models = models or tuple(sorted((ROOT / "tests" / "fixtures").glob("*_*.tflite")))
    firmware = {name: build_an547("m55_bench", name) for name in sets}
    for model in models:
        raw = image_of(model)
        image = DeviceImage.read(raw)
        runs = {name: run(elf, raw, random_inputs(image, 1)) for name, elf in firmware.items()}
        click.echo("\n".join(table(model.stem, image, runs)))
        if ops:
            click.echo("\n".join(op_table(image, runs)))
        click.echo()
    sizes = ", ".join(f"{name} {code_bytes(elf):,}" for name, elf in firmware.items())
    click.echo(f"code and constants of the bench firmware, bytes: {sizes}")


if __name__ == "__main__":
    main()
