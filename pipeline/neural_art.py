"""What `python -m pipeline.convert --npu neural_art` adds: the compiler's input, its run, the map of the weights."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from converters import device_image
from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.neural_art import profile, section
from converters.neural_art.checks import Findings, check
from converters.neural_art.compiled import Compiled, read_compiled
from converters.neural_art.solver import Ambiguous, WeightMap, probe_model, recover
from converters.tflite_model import read_graph
from pipeline import fitting
from pipeline.cli import count
from pipeline.stages import write
from pipeline.targets.memory import board_memory, requirements
from pipeline.targets.target import NPU

COMPILER = "stedgeai"
PROBE_SEED = 1
COMPILED = "compiled"  # where the compiler's output lies, beside what it was given
_NO_ID = "network of unknown identity (its source, network.c, is missing): no firmware will notice that it has another"


@dataclass(frozen=True)
class NpuSettings:
    """variant: the board, one of profile.VARIANTS. compiled, compiled_probe: directories that a compiler left.

    board: that the image has to fit, one of memory.NPU_BOARDS.
    """

    variant: str
    compiled: Path | None = None
    compiled_probe: Path | None = None
    any_version: bool = False
    board: str | None = None


def prepare(settings: NpuSettings, model: Path, train: str) -> Path:
    """Compile a network with headroom, or take it as compiled; write the map of its weights and the image for the NPU.

    model: the .tflite that convert wrote, beside its image for the int8 runner. Leaves beside them, in `neural_art`:
    NAME.nart, NAME.zimg, memory pools, profile, the probe, and what the compiler makes. Returns the file of the image.
    Raises UserError where there is no compiler, it fails, or the compiled network cannot be trained in place.
    """
    tflite, folder = model.read_bytes(), model.parent / "neural_art"
    probe = folder / f"{model.stem}.probe.tflite"
    write(probe, probe_model(tflite, PROBE_SEED))
    if settings.compiled is None:
        pools = profile.memory_pools(profile.parameter_bytes(read_graph(tflite)), settings.variant)
        write(folder / profile.MPOOL_FILE, profile.mpool_file(pools).encode())
        write(folder / profile.PROFILE_FILE, profile.profile_file().encode())
    compiled = read_compiled(settings.compiled or _compile(folder, f"../{model.name}", COMPILED))
    other = None
    if settings.compiled_probe is not None:
        other = read_compiled(settings.compiled_probe), probe.read_bytes()
    try:
        weight_map = recover(compiled, tflite, train, other)
    except Ambiguous:
        if other is not None or settings.compiled is not None:
            raise
        click.echo("the weights repeat, so their layouts are taken from a network of the same shape: compiling it")
        other = read_compiled(_compile(folder, probe.name, "compiled_probe")), probe.read_bytes()
        weight_map = recover(compiled, tflite, train, other)
    findings = check(compiled, weight_map, settings.any_version)
    npu = section.CompiledNetwork.of(compiled, weight_map)
    _say(compiled, weight_map, findings, npu)
    path = folder / f"{model.stem}.nart"
    write(path, section.pack(npu.section))
    image = path.with_suffix(".zimg")
    write(image, device_image.for_npu(model.with_suffix(".zimg").read_bytes(), npu))
    if settings.board is not None:
        _check_board(settings.board, image, weight_map.pools[0].size)
    return image


def firmware_command(settings: NpuSettings, folder: Path) -> str:
    """What builds the firmware for a network that `prepare` found in a folder, but for where ST's runtime is."""
    compiled = settings.compiled or folder / COMPILED
    command = [
        "python", "-m", "pipeline.firmware", "--board", "stm32n6", "--variant", settings.variant, "--kernels", "mve",
        "--npu", str(compiled), "--st-npu", ".../Npu",
    ]  # fmt: skip
    return shlex.join(command)


def _check_board(name: str, path: Path, weights: int) -> None:
    """weights: bytes of the pool that they were compiled into."""
    need = requirements(DeviceImage.read(path.read_bytes()), NPU)
    fitting.check_written(need, board_memory(name, NPU, weights), path)


def _compile(folder: Path, model: str, output: str) -> Path:
    command = profile.command(model, output)
    if shutil.which(COMPILER) is None:
        raise UserError(
            f"{COMPILER}, the compiler for the Neural-ART NPU, is not on the PATH: install ST Edge AI Core with its "
            f"Neural-ART add-on (st.com/st-edge-ai), or, on a machine that has it, run `{shlex.join(command)}` in "
            f"{folder}, where its input was written (it reads the model from the folder above), and repeat this "
            f"command with --compiled {folder / output}."
        )
    click.echo(f"compiling with {COMPILER}: {shlex.join(command)}")
    log = folder / f"{output}.log"
    with log.open("wb") as file:
        code = subprocess.run(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise UserError(
            f"{COMPILER} failed with exit code {code} ({said[-1].strip() if said else 'it said nothing'}): {log} has "
            "all that it said."
        )
    return folder / output


def _say(compiled: Compiled, weight_map: WeightMap, findings: Findings, npu: section.CompiledNetwork) -> None:
    """The table of all filters, what runs on the CPU, and warnings."""
    rows = [("filter", "buffer", "layout", "weights", "zeros")]
    for e in weight_map.entries:
        zeros = e.piece.pad + e.piece.structural_zeros
        rows.append(
            (
                weight_map.filters[e.segment].name,
                e.buffer.name,
                str(e.piece),
                f"{e.piece.live:,}",
                f"{zeros:,}{' structural' * (e.piece.structural_zeros > 0)}",
            )
        )
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo(f"  {'  '.join(cells)}  {row[3]:>9}  {row[4]}")
    live = sum(e.piece.live for e in weight_map.entries)
    zeros = sum(e.piece.size for e in weight_map.entries) - live
    pools = ", ".join(f"{p.name} at {p.address:#x}" for p in weight_map.pools)
    click.echo(
        f"{live:,} weights, each found once, in {count(len(weight_map.entries), 'buffer')} of pool {pools}; {zeros:,} "
        f"other bytes there are zero and have to stay so; compiled by STEdgeAI Core {compiled.version}"
    )
    nodes = ", ".join(findings.cpu)
    click.echo(f"on the CPU: {nodes}" if nodes else "on the CPU: nothing")
    used = f"; activations take {npu.activations:,} bytes of other pools" if npu.activations else ""
    click.echo(
        f"network {compiled.id:08x}: firmware with another one refuses the image{used}" if compiled.id else _NO_ID
    )
    for warning in findings.warnings:
        click.echo(f"warning: {warning}", err=True)
