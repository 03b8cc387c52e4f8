"""Images for the NPU from the command line, on a native board with the simulated NPU that listens on a port.

Its arithmetic is TFLite's or, where a test says so, the NPU's as far as that is known.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from app_library import SANITIZE
from npu_builds import NETWORKS, NpuBuild, make_build, network, with_entries
from tiny_run import invoke, with_sections, write_fashion_mnist

from converters import device_image
from converters.device_image import DeviceImage
from converters.tflite_model import read_weights
from pipeline import profile, replay, report, train_ondevice, validate
from pipeline.run import read_log
from pipeline.targets.boards import build_native

SETTINGS = "--samples 36 --eval-images 20 --batch 16 --q 2 --steps 4 --eval-every 200"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("npu")
    write_fashion_mnist(folder / "data")
    return folder


@pytest.fixture(scope="module")
def builds(place) -> dict[str, NpuBuild]:
    """Of both networks; their images lie in place / NAME.zimg."""
    made = {name: make_build(place / name, network(name), "blocked") for name in NETWORKS}
    for name, build in made.items():
        write_image(place / f"{name}.zimg", build.image)
    return made


def write_image(path: Path, raw: bytes) -> None:
    """With the name of the data set, as convert writes it."""
    meta = json.loads(device_image._read_sections(raw, "the image")[1]["META"])
    path.write_bytes(with_sections(raw, META=json.dumps(meta | {"dataset": "fashion_mnist"}).encode()))


@contextmanager
def listening(build: NpuBuild, arithmetic: str = "") -> Iterator[str]:
    """HOST:PORT of a board that waits for one connection."""
    program = build_native("zo_board", "-DLL_ATON_STAND_IN=ON", sanitize=SANITIZE)
    names = {"LL_ATON_STAND_IN": str(build.network), "LL_ATON_STAND_IN_ARITHMETIC": arithmetic}
    command = [str(program), "--memory", "16", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, env=os.environ | {k: v for k, v in names.items() if v}, stdout=subprocess.PIPE, text=True
    )
    try:
        yield f"127.0.0.1:{int(process.stdout.readline().split()[-1])}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def train(place: Path, image: Path, port: str, run: str, *more: object):
    where = ("--image", image, "--port", port, "--data-dir", place / "data", "--run", place / run)
    return invoke(train_ondevice.main, *SETTINGS.split(), *where, *more)


def test_a_network_on_the_npu_from_beginning_to_end(place, builds):
    """Trained, resumed, replayed, reported: with TFLite's arithmetic, as the twin alone."""
    name = NETWORKS[0]
    build, image, run = builds[name], place / f"{name}.zimg", place / "whole"
    with listening(build) as port:
        result = train(place, image, port, "whole", "--lockstep", 4)
    assert result.exit_code == 0, result.output
    assert "had equal weights for 4 steps, and losses within the tolerance" in result.output
    assert "(the furthest apart used 0 % of it" in result.output and "(neural_art, 1 thread)" in result.output
    assert "memory: activations      32,768 bytes" in result.output
    with listening(build) as port:
        result = invoke(train_ondevice.main, "--resume", run, "--port", port, "--steps", 6)
    assert result.exit_code == 0, result.output
    twin = ("--board", "twin", "--threads", 1, "--image", image, "--data-dir", place / "data")
    result = invoke(train_ondevice.main, *SETTINGS.split(), *twin, "--steps", 6, "--run", place / "twin")
    assert result.exit_code == 0, result.output
    assert read_log(run / "seeds.log") == read_log(place / "twin" / "seeds.log")
    result = invoke(replay.main, run)
    assert result.exit_code == 0 and "every checksum matches the board's" in result.output, result.output
    assert (run / "replayed.tflite").read_bytes() == (run / "adapted.tflite").read_bytes()
    result = invoke(report.main, run)
    assert result.exit_code == 0 and "neural_art" in (run / "report" / "report.html").read_text()


def test_profile_has_phases_where_ops_cannot_be_told_apart(place, builds, tmp_path):
    with listening(builds[NETWORKS[0]]) as port:
        image = ("--image", place / f"{NETWORKS[0]}.zimg", "--port", port)
        result = invoke(profile.main, *image, "--q", 1, "--batch", 4, "--rounds", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "only runs whole networks" in result.output and "perturb" in result.output
    facts = json.loads((tmp_path / "profile.json").read_text())
    forward = next(phase for phase in facts["phases"] if phase["phase"] == "forward")
    assert facts["ops"] == [] and facts["forward"] == forward["each"] > 0
    assert (tmp_path / "profile.png").stat().st_size > 1000


# -- the NPU's rounding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_lockstep_with_an_npu_allows_for_its_rounding(name, place, builds):
    """The run sees the board's losses alone; its weights are proved all the same."""
    run = f"lockstep-{name}"
    with listening(builds[name], "npu") as port:
        result = train(place, place / f"{name}.zimg", port, run, "--lockstep", 4)
    assert result.exit_code == 0, result.output
    used = int(re.search(r"used (\d+) % of it; for 64 samples it is \d\.\d+ nats a sample", result.output)[1])
    assert 0 < used <= 100
    with listening(builds[name], "npu") as port:
        result = train(place, place / f"{name}.zimg", port, f"{run}-alone")
    assert result.exit_code == 0, result.output
    assert read_log(place / run / "seeds.log") == read_log(place / f"{run}-alone" / "seeds.log")
    assert invoke(replay.main, place / run).exit_code == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_validate_allows_for_the_rounding_of_an_npu(name, place, builds, tmp_path):
    for arithmetic, said in (("npu", "within the tolerance for an NPU's rounding: logits are"), ("", "equal: every")):
        with listening(builds[name], arithmetic) as port:
            where = ("--image", place / f"{name}.zimg", "--port", port, "--json", tmp_path / "found.json")
            result = invoke(validate.main, *where, "--samples", 16)
        assert result.exit_code == 0 and said in result.output, result.output
        facts = json.loads((tmp_path / "found.json").read_text())
        assert facts["equal"] == (not arithmetic) == (not facts["tolerated"])
        assert facts["tolerance"] == {"mean": 3.0, "largest": 24}


def wrong_layout(build: NpuBuild) -> bytes:
    """The image with a map whose largest pair of equally large, full buffers has changed places: still sound.

    The weights are put where they are wanted by that map, so that checksums agree; the NPU reads others.
    """
    entries = DeviceImage.read(build.image).npu.section.entries
    full = [n for n, e in enumerate(entries) if e.piece.size == e.piece.live]
    pairs = [(a, b) for a in full for b in full if a < b and entries[a].piece.size == entries[b].piece.size]
    a, b = max(pairs, key=lambda pair: entries[pair[0]].piece.size)
    offsets = {a: entries[b].offset, b: entries[a].offset}
    raw = with_entries(build, lambda n, e: replace(e, offset=offsets.get(n, e.offset)))
    blob, own = np.frombuffer(DeviceImage.read(build.image).npu.blob, np.int8).copy(), {}
    for n in (a, b):
        own[n] = blob[entries[n].offset : entries[n].offset + entries[n].piece.size].copy()
    for n, data in own.items():
        blob[offsets[n] : offsets[n] + data.size] = data
    return with_sections(raw, BLOB=blob.tobytes())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_wrong_layout_is_beyond_any_rounding(name, place, builds):
    """Checksums of the weights cannot tell: the board goes by the wrong map itself."""
    raw = wrong_layout(builds[name])
    image = DeviceImage.read(raw)
    assert np.array_equal(image.npu.get_weights(), read_weights(image.tflite, image.segments))
    path = place / f"{name}-wrong.zimg"
    write_image(path, raw)
    with listening(builds[name], "npu") as port:
        result = train(place, path, port, f"wrong-{name}", "--lockstep", 4)
    assert result.exit_code == 1 and re.search(r"lockstep: in step [12], (loss|probe.\w+) of", result.output), (
        result.output
    )
    assert "where an NPU's rounding explains" in result.output and "docs/neural_art.md" in result.output
    with listening(builds[name], "npu") as port:
        result = invoke(validate.main, "--image", path, "--port", port, "--samples", 16)
    assert result.exit_code == 1 and "where an NPU's rounding explains 3 and 24" in result.output, result.output


def test_losses_of_an_npu_and_of_elsewhere_do_not_mix(place, builds):
    name = NETWORKS[0]
    with listening(builds[name], "npu") as port:
        assert train(place, place / f"{name}.zimg", port, "own").exit_code == 0
    before = {p.name: p.read_bytes() for p in (place / "own").iterdir() if p.is_file()}
    result = invoke(train_ondevice.main, "--resume", place / "own", "--board", "twin", "--steps", 6)
    assert result.exit_code == 1 and "Resume with --board native" in result.output, result.output
    assert "pipeline.replay" in result.output
    assert before == {p.name: p.read_bytes() for p in (place / "own").iterdir() if p.is_file()}
    assert invoke(replay.main, place / "own").exit_code == 0
    (place / "own" / "metrics.jsonl").unlink()  # the log alone says that it has begun
    result = invoke(train_ondevice.main, "--resume", place / "own", "--board", "twin", "--steps", 6)
    assert result.exit_code == 1 and "Resume with --board native" in result.output, result.output
