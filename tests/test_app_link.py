"""Frames and commands against the native board: damage, repetition, refusals, and its end."""

import os
import signal
import struct
import subprocess
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from app_library import SANITIZE, kernel_set
from cobs import cobs
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import random_pixels
from tiny_model import SHAPE, tiny_image

from converters import device_image
from converters.device_image import DeviceImage, Preprocessing
from converters.errors import UserError
from converters.tflite_model import add_headroom
from pipeline.targets import client, link
from pipeline.targets.boards import build_native, open_board
from pipeline.targets.link import Link, LinkClosed, Refused
from pipeline.targets.target import NEAREST, Update
from pipeline.targets.transports import ProcessTransport
from pipeline.targets.twin import Twin


class Raw:
    """A native board that is spoken to in bytes."""

    def __init__(self, *options: str):
        self.transport = ProcessTransport([str(build_native(sanitize=SANITIZE)), *options])
        self.link = Link(self.transport)

    def exchange(self, data: bytes, answers: int = 1) -> list[tuple[int, int, bytes]]:
        """Send bytes, return the frames that come back."""
        self.transport.write(data)
        received = b""
        while received.count(0) < answers:
            part = self.transport.read(10)
            assert part, "the board does not answer"
            received += part
        return [link.decode(frame) for frame in received.split(b"\0")[:-1]]

    def command(self, kind, payload=b""):
        return self.link.command(kind, payload, timeout=10)


@pytest.fixture
def raw():
    board = Raw()
    yield board
    board.transport.close()


@pytest.fixture
def board():
    board = open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)
    board.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
    board.select(range(8))
    yield board
    board.close()


@given(st.binary(max_size=1500), st.integers(0, 255))
def test_python_frames_survive_the_round_trip(payload, sequence):
    frame = link.encode(0x11, sequence, payload)
    assert frame.count(0) == 1
    assert link.decode(frame[:-1]) == (0x11, sequence, payload)


def test_board_decodes_any_bytes():
    """What LOAD_DATA carried has the CRC-32 that LOAD_BEGIN announced: "not an image", not "damaged"."""
    board = Raw()

    @settings(max_examples=100)
    @given(st.one_of(st.binary(min_size=4, max_size=1200), st.lists(st.sampled_from([0, 1, 255]), min_size=250)))
    def run(data):
        data = bytes(data)
        board.command(client.LOAD_BEGIN, struct.pack("<II", len(data), zlib.crc32(data)))
        board.command(client.LOAD_DATA, bytes(4) + data)
        with pytest.raises(Refused) as refused:
            board.command(client.LOAD_END)
        assert (refused.value.code, refused.value.a) == (6, int.from_bytes(data[:4], "little"))

    run()
    board.transport.close()


def test_damaged_frames_are_answered_and_not_executed(raw):
    good = link.encode(client.HELLO, 1, b"")
    assert raw.exchange(good)[0][0] == client.HELLO | link.REPLY
    for at in range(len(good) - 1):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            frames = [part for part in bytes(bad).split(b"\0") if part]  # a flip may make a zero, and so two frames
            assert raw.exchange(bytes(bad), len(frames)) == [(link.DAMAGED, 0, b"")] * len(frames)
    assert raw.exchange(good)[0][0] == client.HELLO | link.REPLY


def test_oversized_and_short_frames(raw):
    assert raw.exchange(cobs.encode(bytes(200_000)) + b"\0")[0][0] == link.DAMAGED
    assert raw.exchange(cobs.encode(b"abc") + b"\0")[0][0] == link.DAMAGED
    assert raw.exchange(b"\0\0\0" + link.encode(client.HELLO, 9, b""))[0][:2] == (client.HELLO | link.REPLY, 9)


def test_link_sends_again_what_was_damaged():
    class Flipping:
        """Damages every other transmission, in either direction."""

        reliable = False

        def __init__(self, inner):
            self.inner, self.writes, self.reads, self.close = inner, 0, 0, inner.close

        def write(self, data):
            self.writes += 1
            flipped = bytes([data[0] ^ 0x40]) + data[1:]
            self.inner.write(flipped if self.writes % 3 == 1 else data)

        def read(self, timeout):
            data = self.inner.read(timeout)
            self.reads += 1
            return bytes([data[0] ^ 0x40]) + data[1:] if self.reads % 4 == 2 else data

    transport = ProcessTransport([str(build_native(sanitize=SANITIZE))])
    flipping = Flipping(transport)
    damaged = client.Board(Link(flipping), tiny_image())
    clean = open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)
    for target in (damaged, clean):
        target.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
        target.select(range(8))
    for step in range(10):
        update = Update(NEAREST, 0, (step, step + 100), (70_000, -50_000))
        assert damaged.probe(step, 2) == clean.probe(step, 2)
        assert damaged.update(update) == clean.update(update)
    assert flipping.writes > 40, "nothing was sent again"
    damaged.close()
    clean.close()


def test_repeated_update_is_not_applied_twice(board):
    payload = struct.pack("<QIIQi", 0, 0, 1, 42, 1 << 17)
    frame = link.encode(client.UPDATE, 200, payload)
    raw = Raw.__new__(Raw)
    raw.transport = board._link._transport
    (first,) = raw.exchange(frame)
    assert first[0] == client.UPDATE | link.REPLY
    assert raw.exchange(frame) == [first]
    assert board.weights_crc() == int.from_bytes(first[2][8:12], "little")
    assert raw.exchange(link.encode(client.UPDATE, 201, payload))[0][2] != first[2]


@pytest.mark.parametrize(
    ("kind", "payload", "code"),
    [
        (0x77, b"", 1),
        (client.HELLO, b"x", 2),
        (client.LOAD_END, b"", 4),
        (client.LOAD_BEGIN, struct.pack("<II", 2**32 - 1, 0), 5),
        (client.PIXELS, struct.pack("<I", 2**32 - 5) + b"abcdef", 14),
        (client.PIXELS, struct.pack("<I", 2**32 - 6) + b"abcdef", 14),
        (client.LABELS, struct.pack("<IH", 0, 10), 15),
        (client.LABELS, struct.pack("<IH", 9, 0), 14),
        (client.SELECT, b"", 16),
        (client.SELECT, struct.pack("<I", 8), 14),
        (client.SELECT, bytes(4 * 1025), 17),
        (client.PROBE, struct.pack("<QII", 1, 0, 0), 18),
        (client.PROBE, struct.pack("<QII", 1, 5, 0), 18),
        (client.UPDATE, struct.pack("<QII", 0, 0, 0), 19),
        (client.UPDATE, struct.pack("<QII", 0, 0, 65) + bytes(12 * 65), 19),
        (client.UPDATE, struct.pack("<QIIQi", 0, 0, 1, 1, 2**24 + 1), 20),
        (client.UPDATE, struct.pack("<QIIQi", 0, 0, 1, 1, -(2**31)), 20),
        (client.UPDATE, struct.pack("<QIIQi", 0, 2, 1, 1, 1), 21),
        (client.UPDATE, struct.pack("<QIIQ", 0, 0, 1, 1), 2),
        (client.READ, struct.pack("<II", 0, 2**32 - 1), 22),
        (client.READ, struct.pack("<II", 2**32 - 1, 2), 22),
        (client.TRACE, struct.pack("<I", 0), 2),
        (client.TRACE, struct.pack("<II", 4, 0), 23),
        (client.TRACE, struct.pack("<II", 2**32 - 1, 0), 23),
        (client.TRACE, struct.pack("<II", 0, 11 * 9 * 4), 23),
        (client.TRACE, struct.pack("<II", 0, 2**32 - 1), 23),
        (client.PROFILE, b"", 2),
        (client.PROFILE, struct.pack("<II", 0, 0), 2),
        (client.SET_WEIGHT, struct.pack("<I", 0), 2),
        (client.SET_WEIGHT, struct.pack("<Ii", 2**32 - 1, 0), 31),
        (client.SET_WEIGHT, struct.pack("<Ii", 4176, 0), 31),
        (client.SET_WEIGHT, struct.pack("<Ii", 0, 124), 32),
        (client.SET_WEIGHT, struct.pack("<Ii", 0, -124), 32),
        (client.SET_WEIGHT, struct.pack("<Ii", 0, -(2**31)), 32),
    ],
)
def test_refusals_change_nothing(board, kind, payload, code):
    crc = board.weights_crc()
    with pytest.raises(Refused) as refused:
        board._link.command(kind, payload, timeout=10)
    assert refused.value.code == code
    sentence = client.SENTENCES[code](refused.value.a, refused.value.b)
    assert sentence.endswith(".") and len(sentence) > 30
    if kind != client.LOAD_BEGIN:  # which has dropped the image
        assert board.weights_crc() == crc


@pytest.mark.parametrize(
    "kind", [client.READ, client.PIXELS, client.LOGITS, client.PROBE, client.UPDATE, client.TRACE, client.PROFILE]
)
def test_nothing_works_without_an_image(raw, kind):
    with pytest.raises(Refused) as refused:
        raw.command(kind)
    assert refused.value.code == 3


def test_refusal_reaches_the_user_as_a_sentence(board):
    with pytest.raises(UserError, match="mu 5 is not between 1 and the image's headroom 4"):
        board.probe(1, 5)
    with pytest.raises(UserError, match=r"a weight of -124 is beyond the \+-123"):
        board.set_weight(0, -124)


@pytest.mark.parametrize("kernels", ["portable", "amx"])  # weights where they lie; packed ones where the machine can
def test_a_weight_that_is_set_is_what_forward_passes_see(kernels):
    image = DeviceImage.read(tiny_image())
    with kernel_set(kernels):
        board = open_board("native", image.raw, threads=2, sanitize=SANITIZE)
    with closing(board), closing(Twin(image, 1)) as twin:
        for target in (board, twin):
            target.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
            target.select(range(8))
        before = twin.logits()
        for index in (0, 1, 107, 108, 2000, image.weights - 1):  # the first and last of segments as well
            assert board.set_weight(index, 123) == twin.set_weight(index, 123)
            assert board.set_weight(index, -123) == twin.set_weight(index, -123) == 123
            np.testing.assert_array_equal(board.logits(), twin.logits())
            assert board.weights_crc() == twin.weights_crc()
        assert (twin.logits() != before).any()
        assert board.read_tflite() == twin.read_tflite()


def test_traces_stand_for_themselves(board):
    """Whatever was asked before, an answer is that of one whole forward pass up to the op."""
    sizes = [11 * 9 * 4] * 3 + [10]
    whole = [board.trace(op, size) for op, size in enumerate(sizes)]
    np.testing.assert_array_equal(whole[3], board.logits()[0])
    rng = np.random.default_rng(3)
    for _ in range(50):
        op = int(rng.integers(4))
        offset = int(rng.integers(sizes[op]))
        page = board._command(client.TRACE, struct.pack("<II", op, offset))
        assert page == whole[op][offset:].tobytes()
        if rng.random() < 0.3:
            board.loss()
    board.select([3])
    assert (board.trace(0, sizes[0]) != whole[0]).any()
    np.testing.assert_array_equal(board.trace(3, 10), board.logits()[0])
    board.update(Update(NEAREST, 0, (1,), (2**20,)))
    np.testing.assert_array_equal(board.trace(3, 10), board.logits()[0])


def test_a_trace_longer_than_an_answer_comes_in_pages(board, monkeypatch):
    whole, command = board.trace(1, 396), board._command
    monkeypatch.setattr(board, "_command", lambda *a, **options: command(*a, **options)[:100])
    np.testing.assert_array_equal(board.trace(1, 396), whole)


def test_reset_weights_goes_back_to_the_image(board):
    start = board.info.weights_crc
    assert board.update(Update(NEAREST, 0, (1,), (2**20,))).weights_crc != start
    assert board.reset_weights() == start
    assert board.read_tflite() == board.image.tflite


def test_too_little_memory_is_a_sentence():
    def open_with(mib):
        open_board("native", tiny_image(), threads=64, memory=mib, sanitize=SANITIZE).close()

    open_with(2)
    model = (Path(__file__).parent / "fixtures" / "resnet18_w8_32.tflite").read_bytes()
    big = device_image.build(add_headroom(model, 4), Preprocessing())
    with pytest.raises(UserError, match=r"does not fit the board native: activations .* or fewer --threads"):
        open_board("native", big, threads=64, memory=1, sanitize=SANITIZE)


def test_killed_board_is_a_sentence(board):
    os.kill(board._link._transport.pid, signal.SIGKILL)
    with pytest.raises(UserError, match=r"the board is gone: its link closed \(its process ended by signal 9\)"):
        board.loss()


def test_board_ends_when_its_link_closes(raw):
    raw.transport._process.stdin.close()
    assert raw.transport._process.wait(timeout=10) == 0
    with pytest.raises(LinkClosed):
        raw.transport.read(1)


def test_board_on_a_socket():
    server = subprocess.Popen(
        [str(build_native(sanitize=SANITIZE)), "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    port = server.stdout.readline().split()[-1]
    remote = open_board("native", tiny_image(), port=f"127.0.0.1:{port}")
    local = open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)
    for target in (remote, local):
        target.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
        target.select(range(8))
    assert remote.probe(3, 4) == local.probe(3, 4)
    local.close()
    remote.close()
    assert server.wait(timeout=10) == 0


def test_no_board_on_the_socket_is_a_sentence():
    with pytest.raises(UserError, match=r"no board answers at 127\.0\.0\.1:1 "):
        open_board("native", tiny_image(), port="127.0.0.1:1")
    with pytest.raises(UserError, match=r"no board answers at a\.\.b:80"):
        open_board("native", tiny_image(), port="a..b:80")
    with pytest.raises(UserError, match="is no address"):
        open_board("native", tiny_image(), port="COM3")


def test_missing_compiler_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UserError, match="a C compiler is missing"):
        build_native.__wrapped__()


@pytest.mark.skipif(bool(SANITIZE), reason="sanitizers add shadow memory")
def test_memory_rows_account_for_the_process():
    """The process holds what the rows say (its anonymous resident memory), but for libc and stacks."""
    model = (Path(__file__).parent / "fixtures" / "mobilenet_v2_035_64.tflite").read_bytes()
    board = open_board("native", device_image.build(add_headroom(model, 4), Preprocessing()), threads=2)
    board.write_samples(0, random_pixels(600, (64, 64, 3), 0), np.arange(600) % 10)
    board.select(range(64))
    board.probe(1, 2)
    board.update(Update(NEAREST, 0, tuple(range(64)), (1 << 15,) * 64))
    rows = board.refresh().memory
    status = Path(f"/proc/{board._link._transport.pid}/status").read_text()
    held = 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])
    board.close()
    # scratch is for the largest op; pages that this network does not touch are not held
    assert -rows["scratch"] - 64 * 1024 < held - sum(rows.values()) < 256 * 1024


def test_training_adds_less_than_4_kib_beside_its_batch():
    with kernel_set("portable"):  # what a microcontroller does: weights are probed where they are
        board = open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)
    memory = board.refresh().memory
    board.close()
    assert memory["packed"] + memory["training"] < 4096
    assert memory["batch"] == 4 * board.info.max_batch
    assert memory["weights"] == board.info.weights


def test_ticks_of_ops_come_in_pages(board, monkeypatch):
    for first in (0, 3, 4, 2**32 - 1):
        _, samples, ops, ticks = board._profile(first)
        assert ops == 4 and len(ticks) == max(0, ops - first) and (samples > 0) == (first < ops)
    command, asked = board._command, []

    def in_pages(kind, payload, **options):
        asked.append(int.from_bytes(payload, "little"))
        return command(kind, payload, **options)[: 48 + 8 * 3]

    monkeypatch.setattr(board, "_command", in_pages)
    assert len(board.profile_ops()[0]) == 4 and asked == [0, 3]


def test_phases_count_from_the_image_on(board):
    pixels = random_pixels(1, SHAPE, seed=1)
    board.reset_weights()
    for _ in range(2):
        board.write_samples(0, pixels, np.zeros(1))
        board.select([0])
        assert board.profile_phases() == dict.fromkeys(client.PHASES, 0)
        board.loss()
        looked = board.profile_phases()
        assert looked["forward"] > 0 and looked["loss"] > 0 and looked["update"] == looked["crc"] == 0
        assert board.profile_phases() == looked
        board.probe(5, 2)
        board.update(Update(NEAREST, 0, (1,), (2**20,)))
        assert all(ticks > looked[phase] for phase, ticks in board.profile_phases().items())
        board.reset_weights()
