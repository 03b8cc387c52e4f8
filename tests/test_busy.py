"""Signs of life: a board on a line that may lose an answer says while it works; a host waits on, and no longer."""

import random
import shutil
from contextlib import closing

import numpy as np
import pytest
import tiny_run
from app_library import SANITIZE
from oracles import random_pixels
from tiny_model import SHAPE, tiny_image

from converters.errors import UserError
from pipeline.targets import client, link
from pipeline.targets.boards import build_an547, build_native, open_board, start_an547
from pipeline.targets.client import Board
from pipeline.targets.link import BUSY, Link
from pipeline.targets.target import STOCHASTIC, Update
from pipeline.targets.transports import ProcessTransport


def busy(sequence: int) -> bytes:
    return link.encode(BUSY, sequence, b"")


class Clocked:
    """A line on which something may come at any time; nobody really waits. comes: (seconds from the last, bytes)."""

    reliable = False

    def __init__(self, monkeypatch, comes):
        self.now, self.sent, self._comes = 0.0, [], iter(comes)
        self._next = self._take()
        monkeypatch.setattr(link.time, "monotonic", lambda: self.now)

    def _take(self):
        after, data = next(self._comes, (float("inf"), b""))
        return self.now + after, data

    def write(self, data):
        self.sent.append(data)

    def read(self, timeout):
        at, data = self._next
        if at > self.now + timeout:
            self.now += timeout
            return b""
        self.now = at
        self._next = self._take()
        return data

    def close(self):
        pass


def test_a_busy_board_is_waited_for(monkeypatch):
    line = Clocked(monkeypatch, [*[(1.0, busy(1))] * 1000, (1.0, link.encode(0x81, 1, b"done"))])
    assert Link(line).command(1, timeout=2) == b"done"
    assert len(line.sent) == 1 and line.now == 1001


def test_a_board_that_is_silent_after_signs_of_life_is_given_up(monkeypatch):
    line = Clocked(monkeypatch, [(1.0, busy(1))] * 10)
    with pytest.raises(UserError, match="has not answered command 0x01 within 2 s"):
        Link(line).command(1, timeout=2)
    assert len(line.sent) == link.SILENT_ATTEMPTS and line.now == 10 + 2 * 2


def test_damage_between_signs_of_life_is_counted_anew(monkeypatch):
    spoilt = b"\x03\x7f\x7f\0"
    comes = [(1.0, spoilt if n % 10 == 9 else busy(1)) for n in range(200)]
    line = Clocked(monkeypatch, [*comes, (1.0, link.encode(0x81, 1, b"done"))])
    assert Link(line).command(1, timeout=2) == b"done"
    assert len(line.sent) == 1 + 20


def test_noise_is_no_sign_of_life(monkeypatch):
    line = Clocked(monkeypatch, [(0.5, b"\xf0\xf1")] * 1000)
    with pytest.raises(UserError, match="has not answered command 0x01 within 2 s"):
        Link(line).command(1, timeout=2)
    assert line.now == 2 * 2


def test_noise_without_an_end_is_not_kept(monkeypatch):
    line = Clocked(monkeypatch, [(0.0, b"\xf0" * 5000)] * 1000)
    host = Link(line)
    with pytest.raises(UserError, match="arrived damaged 10 times"):
        host.command(1, timeout=2)
    assert len(host._received) <= link.LONGEST_FRAME


def test_a_board_on_a_serial_line_has_the_time_of_its_watchdog():
    class Listening:
        reliable = False

        def __init__(self):
            self.waits, inner = [], ProcessTransport([str(build_native(sanitize=SANITIZE))])
            self.write, self.close, self._read = inner.write, inner.close, inner.read

        def read(self, timeout):
            self.waits.append(timeout)
            return self._read(timeout)

    line = Listening()
    with closing(Board(Link(line), tiny_image())) as board:
        line.waits.clear()
        board.weights_crc()
    assert 131 < max(line.waits) <= client.BUSY_TIMEOUT  # 131 s: the longest that an STM32N6's watchdog waits


class Talkative:
    """A native board that says that it is busy before it answers, over a line that damages what it likes."""

    reliable = False

    def __init__(self, seed):
        self._inner = ProcessTransport([str(build_native(sanitize=SANITIZE))])
        self._random, self.close = random.Random(seed), self._inner.close
        self.damaged = self.busy = 0

    def _damage(self, frames):
        """One frame in eight."""
        for frame in frames:
            if self._random.random() < 0.125:
                self.damaged += 1
                frame = bytes([frame[0] ^ 0x40]) + frame[1:]
            yield frame

    def write(self, data):
        self._inner.write(b"".join(self._damage([data])))

    def read(self, timeout):
        """As the frames of an answer, which a busy one may come before and, late, behind."""
        data = self._inner.read(timeout)
        while data and not data.endswith(b"\0"):
            data += self._inner.read(timeout)
        frames = []
        for frame in data.split(b"\0")[:-1]:
            sequence = (link.decode(frame) or (0, 0, b""))[1]
            signs = [busy(sequence)] * self._random.randrange(4)
            self.busy += len(signs)
            frames += [*signs, frame + b"\0", *signs[:1]]
        return b"".join(self._damage(frames))


@pytest.mark.parametrize("seed", range(3))
def test_signs_of_life_do_no_harm_on_a_bad_line(seed):
    """Whatever is damaged, is said twice or comes late: every command is executed once."""
    line = Talkative(seed)
    talkative = Board(Link(line), tiny_image())
    with closing(talkative), closing(open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)) as clean:
        for board in (talkative, clean):
            board.write_samples(0, random_pixels(8, SHAPE, 0), np.arange(8) % 10)
            board.select(range(8))
        for step in range(20):
            update = Update(STOCHASTIC, step, (step, step + 100), (70_000, -50_000))
            assert talkative.probe(step, 2) == clean.probe(step, 2)
            assert talkative.update(update) == clean.update(update)
            assert talkative.set_weight(step, 5) == clean.set_weight(step, 5)
    assert line.damaged > 20 and line.busy > 50


# -- The firmware's side: a real UART, a clock that runs -------------------------------------------------------------


class Tapped:
    """Everything that comes from a board, frame by frame. The first sign of life is damaged on its way."""

    reliable = False

    def __init__(self, inner):
        self._inner = inner
        self.write, self.close = inner.write, inner.close
        self.signs = []

    def read(self, timeout):
        data = self._inner.read(timeout)
        while data and not data.endswith(b"\0"):
            data += self._inner.read(timeout)
        frames = data.split(b"\0")[:-1]
        for n, frame in enumerate(frames):
            decoded = link.decode(frame) or (0,)
            if decoded[0] == BUSY:
                if not self.signs:
                    frames[n] = bytes([frame[0] ^ 0x40]) + frame[1:]
                self.signs.append(decoded[1:])
        return b"".join(frame + b"\0" for frame in frames)


@pytest.mark.skipif(
    not (shutil.which("qemu-system-arm") and shutil.which("arm-none-eabi-gcc")),
    reason="apt-get install qemu-system-arm gcc-arm-none-eabi libnewlib-arm-none-eabi",
)
@pytest.mark.parametrize("line", ["uart", "pipe"])
def test_the_firmware_says_that_it_works(line):
    image = tiny_run.make_image(tiny_run.networks()[0])
    inner = start_an547(build_an547("zo_board", "words"), link=line)
    tapped = Tapped(inner)
    with closing(Board(Link(tapped), image.raw)) as board, closing(open_board("native", image.raw)) as native:
        pixels = random_pixels(8, (32, 32, board.info.sample_bytes // 1024), 1)
        for step, batch in enumerate([16, 32] if line == "pipe" else [16, 32, 64, 128, 256]):
            for target in (board, native):
                for first in range(batch // 2 * (step > 0), batch, 8):
                    target.write_samples(first, pixels, np.arange(8) % 10)
                target.select(range(batch))
            assert board.probe(step, 2) == native.probe(step, 2)
            sequence = board._link._sequence
            update = Update(STOCHASTIC, step, (step,), (70_000,))
            assert board.update(update) == native.update(update)
            assert board.loss() == native.loss()
            if tapped.signs:  # it took more than a second
                break
        assert bool(tapped.signs) == (line != "pipe")
        assert all(payload == b"" for _, payload in tapped.signs)
        assert {n for n, _ in tapped.signs} <= {(sequence + k) % 256 for k in range(3)}
