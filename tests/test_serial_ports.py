"""--board stm32n6 on the host: which port, what stands in the way, and what the user is told when the board is none, or
is gone. A native board behind a pseudo-terminal stands for the one on the serial line."""

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest
import serial
import tiny_run
from app_library import SANITIZE
from serial.tools import list_ports
from serial.tools.list_ports_common import ListPortInfo
from tiny_model import tiny_image

from pipeline import train_ondevice
from pipeline.targets import client, link
from pipeline.targets.boards import build_native
from pipeline.targets.transports import ProcessTransport

NETWORK = tiny_run.networks()[0]


def port(device: str, vid=None, pid=None, number=None, product=None) -> ListPortInfo:
    info = ListPortInfo(device, skip_link_detection=True)
    info.vid, info.pid, info.serial_number, info.product = vid, pid, number, product
    return info


ST_LINK = ("/dev/ttyACM0", 0x0483, 0x3754, "0041003230335107", "STLINK-V3")
OTHER_ST_LINK = ("/dev/ttyACM1", 0x0483, 0x374B, "066DFF5150556578", "STM32 STLink")
ADAPTER = ("/dev/ttyUSB0", 0x0403, 0x6001, "A50285BI", "FT232R USB UART")
OWN_PORT = ("/dev/ttyACM7", 0x0483, 0x5740, "2064", "STM32 Virtual ComPort")


@pytest.fixture
def connected(monkeypatch):
    """Call it with what is connected to the machine."""
    return lambda *ports: monkeypatch.setattr(list_ports, "comports", lambda: [port(*each) for each in ports])


@pytest.fixture
def image_file(tmp_path):
    path = tmp_path / "tiny.zimg"
    path.write_bytes(tiny_image())
    return path


def run(image_file, *options):
    return tiny_run.invoke(train_ondevice.main, "--selftest", "--board", "stm32n6", "--image", image_file, *options)


def assert_sentence(result, *parts):
    """One sentence, exit code 1, no traceback."""
    assert result.exit_code == 1, result.output
    error = result.output.splitlines()[-1]
    assert error.startswith("error: ") and "Traceback" not in result.output
    for part in parts:
        assert part in error, error


# -- Which port ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [(), (ADAPTER, OWN_PORT)])
@pytest.mark.parametrize("st_link", [ST_LINK, OTHER_ST_LINK])
def test_the_only_st_link_is_taken(image_file, connected, monkeypatch, others, st_link):
    opened = []

    def open_port(device, baud, **_):
        opened.append((device, baud))
        raise OSError(errno.ENOENT, "in this test")

    connected(*others, st_link)
    monkeypatch.setattr(serial, "Serial", open_port)
    for options in ((), ("--port", "@115200")):
        assert run(image_file, *options).exit_code == 1
    assert opened == [(st_link[0], 921_600), (st_link[0], 115_200)]


def test_no_board(image_file, connected):
    connected()
    assert_sentence(run(image_file), "no ST-LINK is connected", "plug the USB cable")
    connected(ADAPTER, OWN_PORT)
    assert_sentence(run(image_file), "/dev/ttyUSB0: FT232R USB UART, serial number A50285BI", "/dev/ttyACM7", "--port")


def test_two_boards(image_file, connected):
    connected(OTHER_ST_LINK, ADAPTER, ST_LINK)
    result = run(image_file)
    assert_sentence(result, "/dev/ttyACM0: STLINK-V3, serial number 0041003230335107", "--port /dev/ttyACM0")
    assert_sentence(result, "/dev/ttyACM1: STM32 STLink, serial number 066DFF5150556578")
    assert "ttyUSB0" not in result.output


def test_a_port_that_is_not_there(image_file, connected, tmp_path):
    connected(ADAPTER)
    assert_sentence(run(image_file, "--port", tmp_path / "ttyACM9"), "there is no serial port", "there is /dev/ttyUSB0")
    connected()
    assert_sentence(run(image_file, "--port", tmp_path / "ttyACM9"), "nor any other")


def test_a_port_that_may_not_be_used(image_file, monkeypatch):
    """As it is for a user who is not root."""

    def refuse(*_, **__):
        raise serial.SerialException(errno.EACCES, "could not open port /dev/ttyACM0: Permission denied")

    monkeypatch.setattr(serial, "Serial", refuse)
    monkeypatch.setenv("LOGNAME", "ada")
    assert_sentence(run(image_file, "--port", "/dev/ttyACM0"), "sudo usermod -aG dialout ada", "log out")


def test_a_port_that_another_program_holds(image_file):
    with terminal() as (_, name):
        holder = os.open(name, os.O_RDWR | os.O_NOCTTY)
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert_sentence(run(image_file, "--port", name), "another program holds the serial port", f"fuser -v {name}")
        os.close(holder)


def test_what_is_no_serial_port(image_file):
    assert_sentence(run(image_file, "--port", image_file), "cannot be opened as a serial port")
    for rate in ("fast", "0", "7", "99999999999", "²"):
        assert_sentence(run(image_file, "--port", f"/dev/null@{rate}"), f"{rate} is no baud rate")


# -- What is at the other end ----------------------------------------------------------------------------------------


@contextmanager
def terminal() -> Iterator[tuple[int, str]]:
    """Our end of a pseudo-terminal, and the name of the other."""
    ours, theirs = os.openpty()
    try:
        yield ours, os.ttyname(theirs)
    finally:
        for end in (ours, theirs):
            with suppress(OSError):
                os.close(end)


@contextmanager
def answering(answer) -> Iterator[str]:
    """A serial port where `answer` gets what is sent (b"" now and then) and says what comes back; None: unplugged."""
    stop = threading.Event()
    with terminal() as (ours, name):
        os.set_blocking(ours, False)

        def serve():
            while not stop.wait(0.002):
                data = b""
                with suppress(BlockingIOError):
                    data = os.read(ours, 4096)
                back = answer(data)
                if back is None:
                    os.close(ours)
                    return
                while back:
                    with suppress(BlockingIOError):
                        back = back[os.write(ours, back) :]

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield name
        finally:
            stop.set()
            thread.join()


class NativeBehind:
    """A native board at the other end. Told what is sent, it may be reset or unplugged."""

    def __init__(self, reset_at=None, unplug_at=None):
        self._reset_at, self._unplug_at = reset_at, unplug_at
        self._sent = b""
        self._start()

    def _start(self):
        self._board = ProcessTransport([str(build_native(sanitize=SANITIZE)), "--threads", "1", "--memory", "64"])

    def __call__(self, data):
        *frames, self._sent = (self._sent + data).split(b"\0")
        for frame in frames:
            kind = (link.decode(frame) or (None,))[0]
            if kind is not None and kind == self._unplug_at:
                return None
            if kind is not None and kind == self._reset_at:
                self._reset_at = None
                self._board.close()
                self._start()
            self._board.write(frame + b"\0")
        return self._board.read(0)

    def close(self):
        self._board.close()


def test_a_board_behind_a_serial_port_passes_the_selftest(image_file):
    with closing(NativeBehind()) as board, answering(board) as name:
        result = run(image_file, "--port", name)
    assert result.exit_code == 0 and "The board does what the host believes." in result.output


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(client, "QUICK_TIMEOUT", 0.2)


STRANGERS = {
    "text": (lambda data: b"Hello from the demo, 23.5 degrees\r\n", "prints text ('Hello from the demo"),
    "lines with zeros": (lambda data: b"tick 17\0" if data else b"", "prints text ('tick 17')"),
    "an echo": (lambda data: data, "sends back what it is sent"),
    "nothing": (lambda data: b"", "has not answered command 0x01 within 0.2 s"),
    "another rate": (lambda data: bytes([0x80 | (len(data) & 7), 0xF8, 0xFE, 0]) if data else b"", "arrived damaged"),
    "version 2": (
        lambda data: link.encode(client.HELLO | link.REPLY, 1, struct.pack("<H", 2) + bytes(166)) if data else b"",
        "speaks protocol version 2, this program version 3: build and flash",
    ),
}


@pytest.mark.parametrize(("answer", "words"), STRANGERS.values(), ids=STRANGERS)
def test_another_firmware(image_file, impatient, answer, words):
    with answering(answer) as name:
        assert_sentence(run(image_file, "--port", name), words)


# -- In the middle of a run ------------------------------------------------------------------------------------------


@pytest.fixture
def training(tmp_path):
    """The arguments of a run of three steps."""
    tiny_run.write_fashion_mnist(tmp_path / "data")
    (tmp_path / "a.zimg").write_bytes(tiny_run.make_image(NETWORK).raw)
    places = ("--image", tmp_path / "a.zimg", "--data-dir", tmp_path / "data", "--run", tmp_path / "run")
    settings = "--samples 8 --batch 4 --q 2 --steps 3 --eval-images 0 --board stm32n6 --port"
    return [*places, *settings.split()]


def test_a_reset_board_says_so_and_the_run_goes_on(training, tmp_path):
    with closing(NativeBehind(reset_at=client.UPDATE)) as board, answering(board) as name:
        result = tiny_run.invoke(train_ondevice.main, *training, name)
        assert_sentence(result, "the board was reset and has no image any more", f"--resume {tmp_path / 'run'}")
        resumed = tiny_run.invoke(train_ondevice.main, "--resume", tmp_path / "run")
        assert resumed.exit_code == 0, resumed.output
    with closing(NativeBehind()) as board, answering(board) as name:
        arguments = [tmp_path / "whole" if argument == tmp_path / "run" else argument for argument in training]
        assert tiny_run.invoke(train_ondevice.main, *arguments, name).exit_code == 0
    for file in ("seeds.log", "adapted.tflite"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_pulled_cable(training, tmp_path):
    with closing(NativeBehind(unplug_at=client.UPDATE)) as board, answering(board) as name:
        result = tiny_run.invoke(train_ondevice.main, *training, name)
    assert_sentence(result, f"the serial port {name} is gone", "was the cable pulled?", "--resume")
