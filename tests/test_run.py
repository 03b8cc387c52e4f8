"""The run directory: what is read back, what a torn or damaged file does, who may use it."""

import dataclasses
import errno
import json
import os
import subprocess
import sys

import pytest
import tiny_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from converters.errors import UserError
from pipeline import run as run_module
from pipeline.run import Config, Header, Metrics, Record, Run, read_config, read_image, read_log, read_metrics

HEADER = Header("stochastic", 2**64 - 3, 0x12345678, 0x9ABCDEF0)
RECORDS = [Record(i, 1000 + i, 5_000_000 + i, 0.1 * i, tuple(range(-i, i + 1))) for i in range(6)]


@pytest.fixture(scope="module")
def image():
    return tiny_run.make_image(tiny_run.networks()[0])


@pytest.fixture
def config(image):
    return Config(
        image="x.zimg", image_crc=image.crc, samples_crc=1, board="twin", port=None, memory=None,
        threads=None, link=None, kernels=None, dataset="fashion_mnist",
        data_dir=None, shift="none", severity=3, samples=40, budget=None, steps=20, batch=8, estimator="two-sided",
        mu=2, lr=1.0, lr_schedule="constant", coupling="none", rounding="nearest", q_schedule="fixed", q=2, q_max=2,
        window=0, seed=7, eval_every=0, eval_images=0, keep="last",
    )  # fmt: skip


def metrics(step):
    return Metrics(step, 32 * step, 0, 2, 1.0, 2.5, 1.0, None, 1, 0, 0, 99, None, None, {"probe": 0.5})


def write_log(path, records=RECORDS):
    path.write_bytes(HEADER.pack() + b"".join(r.pack() for r in records))


@given(
    st.sampled_from(["nearest", "stochastic"]),
    st.integers(0, 2**64 - 1),
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**64 - 1),
            st.floats(0, allow_infinity=False),
            st.lists(st.integers(-(2**24), 2**24), min_size=1, max_size=64),
        ),
        max_size=5,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_log_round_trip(tmp_path, rounding, seed, steps):
    header = Header(rounding, seed, 1, 2)
    records = [Record(i, crc, loss, ema, tuple(c)) for i, (crc, loss, ema, c) in enumerate(steps)]
    (tmp_path / "seeds.log").write_bytes(header.pack() + b"".join(r.pack() for r in records))
    log = read_log(tmp_path / "seeds.log")
    assert (log.header, list(log.records)) == (header, records)


def test_torn_tail_is_dropped_wherever_it_is_torn(tmp_path):
    path = tmp_path / "seeds.log"
    write_log(path)
    whole, last = path.read_bytes(), len(RECORDS[-1].pack())
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        log = read_log(path)
        assert list(log.records) == RECORDS[:-1] and log.size == len(whole) - last


def test_zeros_at_the_end_are_a_torn_tail(tmp_path):
    write_log(tmp_path / "seeds.log")
    with (tmp_path / "seeds.log").open("ab") as file:
        file.write(bytes(100))
    assert list(read_log(tmp_path / "seeds.log").records) == RECORDS


def test_damage_in_the_middle_is_not_taken_for_a_torn_tail(tmp_path):
    path = tmp_path / "seeds.log"
    write_log(path, [Record(i, 0, 0, 1.0, (1, 2)) for i in range(50)])
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged after step 0"):
        read_log(path)


@pytest.mark.parametrize("position", [0, 5, 10, 20, 27])
def test_damaged_header(tmp_path, position):
    path = tmp_path / "seeds.log"
    write_log(path)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(UserError, match="no seed log"):
        read_log(path)


def test_update_seeds_come_from_the_run_seed_and_the_step():
    updates = [r.update(HEADER) for r in RECORDS]
    assert len({seed for u in updates for seed in u.seeds}) == sum(len(r.coefficients) for r in RECORDS)
    assert len({u.rounding_seed for u in updates}) == len(RECORDS)
    assert updates[2] == RECORDS[2].update(dataclasses.replace(HEADER, image_crc=0))


def test_resume_continues_where_the_log_ends(tmp_path, image, config):
    run = Run.create(tmp_path / "r", config, image)
    run.add_metrics(metrics(0))
    for i in range(3):
        run.log(RECORDS[i])
        run.add_metrics(metrics(i + 1))
    run.close()
    with (tmp_path / "r/seeds.log").open("ab") as file:
        file.write(RECORDS[3].pack()[:-1])
    with (tmp_path / "r/metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "forw')
    again = Run.resume(tmp_path / "r")
    assert again.config == config and again.records == RECORDS[:3]
    assert again.metrics == [metrics(i) for i in range(4)]
    again.log(RECORDS[3])
    again.close()
    assert list(read_log(tmp_path / "r/seeds.log").records) == RECORDS[:4]


def test_metrics_beyond_the_log_are_cut(tmp_path, image, config):
    run = Run.create(tmp_path / "r", config, image)
    for i in range(3):
        run.add_metrics(metrics(i))
    run.close()
    Run.resume(tmp_path / "r").close()
    assert read_metrics(tmp_path / "r") == [metrics(0)]


def test_a_directory_that_is_no_run(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match="no run directory"):
            Run.resume(path)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"version": 1}', '{"version": 2}'])
def test_damaged_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(tmp_path)


def test_no_run_is_overwritten(tmp_path, image, config):
    Run.create(tmp_path / "r", config, image).close()
    with pytest.raises(UserError, match="--resume"):
        Run.create(tmp_path / "r", config, image)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").touch()
    with pytest.raises(UserError, match=r"thesis\.txt"):
        Run.create(tmp_path / "full", config, image)


def test_a_run_that_was_interrupted_while_it_was_made_can_be_made_again(tmp_path, image, config):
    Run.create(tmp_path / "r", config, image).close()
    for left in (["image.zimg", "seeds.log", "lock"], ["image.zimg", "lock"], ["lock"]):
        for file in (tmp_path / "r").iterdir():
            if file.name not in left:
                file.unlink()
        run = Run.create(tmp_path / "r", config, image)
        assert run.records == []
        run.close()


def test_a_run_whose_image_changed(tmp_path, image, config):
    Run.create(tmp_path / "r", config, image).close()
    file = tmp_path / "r/image.zimg"
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match="changed since the run was made"):
        Run.resume(tmp_path / "r")
    file.unlink()
    with pytest.raises(UserError, match="is gone"):
        read_image(tmp_path / "r", config.image_crc)


def test_two_processes_cannot_train_one_run(tmp_path, image, config):
    run = Run.create(tmp_path / "r", config, image)
    code = "import sys, pathlib; from pipeline.run import Run; Run.resume(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": str(tiny_run.ROOT)}
    other = [sys.executable, "-c", code, str(tmp_path / "r")]
    refused = subprocess.run(other, capture_output=True, text=True, env=environment)
    assert "being trained by another process" in refused.stderr
    run.close()
    assert subprocess.run(other, env=environment).returncode == 0


@pytest.mark.parametrize("what", ["log", "metrics", "derived"])
def test_disk_full(tmp_path, image, config, monkeypatch, what):
    run = Run.create(tmp_path / "r", config, image)
    run.log(RECORDS[0])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_all = run_module._write_all

    def half(file, data):
        write_all(file, data[: len(data) // 2])
        full()

    monkeypatch.setattr(run_module, "_write_all", half)
    monkeypatch.setattr(os, "fsync", full)
    action = {
        "log": lambda: run.log(RECORDS[1]),
        "metrics": lambda: run.add_metrics(metrics(0)),
        "derived": lambda: run.write("adapted.tflite", b"x" * 1000),
    }[what]
    with pytest.raises(UserError, match=r"the disk is full.*--resume"):
        action()
    monkeypatch.undo()
    run.close()
    again = Run.resume(tmp_path / "r")
    assert again.records == RECORDS[:1] and again.metrics == []
    assert not (tmp_path / "r/adapted.tflite").exists()
    again.close()


def test_config_is_readable(tmp_path, image, config):
    Run.create(tmp_path / "r", config, image).close()
    assert json.loads((tmp_path / "r/config.json").read_text()) == {"version": 1} | dataclasses.asdict(config)
