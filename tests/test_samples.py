"""Training sets that a board has no room for: a batch is sent for every step, and the user is told what that costs."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from app_library import SANITIZE
from tiny_run import invoke, make_image, write_fashion_mnist

from pipeline import report, train_ondevice
from pipeline.run import read_log, read_metrics
from pipeline.samples import link_share
from pipeline.targets.boards import open_board
from pipeline.targets.transports import ProcessTransport

SETTINGS = "--samples 36 --eval-images 20 --batch 8 --q 2 --steps 2 --eval-every 0"
NETWORK = "mobilenet_v2_035_64"  # images of 12,288 bytes


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    write_fashion_mnist(folder / "data")
    (folder / "image.zimg").write_bytes(make_image(NETWORK).raw)
    return folder


def train(place: Path, run: str, *more: object):
    where = ("--image", place / "image.zimg", "--data-dir", place / "data", "--run", place / run)
    return invoke(train_ondevice.main, *SETTINGS.split(), *where, *more)


def small(place: Path, run: str, *more: object):
    """On a native board with 1 MiB for everything."""
    return train(place, run, "--board", "native", "--threads", 1, "--memory", 1, *more)


@pytest.fixture(scope="module")
def capacity(place) -> int:
    board = open_board("native", (place / "image.zimg").read_bytes(), threads=1, memory=1, sanitize=SANITIZE)
    with closing(board):
        return board.info.capacity


@pytest.fixture(scope="module")
def reference(place) -> Path:
    """Everything stays on the board."""
    result = train(place, "all", "--board", "native")
    assert result.exit_code == 0 and "note:" not in result.output, result.output
    return place / "all"


def test_batches_that_are_sent_give_the_same_run(place, reference, capacity):
    assert 8 < capacity < 36
    result = small(place, "sent")
    assert result.exit_code == 0, result.output
    room, size, seconds, rate, stay = re.search(
        r"room for (\d+) images, so every batch is sent when its step comes: ([\d,]+) bytes a step "
        r"\(about ([\d.]+) s at the link's ([\d,]+) bytes/s\); --samples (\d+) or fewer would stay there\.",
        result.output,
    ).groups()
    assert int(room) == capacity and size == f"{8 * (64 * 64 * 3 + 2):,}" and int(rate.replace(",", "")) > 1000
    assert (
        float(seconds) < 60
        and "evaluation images are sent for every evaluation: 245,800 bytes each time" in result.output
    )
    assert read_log(place / "sent" / "seeds.log") == read_log(reference / "seeds.log")
    lines = read_metrics(place / "sent")
    assert all(line.seconds["upload"] > 0 for line in lines)
    assert re.search(r"\n  link +\d+ % of them: images on their way", result.output)
    shares = json.loads((place / "sent" / "summary.json").read_text())["seconds"]
    assert 0 < link_share(shares) < 1
    assert invoke(report.main, place / "sent").exit_code == 0
    assert "% of the seconds, for images" in (place / "sent" / "report" / "report.html").read_text()
    stays = small(place, "stays", "--samples", stay)
    assert stays.exit_code == 0 and "every batch is sent" not in stays.output, stays.output
    more = small(place, "stays-not", "--samples", int(stay) + 1)
    assert more.exit_code == 0 and "every batch is sent" in more.output, more.output


def test_a_batch_that_does_not_fit_leaves_no_run(place, capacity):
    result = small(place, "none", "--batch", capacity + 1)
    assert result.exit_code == 1 and f"use --batch {capacity} or less" in result.output, result.output
    assert not (place / "none").exists()
    result = small(place, "largest", "--batch", capacity, "--steps", 1)
    assert result.exit_code == 0, result.output


def test_batches_that_go_in_frames(place, reference, monkeypatch):
    """As over a serial line, though without its speed: COBS, CRC, and an answer to each frame."""
    monkeypatch.setattr(ProcessTransport, "reliable", False)
    result = small(place, "frames")
    assert result.exit_code == 0 and "every batch is sent when its step comes: 98,320 bytes" in result.output
    assert read_log(place / "frames" / "seeds.log") == read_log(reference / "seeds.log")
