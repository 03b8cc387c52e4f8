"""Every check of the PLAN section on the device: a plan that passes for each op, and what one wrong word does to it."""

import re
import struct
import zlib
from pathlib import Path

import pytest
from test_app_image import sections, with_crc
from test_app_link import Raw
from tiny_model import tiny_image

from converters import plan
from pipeline.targets import client
from pipeline.targets.link import Refused

BAD_PLAN = 11
HEADER, TENSOR, OP = 8, 5, 7  # words
BIG = 2**31


def assemble(tensors, op, pool=(1 << 30,) * 4 + (0,) * 12, arena=4096):
    """PLAN words of one op that reads tensor 0 (and 2) and writes tensor 1."""
    record = [op[0], OP + len(op[1:]), 0, 2 if len(tensors) > 2 else 0, 1, -128, 127, *op[1:]]
    flat = [v for t in tensors for v in t]
    ops_at = HEADER + len(flat)
    pool_at = ops_at + len(record)
    return [len(tensors), 1, 0, 1, arena, ops_at, pool_at, len(pool), *flat, *record, *pool]


IN, OUT = [0, 8, 8, 4, 0], [1024, 8, 8, 4, 0]
WINDOW = [3, 3, 1, 1, 1, 1, 1, 1]  # 3x3, stride 1, no dilation, padded by 1
FILTER = [0, plan.NONE, 0]  # weights, bias, scales
SCALE = [1 << 30, 0]

PLANS = {
    "conv": assemble([IN, OUT], [plan.CONV_2D, *WINDOW, *FILTER]),
    "depthwise": assemble([IN, OUT], [plan.DEPTHWISE_CONV_2D, *WINDOW, *FILTER]),
    "fc": assemble([IN, [1024, 1, 1, 4, 0]], [plan.FULLY_CONNECTED, *FILTER]),
    "fc_rows": assemble([IN, [1024, 1, 8, 4, 0]], [plan.FULLY_CONNECTED, *FILTER]),
    "add": assemble([IN, OUT, IN], [plan.ADD, *SCALE * 3]),
    "mean": assemble([IN, [1024, 1, 1, 4, 0]], [plan.MEAN, 3, 64, *SCALE]),
    "max_pool": assemble([IN, OUT], [plan.MAX_POOL_2D, *WINDOW]),
    "average_pool": assemble([IN, OUT], [plan.AVERAGE_POOL_2D, *WINDOW]),
    "pad": assemble([IN, [1024, 11, 12, 6, 0]], [plan.PAD, 1, 2, 0, 4, 1, 1, -5]),
    "softmax": assemble([IN, OUT], [plan.SOFTMAX, 1 << 30, 23, -100]),
    "quantize": assemble([IN, OUT], [plan.QUANTIZE, *SCALE]),
    "relu6": assemble([IN, OUT], [plan.RELU6]),
    "table": assemble([IN, OUT], [plan.TABLE, 0], pool=(0,) * 64),
    "broadcast_add": assemble([[0, 1, 8, 1, 0], OUT, IN], [plan.BROADCAST_ADD, *SCALE * 3, 7056 - 8, plan.NONE]),
    "sub": assemble([IN, OUT, [0, 1, 1, 4, 0]], [plan.SUB, *SCALE * 3, plan.NONE, 4]),
    "mul": assemble([IN, OUT, [0, 1, 1, 1, 0]], [plan.MUL, 0, 0, 0, 0, 1 << 30, 5, plan.NONE, plan.NONE]),
    "minimum": assemble([IN, OUT, [0, 1, 1, 1, 0]], [plan.MINIMUM, 0, 0, 0, 0, 1 << 30, 1, plan.NONE, 8]),
    "maximum": assemble([IN, OUT, [0, 8, 1, 1, 0]], [plan.MAXIMUM, 0, 0, 0, 0, 1 << 30, 1, plan.NONE, 8]),
    "prelu": assemble([IN, OUT, [0, 1, 1, 4, 0]], [plan.PRELU, 1 << 30, 2, 1 << 30, -5, 1 << 30, 1, plan.NONE, 8]),
    "place": assemble([IN, [1024, 9, 10, 7, 0]], [plan.PLACE, 1, 2, 3]),
    "pick": assemble([IN, [1024, 2, 3, 3, 0]], [plan.PICK, 11, 1], pool=(0,) * 11 + (7, 0, 3, 7, 0)),
    "transpose_conv": assemble([IN, [1024, 16, 16, 4, 0]], [plan.TRANSPOSE_CONV, 3, 3, 2, 2, 1, 1, 0, 0, *FILTER]),
}


def tensor(number, field):
    """Word of a tensor's field: at 0, height 1, width 2, channels 3, zero point 4."""
    return HEADER + TENSOR * number + field


def op(name, field):
    """Word of an op's field; 0 to 6 are common to all kinds."""
    return PLANS[name][5] + field


def pool(name, index):
    return PLANS[name][6] + index


# plan, {word: new value}, number of the failing check (tflm_app/image/plan.c)
BROKEN = [
    ("conv", {0: 2**20}, 1),
    ("conv", {0: BIG + 2}, 1),
    ("conv", {tensor(1, 0): 255}, 6),  # the output begins inside the input
    ("add", {tensor(2, 0): 1024 + 255}, 7),
    ("sub", {tensor(0, 0): 1024}, 6),
    ("conv", {1: 2}, 5),  # a second op where the records end
    ("conv", {2: 2}, 1),
    ("conv", {3: 2}, 1),
    ("conv", {4: 2**27 + 1}, 1),
    ("conv", {5: 17}, 1),
    ("conv", {6: 5}, 1),
    ("conv", {6: 2**30}, 1),
    ("conv", {7: 17}, 1),
    ("conv", {op("conv", 0): 0}, 2),
    ("conv", {op("conv", 0): 12}, 2),
    ("conv", {op("conv", 0): plan.MEAN}, 2),
    ("conv", {op("conv", 1): 17}, 2),
    ("conv", {op("conv", 1): 2**30}, 5),
    *(("conv", {op("conv", field): 2}, 3) for field in (2, 3, 4)),
    ("conv", {op("conv", 5): -129}, 4),
    ("conv", {op("conv", 6): 128}, 4),
    ("conv", {op("conv", 5): 5, op("conv", 6): 4}, 4),
    *(("conv", {tensor(0, field): value}, 10) for field in (1, 2, 3) for value in (0, 2**15 + 1)),
    ("conv", {tensor(0, 1): 2**15, tensor(0, 2): 2**15}, 11),
    ("conv", {tensor(1, 0): 4096 - 255}, 12),
    ("conv", {tensor(1, 0): 2**32 - 8}, 12),
    ("conv", {tensor(0, 4): -129}, 13),
    ("conv", {tensor(0, 4): 128}, 13),
    *((name, {op(name, OP + i): 0}, 20) for name in ("conv", "max_pool") for i in (0, 1)),
    ("conv", {op("conv", OP): 2**15 + 1}, 20),
    *((name, {op(name, OP + i): v}, 21) for name in ("conv", "average_pool") for i in (2, 3) for v in (0, 2**15 + 1)),
    *(("conv", {op("conv", OP + i): v}, 22) for i in (4, 5) for v in (0, 2**15 + 1)),
    *(("conv", {op("conv", OP + i): 3}, 23) for i in (6, 7)),  # padding as wide as the window
    ("conv", {op("conv", OP): 2**15, op("conv", OP + 4): 2}, 23),
    ("conv", {op("conv", OP + 2): 2}, 24),  # the last windows lie outside
    ("conv", {op("conv", OP + 3): 2}, 25),
    ("conv", {op("conv", OP + 8): 2**32 - 1}, 30),
    ("conv", {op("conv", OP + 8): 7056 - 143}, 30),
    ("conv", {op("conv", OP + 9): 2}, 31),  # a bias that is not aligned
    ("conv", {op("conv", OP + 9): 7056 - 12}, 31),
    ("conv", {op("conv", OP + 10): 9}, 32),
    ("conv", {op("conv", OP + 10): 2**32 - 1}, 32),
    ("conv", {pool("conv", 1): -1}, 33),
    ("conv", {pool("conv", 5): 31}, 33),
    ("conv", {pool("conv", 5): -32}, 33),
    ("depthwise", {tensor(1, 3): 5}, 40),
    ("depthwise", {op("depthwise", OP): 300, op("depthwise", OP + 1): 300}, 40),
    ("conv", {op("conv", OP): 200, op("conv", OP + 1): 200}, 41),
    ("fc_rows", {tensor(1, 2): 3}, 50),
    ("fc", {tensor(0, 1): 256, tensor(0, 2): 257, tensor(0, 3): 1, 4: 2**20, tensor(1, 0): 0}, 51),
    ("fc", {op("fc", OP): 2**32 - 1}, 30),
    ("mean", {op("mean", OP): 8}, 60),
    ("mean", {op("mean", OP + 2): -1}, 60),
    ("mean", {op("mean", OP + 3): 31}, 60),
    ("mean", {op("mean", OP + 1): 63}, 61),
    ("mean", {op("mean", OP): 1}, 61),
    ("mean", {tensor(1, 3): 5}, 62),
    *(("pad", {op("pad", OP + i): 3}, 70 + i // 2) for i in range(6)),
    ("pad", {op("pad", OP): 2**32 - 1, op("pad", OP + 1): 4}, 70),
    ("pad", {op("pad", OP + 6): 128}, 73),
    ("add", {tensor(2, 1): 4}, 80),
    ("add", {tensor(0, 3): 2}, 80),
    *(("add", {op("add", OP + 2 * i): -1}, 81) for i in range(3)),
    *(("add", {op("add", OP + 2 * i + 1): 1}, 82) for i in range(3)),
    ("max_pool", {tensor(1, 3): 3}, 90),
    *(("average_pool", {op("average_pool", OP + i): 2}, 91) for i in (4, 5)),
    ("softmax", {op("softmax", OP + 2): 1}, 99),
    ("softmax", {tensor(1, 3): 3}, 95),
    ("softmax", {op("softmax", OP + 1): -1}, 95),
    ("softmax", {t: 4096 if t in (tensor(0, 3), tensor(1, 3)) else 1 for t in (
        tensor(0, 1), tensor(0, 2), tensor(0, 3), tensor(1, 1), tensor(1, 2), tensor(1, 3))} | {4: 8192}, 96),
    ("quantize", {tensor(1, 2): 9}, 97),
    ("quantize", {op("quantize", OP + 1): 31}, 97),
    ("relu6", {tensor(1, 2): 9}, 98),
    ("table", {tensor(1, 2): 9}, 104),
    *(("table", {op("table", OP): v}, 105) for v in (1, 2**32 - 1)),
    *(("broadcast_add", {tensor(0, field): 2}, 100) for field in (1, 2, 3)),
    *(("sub", {tensor(2, field): 2}, 100) for field in (1, 2, 3)),
    *(("sub", {op("sub", OP + 2 * i): -1}, 101) for i in range(3)),
    *(("mul", {op("mul", OP + 2 * i + 1): 31}, 101) for i in range(3)),
    *((name, {tensor(2, 1): 3}, 100) for name in ("mul", "minimum", "maximum", "prelu")),
    *(("prelu", {op("prelu", OP + 2 * i + 1): -32}, 101) for i in range(3)),
    *((name, {op(name, OP + 2 * i + 1): 1}, 102) for name in ("broadcast_add", "sub") for i in range(3)),
    ("broadcast_add", {op("broadcast_add", OP + 6): 7056 - 7}, 103),
    ("sub", {op("sub", OP + 7): 2**32 - 2}, 103),
    *(("place", {op("place", OP + i): v}, 110 + i) for i in range(3) for v in (4, 2**32 - 1)),
    *(("pick", {op("pick", OP + 1): v}, 113) for v in (2, 2**32 - 1)),
    *(("pick", {op("pick", OP): v}, 114) for v in (12, 2**32 - 1)),
    *(("pick", {pool("pick", 11 + i): v}, 115) for i in range(5) for v in (8, -1)),
    ("transpose_conv", {op("transpose_conv", OP): 200, op("transpose_conv", OP + 1): 200}, 120),
    *(("transpose_conv", {op("transpose_conv", OP + i): 2}, 121) for i in (4, 5)),
    ("transpose_conv", {tensor(1, 1): 14}, 24),  # the last inputs reach no output
    ("transpose_conv", {tensor(1, 2): 14}, 25),
    ("transpose_conv", {op("transpose_conv", OP + 6): 3}, 23),
    ("transpose_conv", {op("transpose_conv", OP + 8): 7056 - 143}, 30),
]  # fmt: skip


@pytest.fixture(scope="module")
def raw():
    board = Raw("--memory", "16")
    yield board
    board.transport.close()


def load_plan(raw, words) -> tuple[int, int, int]:
    """Status, entry and check of a tiny image with this PLAN section; later sections may be refused, too."""
    image = tiny_image()
    at, size = sections(image)[b"PLAN"]
    content = struct.pack(f"<{len(words)}I", *(w & 0xFFFFFFFF for w in words))
    assert len(content) <= size
    data = bytearray(image)
    data[at : at + len(content)] = content
    entry = 32 + 16 * list(sections(image)).index(b"PLAN")
    data[entry + 8 : entry + 12] = len(content).to_bytes(4, "little")
    data = with_crc(data)
    raw.command(client.LOAD_BEGIN, struct.pack("<II", len(data), zlib.crc32(data)))
    raw.command(client.LOAD_DATA, bytes(4) + data)
    with pytest.raises(Refused) as refused:  # the plan does not fit the other sections
        raw.command(client.LOAD_END)
    return refused.value.code, refused.value.a, refused.value.b


@pytest.mark.parametrize("name", PLANS)
def test_a_good_plan_is_accepted(raw, name):
    assert load_plan(raw, PLANS[name])[0] != BAD_PLAN


@pytest.mark.parametrize(("name", "changes", "check"), BROKEN)
def test_a_broken_plan_is_refused_by_its_check(raw, name, changes, check):
    words = list(PLANS[name])
    for word, value in changes.items():
        words[word] = value
    code, _, found = load_plan(raw, words)
    assert (code, found) == (BAD_PLAN, check)


def test_every_check_is_tested():
    source = (Path(__file__).parents[1] / "tflm_app/image/plan.c").read_text()
    numbers = {int(n) for n in re.findall(r"REQUIRE\((\d+),|STATUS_IMAGE_PLAN, \w+, (\d+)\)", source) for n in n if n}
    assert numbers == {check for *_, check in BROKEN}
