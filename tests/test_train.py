"""Training as a user runs it, on the twin and on the native board: exact, repeatable, resumable."""

import dataclasses
import json
import os
import random
import signal
import time
import zlib

import numpy as np
import pytest
import tiny_run

from converters.device_image import DeviceImage
from converters.errors import UserError
from converters.tflite_model import read_weights
from pipeline import replay, train_ondevice, trainer
from pipeline.run import read_config, read_log, read_metrics
from pipeline.samples import Samples
from pipeline.targets import twin as twin_module
from pipeline.targets.lockstep import Lockstep
from pipeline.targets.target import BatchLoss, Probe
from pipeline.targets.twin import Twin
from pipeline.zo import philox, update


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with images of all networks (NAME.zimg) and the data set (data)."""
    folder = tmp_path_factory.mktemp("train")
    tiny_run.write_fashion_mnist(folder / "data")
    for name in tiny_run.networks():
        (folder / f"{name}.zimg").write_bytes(tiny_run.make_image(name).raw)
    return folder


def train(place, run, *more, network=None):
    network = network or tiny_run.networks()[0]
    return tiny_run.invoke(train_ondevice.main, *arguments(place, run, *more, network=network))


def arguments(place, run, *more, network=None):
    network = network or tiny_run.networks()[0]
    image, data = place / f"{network}.zimg", place / "data"
    settings = tiny_run.SETTINGS.replace("--q 2 ", "") if "adazeta" in more else tiny_run.SETTINGS
    return ["--image", image, "--data-dir", data, "--run", run, *settings.split(), *more]


@pytest.fixture(scope="module")
def reference(place):
    """The uninterrupted run that others are compared with."""
    result = train(place, place / "reference")
    assert result.exit_code == 0, result.output
    return place / "reference"


def log_of(run):
    return (run / "seeds.log").read_bytes()


def model_crc(run, name="adapted.tflite"):
    image = DeviceImage.read((run / "image.zimg").read_bytes())
    return zlib.crc32(read_weights((run / name).read_bytes(), image.segments).tobytes())


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def test_a_run_leaves_everything_behind(reference):
    lines, summary, log = read_metrics(reference), summary_of(reference), read_log(reference / "seeds.log")
    assert [line.step for line in lines] == list(range(tiny_run.STEPS + 1))
    assert len(log.records) == tiny_run.STEPS
    assert [r.crc for r in log.records] == [line.weights_crc for line in lines[:-1]]
    assert model_crc(reference) == lines[-1].weights_crc == summary["weights_crc"]
    assert lines[-1].forward_passes == 4 * (4 * 2 * 2 * 8 + 2 * 2 * 4)  # four epochs, their last batch of 4 images
    # With two directions a step of less than half an LSB, which moves nothing, is no exception.
    assert sum(line.changed > 0 for line in lines[1:]) >= 5
    evaluated = [line.step for line in lines if line.accuracy is not None]
    assert evaluated == [0, 7, 14, 20]  # where 200 and 400 passes were crossed, and the end
    assert lines[-1].evaluation_passes == 36 + 20 * len(evaluated)
    assert summary["accuracy_before"] == lines[0].accuracy and summary["accuracy_after"] == lines[-1].accuracy
    assert summary["loss_after"] != summary["loss_before"]


def test_every_epoch_takes_every_sample_once(reference):
    config = read_config(reference)
    for epoch in range(3):
        batches = [trainer.batch_indices(config, 5 * epoch + i) for i in range(5)]
        assert [len(b) for b in batches] == [8, 8, 8, 8, 4] == [trainer.batch_size(config, i) for i in range(5)]
        assert sorted(i for b in batches for i in b) == list(range(36))


def test_same_seed_same_log_other_seed_other_log(place, reference):
    train(place, place / "same", "--threads", 2)
    assert log_of(place / "same") == log_of(reference)
    train(place, place / "other", "--seed", 2)
    assert log_of(place / "other") != log_of(reference)


def test_one_step_is_what_the_method_says(place, reference):
    """The first step, written out: epoch order, two-sided differences, normalised coefficients, nearest rounding."""
    config, image = read_config(reference), DeviceImage.read((reference / "image.zimg").read_bytes())
    images, _ = train_ondevice.load_splits(config, image)
    twin = Twin(image)
    twin.write_samples(0, images.images, images.labels)
    twin.select(philox.epoch_order(1, 0, 36)[:8])
    seeds = philox.direction_seeds(1, 0, 2)
    probes = [twin.probe(seed, 2) for seed in seeds]
    differences = [p.plus.loss - p.minus.loss for p in probes]
    mean = (differences[0] ** 2 + differences[1] ** 2) / 2
    expected = tuple(round(65536.0 * d / (2 * mean) ** 0.5) for d in differences)
    record = read_log(reference / "seeds.log").records[0]
    assert record.coefficients == expected and record.ema == mean
    assert record.loss == sum(p.plus.loss + p.minus.loss for p in probes)
    new, changed, _ = update.apply_update(image.get_weights(), image.mu_max, "nearest", 0, seeds, expected)
    line = read_metrics(reference)[1]
    assert (line.changed, line.weights_crc) == (changed, zlib.crc32(new.tobytes()))


def test_learning_rate_zero_changes_nothing(place):
    for rounding in ("nearest", "stochastic"):
        run = place / f"zero-{rounding}"
        assert train(place, run, "--lr", 0, "--rounding", rounding).exit_code == 0
        log = read_log(run / "seeds.log")
        assert {r.crc for r in log.records} == {log.header.weights_crc} == {model_crc(run)}
        assert {c for r in log.records for c in r.coefficients} == {0}


@pytest.mark.parametrize(
    "more",
    [
        "--estimator one-sided --rounding stochastic",
        "--q-schedule linear --q 1 --q-max 3 --window 4 --lr-schedule cosine",
        "--q-schedule adazeta --q-max 3 --window 4 --coupling sqrt --lr-schedule half",
        "--window 3 --q-max 4",
    ],
)
def test_every_way_to_train_replays(place, more):
    run = place / more.replace(" ", "")
    assert train(place, run, *more.split()).exit_code == 0
    result = tiny_run.invoke(replay.main, run)
    assert result.exit_code == 0, result.output
    assert (run / "replayed.tflite").read_bytes() == (run / "adapted.tflite").read_bytes()


def test_q_is_what_the_schedule_says(place):
    run = place / "q"
    train(place, run, "--window", 3, "--q-max", 4)
    losses, qs, expected, q, before = [], [], [], 2, np.inf
    for line in read_metrics(run)[1:]:
        qs.append(line.q)
        expected.append(q)
        samples = 2 * line.q * trainer.batch_size(read_config(run), line.step - 1)
        losses.append((line.loss * samples, samples))
        if line.step % 3 == 0:
            mean = sum(a for a, _ in losses[-3:]) / sum(b for _, b in losses[-3:])
            if mean >= before:
                q = min(2 * q, 4)
            before = mean
    assert qs == expected and 4 in qs


def test_a_step_that_does_not_fit_the_budget_is_dropped(place):
    options = list(arguments(place, place / "budget"))
    at = options.index("--steps")
    options[at : at + 2] = ["--budget", 100]  # three steps of 32 passes
    assert tiny_run.invoke(train_ondevice.main, *options).exit_code == 0
    assert read_metrics(place / "budget")[-1].forward_passes == 96
    options[at + 1] = 31
    result = tiny_run.invoke(train_ondevice.main, *options[:-2], "--run", place / "poor")
    assert result.exit_code == 2 and "first step, of 32 passes" in result.output


def test_replay_any_step(reference, tmp_path):
    crcs = [line.weights_crc for line in read_metrics(reference)]
    for step in (0, 1, 13, 20):
        output = tmp_path / f"{step}.tflite"
        result = tiny_run.invoke(replay.main, reference, "--step", step, "--output", output)
        assert result.exit_code == 0 and f"{crcs[step]:08x}" in result.output
    assert output.read_bytes() == (reference / "adapted.tflite").read_bytes()
    assert tiny_run.invoke(replay.main, reference, "--step", 21).exit_code == 1
    assert tiny_run.invoke(replay.main, tmp_path).exit_code == 1


def test_replay_keeps_steps_apart_and_wants_a_folder(reference, tmp_path):
    for name in ("image.zimg", "seeds.log"):
        (tmp_path / name).write_bytes((reference / name).read_bytes())
    assert tiny_run.invoke(replay.main, tmp_path, "--step", 3).exit_code == 0
    assert (tmp_path / "replayed-3.tflite").exists() and not (tmp_path / "replayed.tflite").exists()
    result = tiny_run.invoke(replay.main, tmp_path, "--output", tmp_path / "absent/x.tflite")
    assert result.exit_code == 1 and "there is no folder" in result.output and "replaying" not in result.output


def test_replay_of_no_steps(reference, tmp_path):
    (tmp_path / "image.zimg").write_bytes((reference / "image.zimg").read_bytes())
    (tmp_path / "seeds.log").write_bytes(read_log(reference / "seeds.log").header.pack())
    result = tiny_run.invoke(replay.main, tmp_path)
    assert result.exit_code == 0 and "no steps yet" in result.output


@pytest.mark.parametrize("port", ["nonsense", "127.0.0.1:1"])
def test_a_bad_port_leaves_no_run(place, reference, tmp_path, port):
    options = list(arguments(place, tmp_path / "run", "--board", "native", "--port", port))
    at = options.index("--threads")
    del options[at : at + 2]
    result = tiny_run.invoke(train_ondevice.main, *options)
    assert result.exit_code == 1 and port in result.output and "--resume" not in result.output
    assert not (tmp_path / "run").exists()
    for name in ("config.json", "image.zimg", "seeds.log", "metrics.jsonl"):
        (tmp_path / name).write_bytes((reference / name).read_bytes())
    result = tiny_run.invoke(train_ondevice.main, "--resume", tmp_path, "--board", "native", "--port", port)
    assert result.exit_code == 1 and f"--resume {tmp_path} --port HOST:PORT" in result.output


def test_replay_needs_nothing_but_image_and_log(reference, tmp_path):
    for name in ("image.zimg", "seeds.log"):
        (tmp_path / name).write_bytes((reference / name).read_bytes())
    assert tiny_run.invoke(replay.main, tmp_path).exit_code == 0
    assert (tmp_path / "replayed.tflite").read_bytes() == (reference / "adapted.tflite").read_bytes()


def test_replay_refuses_an_altered_log(reference, tmp_path):
    log = read_log(reference / "seeds.log")
    records = list(log.records)
    records[4] = dataclasses.replace(records[4], coefficients=(1 << 17, 0))
    (tmp_path / "image.zimg").write_bytes((reference / "image.zimg").read_bytes())
    (tmp_path / "seeds.log").write_bytes(log.header.pack() + b"".join(r.pack() for r in records))
    result = tiny_run.invoke(replay.main, tmp_path)
    assert result.exit_code == 1 and "after step 5" in result.output


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_a_random_moment_and_resumed(place, reference, seed):
    run, rng = place / f"killed-{seed}", random.Random(seed)
    process = tiny_run.popen("train_ondevice", *arguments(place, run))
    wait_for_records(run, rng.randrange(0, 15), process)
    time.sleep(rng.random() * 0.1)
    process.kill()
    process.communicate()
    kept = len(read_log(run / "seeds.log").records)
    assert kept < tiny_run.STEPS
    if (run / "config.json").exists():
        result = tiny_run.invoke(train_ondevice.main, "--resume", run)
    else:
        result = train(place, run)
    assert result.exit_code == 0, result.output
    assert log_of(run) == log_of(reference) and model_crc(run) == model_crc(reference)
    assert [line.step for line in read_metrics(run)] == list(range(tiny_run.STEPS + 1))
    assert [m.accuracy for m in read_metrics(run)] == [m.accuracy for m in read_metrics(reference)]


def wait_for_records(run, count, process):
    """Until the log of a training process holds this many steps."""
    while process.poll() is None:
        if (run / "seeds.log").exists() and len(read_log(run / "seeds.log").records) >= count:
            return
        time.sleep(0.005)
    pytest.fail(process.communicate()[0])


def test_every_cut_of_the_log_resumes_to_the_same_end(place, reference, tmp_path):
    """What a kill can leave: any whole number of steps, with or without a torn one; metrics behind by any number."""
    log = read_log(reference / "seeds.log")
    for records, torn, lines in ((0, 0, 0), (3, 11, 4), (11, 0, 2), (20, 0, 20), (20, 0, 21)):
        run = tmp_path / f"{records}-{torn}-{lines}"
        run.mkdir()
        for name in ("config.json", "image.zimg"):
            (run / name).write_bytes((reference / name).read_bytes())
        packed = [r.pack() for r in log.records]
        tail = packed[records][:torn] if torn else b""
        (run / "seeds.log").write_bytes(log.header.pack() + b"".join(packed[:records]) + tail)
        whole = (reference / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        (run / "metrics.jsonl").write_bytes(b"".join(whole[:lines]))
        result = tiny_run.invoke(train_ondevice.main, "--resume", run)
        assert result.exit_code == 0, result.output
        assert log_of(run) == log_of(reference) and model_crc(run) == model_crc(reference)
        assert [m.accuracy for m in read_metrics(run)] == [m.accuracy for m in read_metrics(reference)]


def test_resume_with_more(place, reference):
    run = place / "more"
    options = list(arguments(place, run))
    options[options.index("--steps") + 1] = 8
    assert tiny_run.invoke(train_ondevice.main, *options).exit_code == 0
    assert tiny_run.invoke(train_ondevice.main, "--resume", run, "--steps", 5).exit_code == 2
    assert tiny_run.invoke(train_ondevice.main, "--resume", run, "--steps", 20).exit_code == 0
    assert log_of(run) == log_of(reference)


def test_ctrl_c(place, reference):
    run = place / "ctrl-c"
    process = tiny_run.popen("train_ondevice", *arguments(place, run))
    wait_for_records(run, 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "Ctrl-C" in output and f"--resume {run}" in output and "Traceback" not in output
    assert tiny_run.invoke(train_ondevice.main, "--resume", run).exit_code == 0
    assert log_of(run) == log_of(reference)


def test_keep_best(place, reference, monkeypatch):
    """The best window is made to be the second of five."""
    losses = iter([3.0, 1.0, 2.0, 2.5, 2.7])
    add = trainer.Window.add

    def scripted(window, loss, samples):
        window, mean = add(window, loss, samples)
        return window, mean if mean is None else next(losses)

    monkeypatch.setattr(trainer.Window, "add", scripted)
    run = place / "best"
    assert train(place, run, "--q-schedule", "fixed", "--window", 4, "--keep", "best").exit_code == 0
    assert summary_of(run)["kept_step"] == 8
    assert model_crc(run) == read_metrics(run)[8].weights_crc
    log = read_log(run / "seeds.log")
    assert len(log.records) == 20


def test_guard_offers_the_best_weights(place, monkeypatch):
    """The on-device set is made to look worse at the end, the window that ends at step 12 the best."""
    whole, windows = iter([100, 200]), iter([3.0, 2.0, 1.0, 2.5, 2.7])
    add = trainer.Window.add

    def scripted(window, loss, samples):
        window, mean = add(window, loss, samples)
        return window, mean if mean is None else next(windows)

    monkeypatch.setattr(trainer.Window, "add", scripted)
    monkeypatch.setattr(Samples, "training_loss", lambda self: BatchLoss(36 * 65536 * next(whole), 0))
    run = place / "worse"
    result = train(place, run, "--q-schedule", "fixed", "--window", 4)
    assert "warning: the training loss ended above its start (200.000 > 100.000)" in result.output
    line = next(line for line in result.output.splitlines() if "pipeline.replay" in line)
    assert tiny_run.invoke(replay.main, *line.split("pipeline.replay ")[1].split()).exit_code == 0
    assert model_crc(run, "best.tflite") == read_metrics(run)[12].weights_crc


def test_too_small_a_step_is_an_error(place):
    result = train(place, place / "still", "--lr", 0.01, "--steps", 100)
    assert result.exit_code == 1 and "no weight changed any more" in result.output and "--lr" in result.output


def test_a_small_store_gives_the_same_run(place, reference, monkeypatch):
    """A batch at a time, and then the on-device set alone, instead of everything at once."""
    monkeypatch.setattr(twin_module, "MAX_BATCH", 10)
    for capacity in (10, 45, 60):
        monkeypatch.setattr(twin_module, "CAPACITY", capacity)
        run = place / f"store-{capacity}"
        result = train(place, run)
        assert result.exit_code == 0
        assert ("has room for 10 images, so every batch is sent" in result.output) == (capacity == 10)
        assert log_of(run) == log_of(reference)
        assert [m.accuracy for m in read_metrics(run)] == [m.accuracy for m in read_metrics(reference)]
        uploads = [line.seconds.get("upload") for line in read_metrics(run)[1:]]
        assert all(uploads) == (capacity == 10)
    assert "; --samples" not in result.output
    monkeypatch.setattr(twin_module, "CAPACITY", 30)
    assert "; --samples 22 or fewer would stay there" in train(place, place / "store-30").output
    monkeypatch.setattr(twin_module, "CAPACITY", 7)
    result = train(place, place / "store-7")
    assert result.exit_code == 1 and "--batch 7" in result.output


def test_samples_stay_or_go(place, reference):
    config, image = read_config(reference), DeviceImage.read((reference / "image.zimg").read_bytes())
    images, test = train_ondevice.load_splits(config, image)
    assert len(np.unique(images.labels[:10])) == 10  # any head is balanced
    samples = Samples(Twin(image), images, test, 8, trainer.Stopwatch())
    assert samples.train_stays and samples.test_stays


@pytest.mark.parametrize("network", tiny_run.networks())
def test_native_board_and_twin_are_equal_at_every_step(place, network):
    run = place / f"lockstep-{network}"
    result = train(place, run, "--board", "native", "--lockstep", 20, network=network)
    assert result.exit_code == 0, result.output
    assert "gave equal replies for 20 steps" in result.output
    alone = place / f"twin-{network}"
    train(place, alone, network=network)
    assert log_of(run) == log_of(alone)
    same = {"weights_crc", "changed", "at_rail", "loss", "accuracy", "ema", "gradient", "evaluation_loss"}
    for a, b in zip(read_metrics(run), read_metrics(alone), strict=True):
        assert {k: getattr(a, k) for k in same} == {k: getattr(b, k) for k in same}


class Faulty(Twin):
    """A twin that is wrong by one in the losses of its n-th step."""

    def probe(self, seed, mu):
        right = super().probe(seed, mu)
        return Probe(BatchLoss(right.plus.loss + 1, right.plus.correct), right.minus) if self.wrong else right

    def update(self, request):
        self.left -= 1
        return super().update(request)

    @property
    def wrong(self):
        return self.left <= 0


def test_lockstep_names_the_first_difference(place, monkeypatch):
    def lockstep(run, steps):
        board = Faulty(run.image)
        board.left = 4
        return Lockstep(board, Twin(run.image), steps)

    monkeypatch.setattr(train_ondevice, "_open", lockstep)
    result = train(place, place / "faulty", "--lockstep", 10)
    assert result.exit_code == 1
    assert "step 5, probe.plus.loss" in result.output
    result = train(place, place / "faulty-later", "--lockstep", 4)
    assert result.exit_code == 0, result.output


def test_the_board_dies_in_the_middle_of_a_step(place, reference, monkeypatch):
    run, opened = place / "dead", []
    original = train_ondevice.open_board

    def open_board(*a, **k):
        board = original(*a, **k)
        probe, calls = board.probe, iter(range(100))

        def killing(seed, mu):
            if next(calls) == 9:
                os.kill(opened[0], signal.SIGKILL)
            return probe(seed, mu)

        monkeypatch.setattr(board, "probe", killing)
        opened.append(board._link._transport.pid)
        return board

    monkeypatch.setattr(train_ondevice, "open_board", open_board)
    result = train(place, run, "--board", "native")
    assert result.exit_code == 1
    assert "the board is gone" in result.output and f"--resume {run}" in result.output
    monkeypatch.undo()
    assert tiny_run.invoke(train_ondevice.main, "--resume", run, "--board", "twin").exit_code == 0
    assert log_of(run) == log_of(reference)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--batch", 37], 2, "--samples"),
        (["--q", 8, "--q-max", 4], 2, "--q-max"),
        (["--q", 65], 2, "65"),
        (["--q-schedule", "adazeta", "--q", 8], 2, "--q-max only"),
        (["--q-schedule", "fixed", "--q-max", 16], 2, "--q only"),
        (["--board", "native", "--port", "localhost:1"], 2, "excludes --port"),
        (["--lr", -1], 2, "--lr"),
        (["--lr", "nan"], 2, "no finite number"),
        (["--data-dir", 300 * "x"], 1, "File name too long"),
        (["--budget", 100], 2, "exclude"),
        (["--severity", 6], 2, "6"),
        (["--mu", 5], 1, "--mu-max"),
        (["--board", "toaster"], 2, "toaster"),
        (["--samples", 500], 1, "fewer --samples"),
        (["--image", "absent.zimg"], 1, "pipeline.convert"),
    ],
)
def test_bad_options(place, more, code, words):
    result = train(place, place / "bad", *more)
    assert result.exit_code == code and words in result.output, result.output
    assert not (place / "bad").exists()


def test_options_that_the_run_settled(place, reference):
    for option in (["--lr", 2], ["--seed", 3], ["--image", "x.zimg"], ["--run", "y"], ["--estimator", "one-sided"]):
        result = tiny_run.invoke(train_ondevice.main, "--resume", reference, *option)
        assert result.exit_code == 2 and f"{option[0]} is settled" in result.output
    assert tiny_run.invoke(train_ondevice.main).exit_code == 2


def test_resume_sees_other_data(place, reference, tmp_path):
    tiny_run.write_fashion_mnist(tmp_path / "other", train=1200)
    result = tiny_run.invoke(train_ondevice.main, "--resume", reference, "--data-dir", tmp_path / "other")
    assert result.exit_code == 1 and "not those" in result.output


def test_resume_finds_a_board_that_computes_otherwise(place, reference, tmp_path, monkeypatch):
    def wrong(self, request):
        self._weights, changed, rail = self._weights ^ np.int8(1), 1, 0
        return twin_module.UpdateResult(changed, rail, self.weights_crc())

    for name in ("config.json", "image.zimg", "seeds.log", "metrics.jsonl"):
        (tmp_path / name).write_bytes((reference / name).read_bytes())
    monkeypatch.setattr(Twin, "update", wrong)
    result = tiny_run.invoke(train_ondevice.main, "--resume", tmp_path)
    assert result.exit_code == 1 and "before step 2" in result.output


def test_twin_refuses(place):
    image = tiny_run.make_image(tiny_run.networks()[0])
    twin = Twin(image)
    pixels, labels = np.zeros((4, 32, 32, image.input.channels), np.uint8), np.arange(4)
    with pytest.raises(UserError, match="label"):
        twin.write_samples(0, pixels, labels + 9)
    with pytest.raises(UserError, match="images of"):
        twin.write_samples(0, pixels[:, :16], labels)
    twin.write_samples(0, pixels, labels)
    for slots in ([], [1, 1], [4], range(twin_module.MAX_BATCH + 1)):
        with pytest.raises(UserError, match="batch"):
            twin.select(slots)
    twin.select([0, 2])
    for mu in (0, 5):
        with pytest.raises(UserError, match="mu"):
            twin.probe(1, mu)
    with pytest.raises(UserError, match="refuses"):
        twin.update(twin_module.Update("nearest", 0, (1,), (1 << 25,)))
