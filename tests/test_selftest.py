"""The self-test of a board: it passes on boards that are right and fails on each that is wrong in one thing."""

import shutil
import struct
import subprocess
from contextlib import closing

import pytest
import tiny_run
from app_library import SANITIZE
from npu_builds import NETWORKS, make_build, network, npu_board
from tiny_model import tiny_image

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline import selftest, train_ondevice
from pipeline.targets import client
from pipeline.targets.boards import build_native, open_board
from pipeline.targets.target import NEAREST, Update
from pipeline.targets.twin import Twin

CHECKS = 9


@pytest.fixture
def image_file(tmp_path):
    path = tmp_path / "tiny.zimg"
    path.write_bytes(tiny_image())
    return path


def run(*arguments):
    return tiny_run.invoke(train_ondevice.main, "--selftest", *arguments)


@pytest.mark.parametrize(
    "options", ["native", "native --threads 3 --memory 64", "qemu_an547", "qemu_an547 --link uart"]
)
def test_boards_pass(image_file, options):
    if "an547" in options and not (shutil.which("qemu-system-arm") and shutil.which("arm-none-eabi-gcc")):
        pytest.skip("apt-get install qemu-system-arm gcc-arm-none-eabi")
    result = run("--image", image_file, "--board", *options.split())
    assert result.exit_code == 0, result.output
    assert result.output.count("\nok ") == CHECKS and "FAILED" not in result.output
    assert f"CRC-32 {DeviceImage.read(tiny_image()).crc:08x}, 4,176 weights to train, mu up to 4" in result.output


def test_a_board_on_a_socket_passes(image_file):
    command = [str(build_native(sanitize=SANITIZE)), "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().split()[-1]
    result = run("--image", image_file, "--port", f"127.0.0.1:{port}")
    assert result.exit_code == 0 and result.output.count("\nok ") == CHECKS
    assert server.wait(timeout=10) == 0


def test_a_board_that_answers_with_fewer_logits_passes(image_file, monkeypatch):
    monkeypatch.setattr(client.Board, "most_logits", property(lambda board: 3))
    result = run("--image", image_file)
    assert result.exit_code == 0 and "all 30 logits equal to tflite-runtime's" in result.output, result.output


def test_options_that_mean_nothing(image_file):
    result = run("--image", image_file, "--lr", "2")
    assert result.exit_code == 2 and "--lr means nothing to --selftest" in result.output
    for stray in (("--image", image_file, "--board", "twin"), ()):
        result = run(*stray)
        assert result.exit_code == 2 and "needs a board and a device image" in result.output
    result = run("--image", image_file, "--board", "stm32n6", "--threads", "2")
    assert result.exit_code == 2 and "--threads means nothing to --board stm32n6" in result.output


@pytest.mark.parametrize("arithmetic", ["tflite", "npu"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_npu_may_round_as_it_does(name, arithmetic, tmp_path, capsys):
    """Simulated, on weights that lie as in a compiled network; once in the arithmetic that the NPU is said to have."""
    build = make_build(tmp_path / "compiled", network(name), "typical")
    settings = {} if arithmetic == "tflite" else {"arithmetic": arithmetic}
    with npu_board(build, **settings) as board, closing(Twin(board.image, 1)) as twin:
        selftest.run(board, twin)
    output = capsys.readouterr().out
    print(output)
    assert output.count("\nok ") == CHECKS and "24 at most" in output


@pytest.mark.parametrize("ignore", ["weights", "output"])
def test_an_npu_whose_caches_are_not_cleaned_fails(ignore, tmp_path):
    """The firmware wrote the weights, or the NPU its output, and the other side sees what was there before."""
    build = make_build(tmp_path / "compiled", network(NETWORKS[0]), "typical")
    with (
        npu_board(build, ignore=ignore, arithmetic="npu") as board,
        closing(Twin(board.image, 1)) as twin,
        pytest.raises(UserError, match=r"failed .*one weight, one weight, one weight"),
    ):
        selftest.run(board, twin)


# -- Boards that are wrong -------------------------------------------------------------------------------------------


class Wrong:
    """A native board whose answers, or commands, one of the functions below changes on their way."""

    def __init__(self, board, change):
        self._command, self.last = board._link.command, {}
        board._link.command = lambda kind, payload=b"", **options: change(self, kind, payload, **options)

    def __call__(self, kind, payload=b"", timeout=10.0, **options):
        self.last[kind] = self._command(kind, payload, timeout=timeout, **options)
        return self.last[kind]


def flip_a_logit(board, kind, payload, **options):
    answer = board(kind, payload, **options)
    return bytes([answer[0] ^ 1]) + answer[1:] if kind == client.LOGITS else answer


def flip_one_logit_once(board, kind, payload, **options):
    again = client.LOGITS in board.last and client.SET_WEIGHT in board.last
    answer = flip_a_logit(board, kind, payload, **options) if again else board(kind, payload, **options)
    return answer


def forward_passes_see_old_weights(board, kind, payload, **options):
    if kind == client.LOGITS and kind in board.last:
        return board.last[kind]
    return board(kind, payload, **options)


def write_beside_it(board, kind, payload, **options):
    if kind == client.SET_WEIGHT:
        index, value = struct.unpack("<Ii", payload)
        payload = struct.pack("<Ii", index + 1, value)
    return board(kind, payload, **options)


def write_nothing(board, kind, payload, **options):
    return bytes(4) if kind == client.SET_WEIGHT else board(kind, payload, **options)


def probes_leave_a_trace(board, kind, payload, **options):
    answer = board(kind, payload, **options)
    if kind == client.PROBE:
        board(client.UPDATE, struct.pack("<QIIQi", 0, 0, 1, 42, 1 << 17))
    return answer


def probes_with_another_seed(board, kind, payload, **options):
    return board(kind, struct.pack("<Q", 7) + payload[8:] if kind == client.PROBE else payload, **options)


WRONG = {
    flip_a_logit: {"golden inputs", "one weight"},
    flip_one_logit_once: {"one weight", "restored"},
    forward_passes_see_old_weights: {"one weight"},
    write_beside_it: {"one weight", "restored", "probe"},
    write_nothing: {"one weight", "restored"},
    probes_leave_a_trace: {"probe"},
    probes_with_another_seed: {"probe"},
}


@pytest.mark.parametrize(("change", "failing"), WRONG.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_board_fails(change, failing, capsys):
    with closing(open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)) as board:
        Wrong(board, change)
        with (
            closing(Twin(board.image, 1)) as twin,
            pytest.raises(UserError, match=r"failed .*docs/stm32n6\.md") as error,
        ):
            selftest.run(board, twin)
    lines = capsys.readouterr().out.splitlines()
    assert {line.split(":")[0].split(maxsplit=1)[1] for line in lines if line.startswith("FAILED")} == failing
    assert all(name in str(error.value) for name in failing)


def test_weights_that_are_not_the_images_fail(capsys):
    with closing(open_board("native", tiny_image(), threads=1, sanitize=SANITIZE)) as board:
        board.update(Update(NEAREST, 0, (1,), (1 << 17,)))
        with (
            closing(Twin(board.image, 1)) as twin,
            pytest.raises(UserError, match="weights, golden inputs, one weight"),
        ):
            selftest.run(board, twin)
    assert "the image has f2565f4e" in capsys.readouterr().out


def test_the_command_ends_with_1(image_file, monkeypatch):
    monkeypatch.setattr(selftest.SelfTest, "_crcs_equal", lambda self: False)
    result = run("--image", image_file)
    assert result.exit_code == 1 and "error: the board failed 7 checks" in result.output
