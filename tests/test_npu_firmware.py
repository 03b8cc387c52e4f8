"""make firmware NPU=...: a stand-in (ll_aton_firmware) laid out as ST's runtime is, and networks of its own."""

import json
import shutil
from pathlib import Path

import pytest
import tiny_run
from tiny_model import tiny_tflite

import pipeline.firmware
from converters.neural_art.writer import Build, write_network

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("ll_aton", "ll_aton_lib", "ll_aton_lib_sw_operators", "ll_aton_util", "ll_aton_cipher", "ecloader")
needs_gcc = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi"
)


@pytest.fixture
def runtime(tmp_path):
    folder = tmp_path / "Npu"
    shutil.copytree(ROOT / "tests" / "ll_aton", folder / "ll_aton", ignore=shutil.ignore_patterns("*.c", "*.md"))
    for header in (ROOT / "tests" / "ll_aton_firmware").glob("*.h"):
        shutil.copy(header, folder / "ll_aton")
    shutil.copy(ROOT / "tests" / "ll_aton_firmware" / "runtime.c", folder / "ll_aton" / "ll_aton_runtime.c")
    for name in SOURCES:
        (folder / "ll_aton" / f"{name}.c").write_text(f"extern int {name}_is_empty;\n")
    (folder / "Devices" / "STM32N6xx").mkdir(parents=True)
    (folder / "Devices" / "STM32N6xx" / "ATON.h").write_text("")
    return folder


def write(folder: Path, name: str = "network", **build) -> Path:
    folder.mkdir(exist_ok=True)
    write_network(folder, tiny_tflite(), Build(**build))
    (folder / "network.c").write_text(f"/* LL_ATON_Input_Buffers_Info_{name}() */ extern int nothing;\n")
    return folder


def firmware(network: Path, runtime: Path, *more: str):
    options = ("--board", "stm32n6", "--kernels", "words", "--npu", network, "--st-npu", runtime, *more)
    return tiny_run.invoke(pipeline.firmware.main, *options)


def says(result, words: str) -> None:
    assert result.exit_code == 1 and words in result.output, result.output
    assert "Traceback" not in result.output and result.output.count("error: ") == 1


@needs_gcc
def test_the_firmware_is_built_and_accounted_for(tmp_path, runtime):
    network = write(tmp_path / "compiled", "of_mine", weights_address=0x34270000, weights_size=448 << 10)
    result = firmware(network, runtime, "--variant", "dk")
    assert result.exit_code == 0, result.output
    for words in ("head of the image, samples", "stack of main", "weights at 0x34270000", "on the CPU: nothing"):
        assert words in result.output, words
    cache = (ROOT / "build" / "stm32n6-dk-npu-words" / "CMakeCache.txt").read_text()
    for line in ("NEURAL_ART_NAME:STRING=of_mine", "WEIGHTS_ADDRESS:STRING=0x34270000", "WEIGHTS_BYTES:STRING=458752"):
        assert line in cache, line


@needs_gcc
def test_a_stack_without_a_bound_is_said_and_no_failure(tmp_path, runtime):
    """As ST's sources may have it: a frame of variable size."""
    source = runtime / "ll_aton" / "ll_aton_runtime.c"
    text = source.read_text().replace(
        "    done = false;", "    volatile char frame[NPU(INPUT_BYTES)];\n    frame[0] = 0;\n    done = frame[0];"
    )
    source.write_text(text)
    result = firmware(write(tmp_path / "compiled"), runtime)
    assert result.exit_code == 0, result.output
    assert "the stacks have no known bound" in result.output and "LL_ATON_RT_Reset_Network" in result.output
    assert "no recursion" not in result.output


def test_a_network_in_the_firmwares_memory_is_refused(tmp_path, runtime):
    network = write(tmp_path / "compiled", activations_address=0x34064000)
    says(firmware(network, runtime), "at 0x34064000, where the firmware has DATA: compile with the memory pools")
    network = write(tmp_path / "compiled", activations_address=0x3403FF00)
    says(firmware(network, runtime), "where the firmware has CODE, DATA")


@pytest.mark.parametrize("address", [0x71000000, 0x90000000, 0x343C0000, 0x343BFFF0], ids=hex)
def test_a_network_where_no_memory_is_is_refused(tmp_path, runtime, address):
    """Flash; PSRAM, which only the DK has; the memory of the NPU's cache."""
    network = write(tmp_path / "compiled", weights_address=address)
    says(firmware(network, runtime), "where this board has no memory for it (AXISRAM2, AXISRAM36)")


@needs_gcc
def test_weights_may_lie_in_the_psram_of_the_dk(tmp_path, runtime):
    network = write(tmp_path / "compiled", weights_address=0x90000000)
    result = firmware(network, runtime, "--variant", "dk")
    assert result.exit_code == 0 and "0x90000000" in result.output, result.output


def test_weights_in_several_pools_are_refused(tmp_path, runtime):
    network = write(tmp_path / "two")
    info = json.loads((network / "network_c_info.json").read_text())
    next(b for b in info["buffers"] if b["is_param"])["mpool_id"] = 2
    (network / "network_c_info.json").write_text(json.dumps(info))
    (network / "network_atonbuf.ACTIVATIONS.raw").write_bytes(bytes(1 << 17))
    says(firmware(network, runtime), "parameters in several pools")


def test_what_is_missing_is_named(tmp_path, runtime):
    network = write(tmp_path / "compiled")
    says(firmware(network, tmp_path), "lacks ll_aton/ll_aton_runtime.h: give the folder Npu")
    says(firmware(network, runtime, "--st-npu-library", "none.a"), "none.a is not there")
    (network / "network.c").unlink()
    says(firmware(network, runtime), "has no network.c")


def test_options_that_mean_nothing(tmp_path):
    def refused(*options: object) -> str:
        result = tiny_run.invoke(pipeline.firmware.main, *options)
        assert result.exit_code == 2, result.output
        return result.output

    assert "without --npu" in refused("--board", "stm32n6", "--st-npu", tmp_path)
    assert "--st-npu .../Npu" in refused("--board", "stm32n6", "--npu", tmp_path)
    assert "means nothing to --board qemu_an547" in refused("--npu", tmp_path, "--st-npu", tmp_path)
    assert "--image means" in refused(
        "--board", "stm32n6", "--npu", tmp_path, "--st-npu", tmp_path, "--image", tmp_path
    )
