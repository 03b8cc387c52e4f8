"""Sweeps: grids from a config file, processes, resuming, one table; on a Ray cluster of this machine too."""

import csv
import re
import signal
import time
from pathlib import Path

import pandas
import pytest
import tiny_run

from converters.errors import UserError
from pipeline import report, sweep, sweep_report

CONFIG = """
samples = 16
eval-images = 10
batch = 8
steps = 3
q = 1
seed = [1, 2]
data-dir = "{data}"
image = "{image}"

[tasks.bright]
shift = "brightness"

[tasks.noise]
shift = "noise"
seed = 5

[methods.ours]

[methods.fixed]
q-schedule = "fixed"
lr = [0.5, 1.0]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    tiny_run.write_fashion_mnist(folder / "data")
    (folder / "tiny.zimg").write_bytes(tiny_run.make_image(tiny_run.networks()[0]).raw)
    return folder


@pytest.fixture
def config(files, tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(CONFIG.format(data=files / "data", image=files / "tiny.zimg"))
    return path


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_grid_is_every_method_on_every_task(config):
    cells = sweep.read_config(config)
    assert [cell.name for cell in cells] == [
        "bright/ours/seed=1", "bright/ours/seed=2",
        "bright/fixed/seed=1,lr=0.5", "bright/fixed/seed=1,lr=1.0",
        "bright/fixed/seed=2,lr=0.5", "bright/fixed/seed=2,lr=1.0",
        "noise/ours/run", "noise/fixed/lr=0.5", "noise/fixed/lr=1.0",
    ]  # fmt: skip
    assert (
        cells[3].settings["lr"] == 1.0 and cells[3].settings["seed"] == 1 and cells[3].settings["q-schedule"] == "fixed"
    )


def test_a_sweep_runs_is_reused_and_leaves_a_table(config, tmp_path):
    out = tmp_path / "out"
    planned = tiny_run.invoke(sweep.main, config, "--out", out, "--dry-run")
    assert planned.output.count("python -m pipeline.train_ondevice --run") == 9 and not out.exists()
    done = tiny_run.invoke(sweep.main, config, "--out", out, "--jobs", 2)
    assert done.exit_code == 0, done.output
    table = rows(out)
    assert len(table) == 9 and {row["task"] for row in table} == {"bright", "noise"}
    assert all(int(row["forward_passes"]) == 48 and row["accuracy_after"] for row in table)
    crc = {row["run"]: row["weights_crc"] for row in table}
    assert crc["bright/ours/seed=1"] == crc["bright/fixed/seed=1,lr=1.0"]  # one window is no time to raise q
    assert len(set(crc.values())) == 6
    assert len(pandas.read_parquet(out / "table.parquet")) == 9
    drawn = tiny_run.invoke(report.main, out)
    assert drawn.exit_code == 0, drawn.output
    assert {path.name for path in (out / "report").iterdir()} == {
        "report.html", "results.md", "methods.png", "course_bright.png", "course_noise.png",
    }  # fmt: skip
    html = (out / "report/report.html").read_text()
    assert html.count("data:image/png;base64,") == 3 and "[methods.fixed]" in html
    assert not re.search(r"(src|href)=(?!\"data:)|https?:|@import|<script", html)
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/**/seeds.log")}
    again = tiny_run.invoke(sweep.main, config, "--out", out)
    assert again.exit_code == 0 and "9 runs, 9 of them complete" in again.output
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/**/seeds.log")} == before
    assert rows(out) == table
    config.write_text(config.read_text().replace("steps = 3", "steps = 4"))
    other = tiny_run.invoke(sweep.main, config, "--out", out)
    assert other.exit_code == 1 and "was made with steps = 3, the sweep now says 4" in other.output


def test_ctrl_c_keeps_every_step_and_the_same_command_goes_on(config, tmp_path):
    out = tmp_path / "out"
    text = config.read_text().replace("steps = 3", "steps = 3000").replace("[1, 2]", "1")
    config.write_text(text)
    process = tiny_run.popen("sweep", config, "--out", out, "--jobs", 1)
    logs, end = [], time.monotonic() + 120
    while not any(log.stat().st_size > 500 for log in logs) and time.monotonic() < end:
        time.sleep(0.1)
        logs = list(out.glob("runs/**/seeds.log"))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Traceback" not in said, said
    assert len(logs) == 1 and not list(out.glob("runs/**/summary.json"))
    kept = logs[0].read_bytes()
    assert len(kept) > 500
    run = logs[0].parent
    (run / "config.json").write_text((run / "config.json").read_text().replace("3000", "60"))
    config.write_text(text.replace("steps = 3000", "steps = 60"))
    done = tiny_run.invoke(sweep.main, config, "--out", out)
    assert done.exit_code == 0, done.output
    assert logs[0].read_bytes().startswith(kept[: min(len(kept), logs[0].stat().st_size)])
    assert len(rows(out)) == 6


def test_a_run_that_fails_does_not_stop_the_others(config, tmp_path):
    config.write_text(config.read_text().replace("[tasks.noise]", '[tasks.noise]\nimage = "absent.zimg"'))
    done = tiny_run.invoke(sweep.main, config, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "3 of 9 runs failed. noise/ours/run: absent.zimg cannot be read" in done.output
    assert len(rows(tmp_path / "out")) == 6


def test_a_ray_cluster_gives_the_same_table(config, tmp_path):
    pytest.importorskip("ray")
    config.write_text(config.read_text().replace("[0.5, 1.0]", "1.0").replace("[1, 2]", "1"))
    for name, options in (("here", ()), ("ray", ("--ray", "local", "--jobs", 2))):
        done = tiny_run.invoke(sweep.main, config, "--out", tmp_path / name, *options)
        assert done.exit_code == 0, done.output
    here, ray = (
        [{k: v for k, v in r.items() if "second" not in k} for r in rows(tmp_path / n)] for n in ("here", "ray")
    )
    assert len(here) == 4 and here == ray


def made_up(**columns) -> pandas.DataFrame:
    rows = []
    for method, settings in columns.items():
        for (q, lr), accuracies in settings.items():
            for seed, accuracy in enumerate(accuracies, 1):
                row = {
                    "task": "t",
                    "method": method,
                    "run": f"{method}-{q}-{lr}-{seed}",
                    "q": q,
                    "lr": lr,
                    "seed": seed,
                }
                rows.append(row | {"accuracy_before": 0.2, "accuracy_after": accuracy, "forward_passes": 1000 * q})
    return pandas.DataFrame(rows)


def test_the_best_setting_stands_for_a_method_and_its_search_is_counted():
    frame = made_up(
        ours={(4, 1.0): (0.70, 0.72, 0.77)},
        fixed={(1, 1.0): (0.5, 0.6, 0.7), (8, 1.0): (0.7, 0.7, 0.7), (8, 0.5): (0.71, 0.71, 0.75)},
    )
    ours, fixed = sweep_report.results(frame)
    assert (ours.setting, ours.settings, ours.search) == ("", 1, 4000)
    assert (fixed.setting, fixed.settings) == ("q 8, lr 0.5", 3)
    assert fixed.passes == 8000 and fixed.search == 1000 + 8000 + 8000
    assert ours.mean == pytest.approx(73.0) and ours.deviation == pytest.approx(3.6056, abs=1e-4)
    d = sweep_report.difference(ours, fixed)  # of -1, 1, 2: mean 2/3, deviation 1.5275, t(0.975, 2) = 4.3027
    assert d.mean == pytest.approx(2 / 3) and d.half_width == pytest.approx(4.3027 * 1.5275 / 3**0.5, abs=1e-3)
    row = sweep_report.table([ours, fixed])[0]
    assert row[3:6] == ("73.0 ± 3.6", "3", "+0.7 ± 3.8 (fixed)")
    assert sweep_report.markdown([ours, fixed]).count("\n") == 4


def test_seeds_are_paired():
    ours, fixed = sweep_report.results(made_up(ours={(4, 1.0): (0.7, 0.8)}, fixed={(8, 1.0): (0.6,)}))
    d = sweep_report.difference(ours, fixed)
    assert d.seeds == 1 and d.mean == pytest.approx(10.0)
    frame = made_up(ours={(4, 1.0): (0.7,)}, fixed={(8, 1.0): (0.6,)})
    frame.loc[frame.method == "fixed", "seed"] = 9
    with pytest.raises(UserError, match="share no seed"):
        sweep_report.difference(*sweep_report.results(frame))


def test_a_sweep_without_results_has_no_report(config, tmp_path):
    (tmp_path / "sweep.toml").write_text("")
    done = tiny_run.invoke(report.main, tmp_path)
    assert done.exit_code == 1 and "no table of results yet" in done.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t + "\nx = = 1", "is no TOML"),
        (
            lambda t: t.replace("[tasks.bright]", "[task.bright]").replace("[tasks.noise]", "[task.noise]"),
            "no .tasks.NAME",
        ),
        (lambda t: "methods = 3\n" + t.partition("[methods")[0], "no .methods.NAME"),
        (lambda t: t.replace("q = 1", "qq = 1"), "qq is no option that a sweep can set"),
        (lambda t: t.replace("q = 1", 'resume = "x"'), "resume is no option"),
        (lambda t: t.replace("lr = [0.5, 1.0]", "lr = [0.5, -1]"), "lr = -1 in bright/fixed: -1.0 is not in the range"),
        (lambda t: t.replace("lr = [0.5, 1.0]", "lr = []"), "empty list"),
        (lambda t: t.replace("lr = [0.5, 1.0]", "lr = [1.0, 1.0]"), "twice"),
        (lambda t: t.replace('"noise"', '"fog"'), "shift = 'fog' in noise/ours"),
        (lambda t: t.replace("q = 1", "q = true"), "one plain value"),
    ],
)
def test_mistakes_in_a_config_are_one_sentence(config, change, says):
    config.write_text(change(config.read_text()))
    with pytest.raises(UserError, match=says):
        sweep.read_config(config)


def test_no_config_and_no_cluster(config, tmp_path):
    absent = tiny_run.invoke(sweep.main, tmp_path / "absent.toml")
    assert absent.exit_code == 1 and "cannot be read" in absent.output
