"""Make the adapted weights again from the image and the seed log alone: python -m pipeline.replay RUN.

No data, no forward pass, no board: every step is its seeds and coefficients, applied by pipeline.zo.update. Before each
step the weights must have the checksum that the board reported when it took that step, so a finished replay proves that
board and replay had the same weights, bit for bit, all along.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline import cli
from pipeline.files import write_atomic
from pipeline.run import SeedLog, disk_errors, read_image, read_log, read_metrics
from pipeline.zo.update import apply_update


def replay(image: DeviceImage, log: SeedLog, steps: int) -> Iterator[np.ndarray]:
    """The weights, int8 [d], after steps 1, 2, ..., `steps`. Raises UserError where a checksum does not match."""
    weights = image.get_weights()
    for record in log.records[:steps]:
        _check(weights, record.crc, record.step)
        u = record.update(log.header)
        weights, _, _ = apply_update(weights, image.mu_max, u.rounding, u.rounding_seed, u.seeds, u.coefficients)
        yield weights
    if steps < len(log.records):
        _check(weights, log.records[steps].crc, steps)


def _check(weights: np.ndarray, expected: int, step: int) -> None:
    crc = zlib.crc32(weights.tobytes())
    if crc != expected:
        raise UserError(
            f"after step {step} the replayed weights are {crc:08x}, the run recorded {expected:08x}: the log was "
            "altered, or the board that trained did not compute what this program does."
        )


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(0), help="Stop after this many steps.  [default: the last]")
@click.option("--output", type=click.Path(path_type=Path), help="The .tflite to write.  [default: in RUN]")
def main(run: Path, step: int | None, output: Path | None) -> None:
    """Make the adapted weights of RUN again from its image and seed log alone, proved by checksum at every step."""
    log = read_log(run / "seeds.log")
    image = read_image(run, log.header.image_crc)
    last = len(log.records)
    output = output or run / ("replayed.tflite" if step is None else f"replayed-{step}.tflite")
    step = last if step is None else step
    if step > last:
        raise UserError(f"{run} has {cli.count(last, 'step')}: there is no step {step} yet.")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent}: make it, or name another --output.")
    weights = image.get_weights()
    with cli.progress(step, "replaying", "step", disable=step == 0) as bar:
        for weights in replay(image, log, step):  # noqa: B007
            bar.update()
    crc = zlib.crc32(weights.tobytes())
    reported = {line.step: line.weights_crc for line in read_metrics(run)}.get(step)
    if step == last and reported not in (None, crc):
        raise UserError(f"after step {step} the replayed weights are {crc:08x}, the board reported {reported:08x}.")
    with disk_errors(output, "the run itself is untouched; name another place with --output."):
        write_atomic(output, image.with_weights(weights))
    if last == 0:
        click.echo(f"{output}: {run} has no steps yet, so these are the image's own weights, CRC-32 {crc:08x}.")
        return
    proof = (
        "every checksum matches the board's" if step < last or reported is not None else "all but the last are proved"
    )
    click.echo(f"{output}: the weights after step {step} of {last}, CRC-32 {crc:08x}; {proof}.")


if __name__ == "__main__":
    main()
