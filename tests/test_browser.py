"""Reports in a real browser, without a network: the page opens, its figures show."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image, ImageColor
from test_report import CONFIG, LINES

from pipeline import report, style, sweep_report
from pipeline.run import write_config

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium (apt-get install chromium)")


def pixels_of(colour: str, page: Path) -> int:
    """How many pixels of the page, as the browser draws it, have this colour."""
    picture = page.with_suffix(".screenshot.png")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,2000", "--proxy-server=127.0.0.1:9")
    command = [
        BROWSER,
        *options,
        f"--user-data-dir={page.parent / 'profile'}",
        f"--screenshot={picture}",
        page.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    drawn = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    return int((np.abs(drawn - ImageColor.getrgb(colour)).max(axis=-1) < 8).sum())


def make_run(folder: Path) -> dict[str, bytes]:
    write_config(folder, CONFIG)
    (folder / "metrics.jsonl").write_bytes(b"".join(line.pack() for line in LINES))
    return report.make(folder)


def make_sweep(folder: Path) -> dict[str, bytes]:
    (folder / "sweep.toml").write_text("[methods.ours]")
    rows = []
    for seed in (1, 2):
        run = folder / "runs" / str(seed)
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_bytes(b"".join(line.pack() for line in LINES))
        rows.append(
            {"task": "t", "method": "ours", "run": str(seed), "seed": seed, "accuracy_before": 0.2,
             "accuracy_after": 0.4 + 0.1 * seed, "forward_passes": 640}
        )  # fmt: skip
    pandas.DataFrame(rows).to_csv(folder / "table.csv")
    return sweep_report.make(folder)


@pytest.mark.parametrize("make", [make_run, make_sweep])
def test_figures_show(make, tmp_path):
    page = tmp_path / "report.html"
    html = make(tmp_path)["report.html"].decode()
    page.write_text(html)
    assert pixels_of(style.BLUE, page) > 300
    page.write_text(re.sub(r"base64,[^\"]+", "base64,", html))
    assert pixels_of(style.BLUE, page) == 0
