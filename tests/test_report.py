"""The report: panels say what the metrics say, the page stands alone."""

import base64
import dataclasses
import io
import json
import re

import numpy as np
import pytest
import tiny_run
from matplotlib.figure import Figure
from PIL import Image

from pipeline import report
from pipeline.run import Config, Metrics, write_config

CONFIG = Config(
    image="artifacts/x/<x>.zimg", image_crc=1, samples_crc=1, board="native", port=None, memory=None,
    threads=None, link=None, kernels=None, dataset="eurosat",
    data_dir=None, shift="noise", severity=3, samples=40, budget=1000, steps=None, batch=8, estimator="two-sided", mu=2,
    lr=1.0, lr_schedule="constant", coupling="none", rounding="nearest", q_schedule="qscheduler", q=2, q_max=8,
    window=0, seed=7, eval_every=0, eval_images=0, keep="last",
)  # fmt: skip


def line(step, **changes):
    values = Metrics(
        step=step, forward_passes=32 * step, evaluation_passes=40, q=2 if step < 10 else 4, lr=1.0 - step / 100,
        loss=3.0 - step / 10, ema=1.0, gradient=None, changed=5, at_rail=0, saturated=0, weights_crc=9,
        accuracy=0.25 + step / 100 if step % 5 == 0 else None, evaluation_loss=None, seconds={"probe": 0.5},
    )  # fmt: skip
    return dataclasses.replace(values, **changes)


LINES = [line(step) for step in range(21)]


def drawn(panel, lines=LINES):
    axes = Figure().subplots()
    panel(axes, CONFIG, lines)
    return axes


def test_accuracy_panel():
    axes = drawn(report.accuracy_panel)
    before, now = axes.get_lines()
    assert before.get_label() == "before: 25.0 %" and now.get_label() == "last: 45.0 %"
    assert list(now.get_xdata()) == [0, 160, 320, 480, 640]
    assert np.allclose(now.get_ydata(), [25, 30, 35, 40, 45])
    assert axes.get_ylabel() == "correct, %"


def test_loss_panel():
    before, raw, mean = drawn(report.loss_panel).get_lines()
    assert before.get_label() == "before: 3.00" and len(raw.get_xdata()) == 20
    assert np.allclose(mean.get_ydata(), [3.0 - step / 10 for step in range(3, 19)])  # the middle of every five steps


def test_q_and_step_size_panels():
    q = drawn(report.q_panel).get_lines()[0]
    assert list(q.get_ydata()) == [2] * 10 + [4] * 11
    assert drawn(report.step_size_panel).get_lines()[0].get_ydata()[0] == 0.99


def test_panels_of_a_run_that_has_just_begun_or_was_not_evaluated():
    for lines in ([line(0)], [line(0), line(1)], [dataclasses.replace(x, accuracy=None) for x in LINES]):
        assert set(report.figures(CONFIG, lines)) == {"overview", "accuracy", "loss", "q", "step_size"}
    assert [t.get_text() for t in drawn(report.accuracy_panel, [line(1)]).texts] == ["not evaluated"]


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (500, "500"), (20_000, "20k"), (1_200_000, "1.2M")])
def test_axis_numbers(value, text):
    assert report._short(value, 0) == text


def test_command(tmp_path):
    write_config(tmp_path, CONFIG)
    assert "no measurements" in tiny_run.invoke(report.main, tmp_path).output
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(x.pack() for x in LINES))
    result = tiny_run.invoke(report.main, tmp_path)
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "report").iterdir()} == {
        "report.html", "overview.png", "accuracy.png", "loss.png", "q.png", "step_size.png",
    }  # fmt: skip
    html = (tmp_path / "report/report.html").read_text()
    assert "25.0 % → 45.0 %" in html and "640 to train" in html and "not finished" in html
    assert "&lt;x&gt;.zimg" in html
    assert not re.search(r"(src|href)=(?!\"data:)|https?:|@import|<script", html), (
        "the page must need nothing beside itself"
    )
    picture = base64.b64decode(re.search(r"base64,([^\"]+)", html).group(1))
    assert picture == (tmp_path / "report/overview.png").read_bytes()
    assert Image.open(io.BytesIO(picture)).size[0] > 1000


def test_kept_weights_and_all_passes_are_the_summarys(tmp_path):
    write_config(tmp_path, CONFIG)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(x.pack() for x in LINES))
    summary = {
        "steps": 20, "kept_step": 12, "accuracy_before": 0.25, "accuracy_after": 0.7, "forward_passes": 640,
        "evaluation_passes": 5000, "loss_before": 3.0, "loss_after": 0.5, "seconds": {"probe": 10.0, "evaluate": 7.0},
        "passes_per_second": 64.0, "board": "twin", "runner": "x", "weights_changed": 1, "weights": 2,
        "weights_crc": 0xABC, "memory": {},
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert tiny_run.invoke(report.main, tmp_path).exit_code == 0
    html = (tmp_path / "report/report.html").read_text()
    for words in ("25.0 % → 70.0 %", "step 12 of 20", "5,000 to evaluate", ">17.0<", "00000abc", "00000001"):
        assert words in html
    assert "None" not in html
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"steps": 10}))  # of before it was resumed
    assert tiny_run.invoke(report.main, tmp_path).exit_code == 0
    assert "not finished" in (tmp_path / "report/report.html").read_text()


def test_the_kept_step_is_marked():
    axes = Figure().subplots()
    report.mark_step(axes, LINES[12])
    assert list(axes.get_lines()[0].get_xdata()) == [384, 384] and "step 12" in axes.texts[0].get_text()


def test_no_run(tmp_path):
    result = tiny_run.invoke(report.main, tmp_path)
    assert result.exit_code == 1 and "no run directory" in result.output
