"""Memory of the firmware: its table, its stacks, and that the stack analysis notices what has no bound."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracles import random_pixels
from test_m55 import MISSING
from tiny_model import SHAPE, tiny_image

from converters.errors import UserError
from pipeline import firmware, stack
from pipeline.elf import Elf
from pipeline.firmware import FIRMWARE
from pipeline.stack import CallGraph, check_no_heap, check_stacks, cortex_m_stacks
from pipeline.targets.boards import KERNELS, ROOT, build_an547, open_board
from pipeline.targets.target import NEAREST, Update

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs a Cortex-M55: apt-get install {' '.join(MISSING)}")
CPU = ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard")


@pytest.fixture(scope="module", params=KERNELS)
def built(request) -> tuple[str, Elf]:
    return request.param, Elf(build_an547("zo_board", request.param))


def test_stacks_of_the_firmware_are_bounded(built):
    _, elf = built
    check_no_heap(elf)
    process, handlers = firmware.stacks(elf)
    check_stacks((process, handlers))
    assert (process.size, handlers.size) == (8192, 1024)
    assert 600 < process.worst < 4096 and "app_execute" in process.why
    assert handlers.worst > 300 and handlers.why.count("report") >= 1


def test_what_is_measured_stays_below_the_worst_case(built):
    kernels, elf = built
    board = open_board("qemu_an547", tiny_image(), kernels=kernels)
    try:
        board.write_samples(0, random_pixels(8, SHAPE, 0), np.zeros(8))
        board.select(range(8))
        board.probe(1, 2)
        board.logits()
        board.trace(0, 1)
        board.update(Update(NEAREST, 0, tuple(range(64)), (1 << 15,) * 64))
        used = board.refresh().memory["stack"]
    finally:
        board.close()
    worst = firmware.stacks(elf)[0].worst
    assert worst / 2 < used <= worst


def test_every_frame_that_gcc_states_is_in_the_instructions(built):
    """What has no call graph is read off its instructions: for everything that has one, both have to agree."""
    _, elf = built
    files = firmware.call_graphs(elf.path)
    assert len(files) > 30
    read, both = CallGraph(elf, []), CallGraph(elf, files)
    through_pointers = set()
    for address, function in both._functions.items():
        own = read._functions[address]
        assert function.frame == own.frame, function.name  # GCC leaves out arguments that it stores (sub sp, #8)
        if function.calls != own.calls:
            assert address in both._jumps_by_register
            through_pointers.add(function.name.partition(".")[0])
    assert {"app_execute", "invoke", "plan_memory", "port_parallel"} <= through_pointers


def test_the_table_accounts_for_every_byte(built):
    kernels, elf = built
    found = firmware.stacks(elf)
    table = firmware.rows(elf, found, FIRMWARE["qemu_an547"])
    assert list(table) == ["ITCM", "DTCM", "SRAM", "DDR"]
    total = sum(row.size for rows in table.values() for row in rows if not row.inner)
    assert total == sum(s.size for s in elf.sections) + elf.section(".data").size
    app = {row.purpose: row.size for row in table["DTCM"]}
    assert app["app context"] == sum(row.size for row in table["DTCM"] if row.inner)
    board = open_board("qemu_an547", tiny_image(), kernels=kernels)
    memory = board.info.memory
    board.close()
    assert app["link buffers"] == memory["link"] and app["batch"] == memory["batch"] + 4
    text = "\n".join(firmware.describe("a board", elf, found, FIRMWARE["qemu_an547"]))
    for word in ("code", "constants", "stack of handlers", "activations, scratch", "no heap, no recursion"):
        assert word in text


def command(*arguments: object, path: str | None = None) -> subprocess.CompletedProcess:
    environment = {"PATH": path} if path is not None else None
    line = [sys.executable, "-m", "pipeline.firmware", *map(str, arguments)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)


def test_the_command_prints_and_writes_the_table_with_an_image(tmp_path):
    (tmp_path / "tiny.zimg").write_bytes(tiny_image())
    done = command("--board", "qemu_an547", "--kernels", "mve", "--image", tmp_path / "tiny.zimg")
    assert done.returncode == 0, done.stderr
    table = build_an547("zo_board", "mve").with_suffix(".memory.txt").read_text()
    assert table in done.stdout and "what is taken when it is loaded" in table


def test_mistakes_of_the_command_are_one_sentence(tmp_path):
    absent = command("--image", tmp_path / "absent.zimg")
    assert absent.returncode == 1 and "cannot be read" in absent.stderr and "Traceback" not in absent.stderr
    no_tools = command(path=str(tmp_path))
    assert no_tools.returncode == 1 and "apt-get install gcc-arm-none-eabi" in no_tools.stderr


# -- The analysis on small programs ----------------------------------------------------------------------------------

# As boards/cortex_m/startup.c has it: what counts are the names, and what the vectors point to.
STARTUP = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
uint32_t process_stack[256], handler_stack[256];
volatile int sink;
int work(int n);
__attribute__((used, noinline)) static void prepare(void) { sink = 1; }
__attribute__((used, noinline)) static void run(void) { sink = work(sink); }
__attribute__((naked)) void reset(void) { __asm("bl prepare\\n b run"); }
__attribute__((used)) static void handler(void) { sink = 2; }
__attribute__((section(".vectors"), used)) const void *const vectors[] = {
    process_stack, reset, handler, handler, handler, handler,
};
void *_sbrk(int n) { (void)n; return (void *)-1; }
#define NOINLINE __attribute__((noinline))
"""


def build(folder: Path, code: str, *, call_graph: bool = True) -> tuple[Elf, list[Path]]:
    source = folder / "small.c"
    source.write_text(STARTUP + code)
    flags = ("-O1", "-g", "-fno-optimize-sibling-calls", *(("-fcallgraph-info=su",) if call_graph else ()))
    compiler = shutil.which("arm-none-eabi-gcc")
    subprocess.run([compiler, *CPU, *flags, "-c", source, "-o", folder / "small.o"], check=True, cwd=folder)
    link = ("-nostartfiles", "--specs=nano.specs", "-Wl,-ereset")
    subprocess.run([compiler, *CPU, *link, folder / "small.o", "-o", folder / "small.elf"], check=True)
    return Elf(folder / "small.elf"), list(folder.glob("*.ci"))


def stacks(folder: Path, code: str, **options) -> tuple[stack.Stack, ...]:
    elf, files = build(folder, code, **options)
    return cortex_m_stacks(elf, CallGraph(elf, files))


DEEP = """
NOINLINE int shallow(int n) { volatile char a[16]; memset((char *)a, n, 16); return a[1]; }
NOINLINE int deep(int n) { volatile char a[%d]; memset((char *)a, n, sizeof a); return a[1] + shallow(n); }
int work(int n) { return shallow(n) > 3 ? deep(n) : 0; }
"""


def test_the_deepest_calls_are_found(tmp_path):
    process, handlers = stacks(tmp_path, DEEP % 400)
    assert "work" in process.why and "deep" in process.why and "shallow" in process.why
    assert 400 + 16 + stack.EXCEPTION_FRAME < process.worst < 600
    assert handlers.worst == 3 * stack.EXCEPTION_FRAME
    check_stacks((process, handlers))


def test_a_stack_that_is_too_small_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"process_stack has 1,024 bytes and may need 1,\d+ \(run 8 > work \d+ > deep"):
        check_stacks(stacks(tmp_path, DEEP % 1000))


@pytest.mark.parametrize("call_graph", [True, False])
def test_recursion_is_an_error_that_names_it(tmp_path, call_graph):
    code = """
    int odd(int n);
    NOINLINE int even(int n) { return n ? odd(n - 1) + sink : 1; }
    NOINLINE int odd(int n) { return n ? even(n - 1) - sink : 0; }
    int work(int n) { return even(n); }
    """
    with pytest.raises(UserError, match=r"recurses \(even > odd > even\)"):
        stacks(tmp_path, code, call_graph=call_graph)


POINTERS = """
typedef long step(long n);
struct task { step *go; };
static NOINLINE long large(long n) { volatile char a[300]; memset((char *)a, n, 300); return a[2]; }
static NOINLINE long small(long n) { return n + sink; }
static NOINLINE int other(int a, int b) { volatile char big[900]; memset((char *)big, a, 900); return big[b]; }
int (*volatile never)(int a, int b) = other;
static struct task tasks[] = {{small}, {large}};
int work(int n) { return tasks[n & 1].go(n); }
"""


def test_calls_through_pointers_reach_every_function_of_their_type(tmp_path):
    process, _ = stacks(tmp_path, POINTERS)
    assert "large" in process.why and 300 < process.worst < 500  # other has another type


def test_calls_through_pointers_without_a_call_graph_have_no_bound(tmp_path):
    with pytest.raises(UserError, match="work calls through a pointer that is in no call graph"):
        stacks(tmp_path, POINTERS, call_graph=False)


@pytest.mark.parametrize("call_graph", [True, False])
@pytest.mark.parametrize("array", ["volatile char a[n]", "volatile char *a = __builtin_alloca(n)"])
def test_frames_of_variable_size_are_an_error(tmp_path, array, call_graph):
    code = f"NOINLINE int vary(int n) {{ {array}; a[0] = n; return a[n / 2]; }} int work(int n) {{ return vary(n); }}"
    with pytest.raises(UserError, match="vary has a frame of variable size"):
        stacks(tmp_path, code, call_graph=call_graph)


def test_a_heap_is_an_error(tmp_path):
    elf, _ = build(tmp_path, "int work(int n) { char *p = malloc(n); sink = p != NULL; free(p); return sink; }")
    with pytest.raises(UserError, match=r"has a heap \(.*malloc.*\)"):
        check_no_heap(elf)


def test_what_is_no_elf_file_is_a_sentence(tmp_path):
    (tmp_path / "x.elf").write_bytes(b"no ELF")
    with pytest.raises(UserError, match="cannot be read as an ELF file"):
        Elf(tmp_path / "x.elf")
