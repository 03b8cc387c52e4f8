"""The firmware of the STM32N6's boards with the NPU's runner, from its first instruction to training steps, on a model
of chip and NPU that sees memory as an NPU does (stm32n6_npu.py). Not with ST's runtime: ll_aton_firmware stands in."""

import itertools
import shutil
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from npu_builds import NETWORKS, make_build, network
from oracles import random_pixels
from stm32n6_model import Core, ModelError, ModelLine
from stm32n6_npu import INPUT, OUTPUT, CacheAxi, NpuDkMachine, NpuMachine, Rifsc
from stm32n6_psram import BASE
from tiny_model import SHAPE, tiny_image, tiny_tflite

from converters import device_image
from converters.device_image import DeviceImage, Preprocessing
from converters.errors import UserError
from pipeline.targets.boards import VARIANTS, build_stm32n6
from pipeline.targets.client import Board
from pipeline.targets.link import Link
from pipeline.targets.target import NEAREST, STOCHASTIC, Region, Update
from pipeline.targets.twin import Twin

pytestmark = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi"
)
RCC, RIFSC, CACHEAXI, SCS = 0x56028000, 0x54024000, 0x580DFC00, 0xE000E000
POOL = 0x34200000
OPTIONS = ("-DLL_ATON_STAND_IN=ON", f"-DWEIGHTS_ADDRESS={POOL:#x}", "-DWEIGHTS_BYTES=1376256")  # three banks
IN_PSRAM = ("-DLL_ATON_STAND_IN=ON", f"-DWEIGHTS_ADDRESS={BASE:#x}", "-DWEIGHTS_BYTES=8388608")
SAMPLES = 4


@pytest.fixture(scope="module")
def firmware():
    return build_stm32n6("nucleo", "words", *OPTIONS, cpu="cortex-m33", provoke=True)


@pytest.fixture(scope="module", params=["own memory", "cached by the NPU"])
def build(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("npu")
    return make_build(folder, tiny_tflite(), "typical", cacheable=request.param != "own memory", solve=False)


@pytest.fixture(scope="module")
def cached_build(tmp_path_factory):
    return make_build(tmp_path_factory.mktemp("npu"), tiny_tflite(), "typical", cacheable=True, solve=False)


@pytest.fixture(scope="module")
def dk_firmware():
    """The network has its weights in PSRAM."""
    return build_stm32n6("dk", "words", *IN_PSRAM, name="npu-psram", cpu="cortex-m33", provoke=True)


@pytest.fixture(scope="module")
def dk_build(tmp_path_factory):
    return make_build(
        tmp_path_factory.mktemp("npu"), tiny_tflite(), "typical", cacheable=True, solve=False, address=BASE
    )


def connect(firmware, build, tflite=None, kind=NpuMachine, **options) -> Board:
    machine = partial(kind, build=build, tflite=tflite or tiny_tflite())
    line = ModelLine(firmware, machine=machine, **options)
    board = Board(Link(line), build.image, describe_end=line.describe_end)
    board.machine = line.machine
    return board


def train(target):
    """Everything that three steps of two directions say; the last step in stochastic rounding."""
    target.write_samples(0, random_pixels(SAMPLES, SHAPE, 1), np.arange(SAMPLES))
    target.select(range(SAMPLES))
    said = [target.loss(), target.weights_crc()]
    for step in range(3):
        seeds = (10 * step, 10 * step + 1)
        said += [target.probe(seed, 2) for seed in seeds]
        said.append(target.update(Update((NEAREST, STOCHASTIC)[step == 2], step, seeds, (1 << 17, -70_000))))
    return [*said, target.loss(), target.weights_crc()]


@pytest.fixture(scope="module")
def expected():
    with closing(Twin(DeviceImage.read(tiny_image()), threads=1)) as twin:
        return train(twin)


@pytest.mark.parametrize("variant", VARIANTS)
def test_firmware_builds_for_the_m55(variant):
    build_stm32n6(variant, "mve", *OPTIONS)


def test_training_equals_the_twin(firmware, build, expected):
    with closing(connect(firmware, build)) as board:
        assert board.info.board == "stm32n6-nucleo" and board.info.runner == "neural_art"
        assert train(board) == expected
        assert board.machine.inferences > 8 * SAMPLES
        rifsc = board.machine.rifsc
        for register in (Rifsc.SECCFGR3, Rifsc.PRIVCFGR3):
            assert rifsc.values[register] == 1 << 10, "its registers are for secure, privileged accesses alone"
        assert board.machine.cache.on


def test_a_real_network_in_psram_equals_the_twin(tmp_path, dk_firmware):
    """175,000 weights, whose places were recovered from the compiled bytes, as convert does."""
    tflite = network(NETWORKS[0])
    build = make_build(tmp_path, tflite, "typical", address=BASE)
    image = DeviceImage.read(device_image.build(tflite, Preprocessing()))
    there = connect(dk_firmware, build, tflite, kind=NpuDkMachine)
    with closing(there) as board, closing(Twin(image, threads=1)) as twin:
        assert board.info.board == "stm32n6-dk"
        for target in (board, twin):
            target.write_samples(0, random_pixels(2, (32, 32, image.input.channels), 1), np.arange(2))
            target.select(range(2))
        assert board.probe(5, 2) == twin.probe(5, 2)
        update = Update(STOCHASTIC, 0, (5,), (1 << 17,))
        assert board.update(update) == twin.update(update)
        assert board.loss() == twin.loss()


# -- Steps left out --------------------------------------------------------------------------------------------------


def never(_value):
    return None


def without(first: int, size: int, *, after: int = 0):
    """Maintenance of the data cache that leaves a range out, but for so many lines of it at first."""
    seen = itertools.count()
    return lambda line: None if first - 32 < line < first + size and next(seen) >= after else line


REFUSED = r"network"
SILENT = r"watchdog ran out"
START = {
    "the NPU's clock": ({RCC + 0xA60: lambda v: v & ~(1 << 31)}, REFUSED),
    "its cache's clock": ({RCC + 0xA60: lambda v: v & ~(1 << 30)}, SILENT),
    "the end of the resets": ({RCC + 0x1220: never}, SILENT),
    "RIF's clock": ({RCC + 0xA58: never}, None),
    "the NPU's rights": ({RIFSC + Rifsc.NPU_ATTRIBUTES: never}, None),
    "the NPU's compartment": ({RIFSC + Rifsc.NPU_ATTRIBUTES: lambda v: v & ~0x70}, None),
    "the resets": ({RCC + 0xA20: never, RCC + 0x1220: never}, None),
    "the cache's start": ({CACHEAXI + CacheAxi.CR1: never}, SILENT),
    "the clock of the cache's memory": ({RCC + 0xA4C: lambda v: v & ~(1 << 10)}, "without the clock of its memory"),
}
MAINTENANCE = {
    "first weights cleaned": lambda _: {SCS + Core.DCCMVAC: without(POOL, 1 << 20)},
    "weights cleaned": lambda lines: {SCS + Core.DCCMVAC: without(POOL, 1 << 20, after=lines)},
    "input cleaned": lambda _: {SCS + Core.DCCMVAC: without(INPUT, 297)},
    "the input's last line cleaned": lambda _: {SCS + Core.DCCMVAC: without(INPUT + 288, 9)},
    "output invalidated": lambda _: {SCS + Core.DCIMVAC: without(OUTPUT, 10)},
    "the NPU's cache told": lambda _: {CACHEAXI + CacheAxi.CR2: lambda v: v & ~6 | 2},
}


def says_otherwise(firmware, build, expected, tamper, kind=NpuMachine) -> None:
    """Training runs, or ends, but not as it should."""
    try:
        with closing(connect(firmware, build, kind=kind, tamper=tamper)) as board:
            assert train(board) != expected
    except ModelError as error:
        assert "holds no weight" in str(error)  # the NPU read what was never written


@pytest.mark.parametrize(("tamper", "words"), START.values(), ids=START)
def test_a_step_of_the_start_left_out_is_noticed(firmware, cached_build, expected, tamper, words):
    if words is None:
        says_otherwise(firmware, cached_build, expected, tamper)
        return
    with pytest.raises((UserError, ModelError), match=words):
        connect(firmware, cached_build, tamper=tamper, patience=10)


@pytest.mark.parametrize("tamper", MAINTENANCE.values(), ids=MAINTENANCE)
def test_maintenance_left_out_is_noticed(firmware, cached_build, expected, tamper):
    lines = -(-len(DeviceImage.read(cached_build.image).npu.blob) // 32)
    says_otherwise(firmware, cached_build, expected, tamper(lines))


def test_a_step_too_many_is_none(firmware, cached_build, expected):
    """What leaves maintenance out leaves it alone where it is told to: the tests above fail for what they leave out."""
    tamper = {SCS + Core.DCCMVAC: without(POOL, 1 << 20, after=1 << 30), SCS + Core.DCIMVAC: without(0x34300000, 32)}
    with closing(connect(firmware, cached_build, tamper=tamper)) as board:
        assert train(board) == expected


def test_an_error_of_the_npu_is_reported(firmware, cached_build):
    board = connect(firmware, cached_build)
    board.machine.core.enabled.add(53)  # as LL_ATON does
    board.machine.core.pended.add(53)
    with pytest.raises(UserError, match=r"the board stopped: the NPU reported an error"):
        board.loss()


def test_a_hang_of_the_start_is_reported(firmware, cached_build, monkeypatch):
    """The NPU's cache, which is busy after its reset, stays busy."""
    monkeypatch.setattr(CacheAxi, "BUSY_READS", 1 << 60)
    with pytest.raises(UserError, match=r"the watchdog ran out .* in (wait_for_npu_cache|npu_cache_enable) \("):
        connect(firmware, cached_build, patience=10)


# -- Weights in PSRAM ------------------------------------------------------------------------------------------------


def test_training_with_weights_in_psram_equals_the_twin(dk_firmware, dk_build, expected):
    with closing(connect(dk_firmware, dk_build, kind=NpuDkMachine)) as board:
        assert board.info.regions[3] == Region(3, 8 << 20)
        assert train(board) == expected
        blob = board.image.npu.blob
        assert board.machine.inferences > 8 * SAMPLES and board.machine.cache.lines.keys() >= {BASE}
        assert sum(a != b for a, b in zip(board.machine.uc.mem_read(BASE, len(blob)), blob, strict=True)) > 0


IN_PSRAM_MAINTENANCE = {
    "weights cleaned": lambda lines: {SCS + Core.DCCMVAC: without(BASE, 1 << 20, after=lines)},
    "the NPU's cache told": MAINTENANCE["the NPU's cache told"],
}


@pytest.mark.parametrize("tamper", IN_PSRAM_MAINTENANCE.values(), ids=IN_PSRAM_MAINTENANCE)
def test_maintenance_of_weights_in_psram_left_out_is_noticed(dk_firmware, dk_build, expected, tamper):
    lines = -(-len(DeviceImage.read(dk_build.image).npu.blob) // 32)
    says_otherwise(dk_firmware, dk_build, expected, tamper(lines), NpuDkMachine)


@pytest.mark.parametrize("options", [{"psram": False}, {"fault": "address 20"}], ids=["no memory", "a broken line"])
def test_without_psram_the_image_is_refused(dk_firmware, dk_build, options, monkeypatch):
    seen = []
    monkeypatch.setattr(Board, "_check", lambda board: seen.append(board.info.regions))
    with pytest.raises(UserError, match=r"the board has room for 0: "):
        connect(dk_firmware, dk_build, kind=NpuDkMachine, **options)
    assert seen[0][3] == Region(3, 0)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"does not fit the board stm32n6-dk: .* more than the 0 that are there"):
        connect(dk_firmware, dk_build, kind=NpuDkMachine, **options)
