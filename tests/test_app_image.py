"""What the device does with an image that is not as it should be: it refuses with a reason and executes nothing."""

import random
import struct
import zlib

import numpy as np
import pytest
from app_library import SANITIZE
from oracles import random_pixels
from test_app_link import Raw
from tiny_model import SHAPE, tiny_image

from converters.device_image import DeviceImage
from converters.errors import UserError
from pipeline.targets import client
from pipeline.targets.boards import open_board
from pipeline.targets.link import Refused


def load(raw: Raw, data: bytes) -> int:
    """The status code of loading these bytes, 0 when they were accepted."""
    raw.command(client.LOAD_BEGIN, struct.pack("<II", len(data), zlib.crc32(data)))
    for at in range(0, len(data), 60_000):
        raw.command(client.LOAD_DATA, struct.pack("<I", at) + data[at : at + 60_000])
    try:
        raw.command(client.LOAD_END)
    except Refused as e:
        return e.code
    return 0


def with_crc(data: bytearray) -> bytes:
    data[12:16] = bytes(4)
    data[12:16] = zlib.crc32(data).to_bytes(4, "little")
    return bytes(data)


@pytest.fixture
def raw():
    board = Raw("--memory", "16")
    yield board
    board.transport.close()


@pytest.mark.parametrize("size", [0, 3, 31, 32, 200, 5000])
def test_truncated_image(raw, size):
    data = tiny_image()[:size]
    assert load(raw, data) in (6, 9)
    with pytest.raises(UserError, match=r"is not a device image|is truncated"):
        DeviceImage.read(data, "x.zimg")


def test_every_flipped_bit_is_noticed(raw):
    image = tiny_image()
    picks = [*range(0, 8 * 64), *random.Random(0).sample(range(8 * len(image)), 200)]
    for bit in picks:
        data = bytearray(image)
        data[bit // 8] ^= 1 << bit % 8
        assert load(raw, bytes(data)) in (6, 7, 8, 9), bit
        with pytest.raises(UserError, match=r"^x\.zimg "):
            DeviceImage.read(bytes(data), "x.zimg")


@pytest.mark.parametrize(
    ("at", "code", "sentence"),
    [(4, 7, "image version 255"), (6, 8, "was made for runner 255")],
)
def test_other_version_or_runner(raw, at, code, sentence):
    data = bytearray(tiny_image())
    data[at] = 255
    assert load(raw, with_crc(data)) == code
    with pytest.raises(UserError, match=sentence):
        DeviceImage.read(with_crc(data))


def sections(image: bytes):
    (count,) = struct.unpack_from("<I", image, 16)
    return {
        tag: (at, size) for tag, at, size, _ in (struct.unpack_from("<4sIII", image, 32 + 16 * i) for i in range(count))
    }


@pytest.mark.parametrize("tag", [b"TFLT", b"PLAN", b"TRAN", b"LOSS", b"INPT"])
def test_missing_section(raw, tag):
    data = bytearray(tiny_image())
    data[data.index(tag) + 3] = ord("?")
    assert load(raw, with_crc(data)) == 10
    with pytest.raises(UserError, match="lacks the sections"):
        DeviceImage.read(with_crc(data))


@pytest.mark.parametrize("value", [124, -124, -128])
def test_weights_beyond_the_headroom(raw, value):
    image = DeviceImage.read(tiny_image())
    data = bytearray(image.raw)
    data[sections(image.raw)[b"TFLT"][0] + image.segments[1].offset + 3] = value & 0xFF
    assert refusal(raw, with_crc(data)) == (12, 1, 3)


def refusal(raw: Raw, data: bytes) -> tuple[int, int, int]:
    raw.command(client.LOAD_BEGIN, struct.pack("<II", len(data), zlib.crc32(data)))
    raw.command(client.LOAD_DATA, bytes(4) + data)
    with pytest.raises(Refused) as refused:
        raw.command(client.LOAD_END)
    return refused.value.code, refused.value.a, refused.value.b


LUT = 32  # where the pixel table begins in INPT


@pytest.mark.parametrize(
    ("tag", "word", "value", "code", "check"),
    [
        (b"TRAN", 0, 1, 12, 4),  # another number of weights than the segments have
        (b"TRAN", 1, 0, 12, 1),
        (b"TRAN", 1, 64, 12, 1),
        (b"TRAN", 2, 5, 12, 1),  # more segments than the section holds
        (b"TRAN", 2, 2**31, 12, 1),
        (b"TRAN", 2, 0, 12, 4),
        (b"TRAN", 4, 2**32 - 1, 12, 2),
        (b"TRAN", 5, 2**32 - 1, 12, 2),
        (b"TRAN", 4, 1, 12, 5),  # not where a filter begins
        (b"TRAN", 5, 7, 12, 5),  # half a filter
        (b"LOSS", 0, 1, 10, 0),
        (b"LOSS", 0, 11, 10, 0),  # classes that the network does not have
        (b"LOSS", 1, 1 << 28, 10, 0),
        (b"LOSS", 4, (1 << 24) - 1, 10, 0),  # E[0] is not one
        (b"LOSS", 9, 1 << 24, 10, 0),  # a table that rises
        (b"INPT", 0, 10, 10, 0),
        (b"INPT", 1, 8, 10, 0),
        (b"INPT", 2, 4, 10, 0),
        (b"INPT", 5, LUT + 4 * 6 + 1, 10, 0),  # the table would end beyond the section
        (b"INPT", 5, 2**32 - 1, 10, 0),
    ],
)
def test_inconsistent_section(raw, tag, word, value, code, check):
    data = bytearray(tiny_image())
    at = sections(bytes(data))[tag][0] + 4 * word
    data[at : at + 4] = value.to_bytes(4, "little")
    found = refusal(raw, with_crc(data))
    assert found[0] == code and (code != 12 or found[2] == check)
    if code == 10:
        assert found[1].to_bytes(4, "little") == tag


def test_a_filter_is_trained_once(raw):
    data = bytearray(tiny_image())
    at = sections(bytes(data))[b"TRAN"][0] + 16
    data[at + 8 : at + 16] = data[at : at + 8]
    assert refusal(raw, with_crc(data)) == (12, 1, 6)


@pytest.mark.parametrize("field", ["offset", "size"])
@pytest.mark.parametrize("tag", [b"TFLT", b"PLAN", b"TRAN", b"LOSS", b"INPT"])
def test_section_out_of_bounds(raw, tag, field):
    data = bytearray(tiny_image())
    entry = data.index(tag) + (4 if field == "offset" else 8)
    for value in (2**32 - 64, len(data) + 64, len(data) // 64 * 64 + 64):
        data[entry : entry + 4] = value.to_bytes(4, "little")
        assert refusal(raw, with_crc(data))[:2] == (10, int.from_bytes(tag, "little"))


@pytest.mark.parametrize("tag", [b"TFLT", b"PLAN", b"TRAN", b"LOSS"])
def test_sections_do_not_overlap(raw, tag):
    """Weights are written in place: a model that reaches into the plan could change it after it was checked."""
    data = bytearray(tiny_image())
    entry = data.index(tag)
    size = int.from_bytes(data[entry + 8 : entry + 12], "little")
    data[entry + 8 : entry + 12] = (size + 128).to_bytes(4, "little")
    assert refusal(raw, with_crc(data))[0] == 10


def test_transfer_is_checked(raw):
    """The file's CRC-32 in LOAD_BEGIN is checked even where the image's own would pass."""
    data = tiny_image()
    raw.command(client.LOAD_BEGIN, struct.pack("<II", len(data), zlib.crc32(data) ^ 1))
    raw.command(client.LOAD_DATA, bytes(4) + data)
    with pytest.raises(Refused) as refused:
        raw.command(client.LOAD_END)
    assert (refused.value.code, refused.value.a) == (9, zlib.crc32(data))


def test_no_word_of_an_image_makes_the_board_misbehave():
    """Any word of the sections that the device trusts, replaced by an edge value, under a valid CRC.

    The image is refused, or it runs, probes and updates without a sanitizer's complaint (test_sanitizers.py).
    """
    image, rng = tiny_image(), random.Random(1)
    spans = sections(image)
    targets = [
        (at + 4 * i)
        for tag in (b"PLAN", b"TRAN", b"LOSS", b"INPT")
        for at, size in [spans[tag]]
        for i in range(size // 4)
    ]
    targets = targets[: 8 + spans[b"PLAN"][1] // 4] + rng.sample(targets, 60) + list(range(16, 32 + 16 * len(spans), 4))
    values = [0, 1, 2, 7, 127, 128, 255, 256, 2**15, 2**15 + 1, 2**16, 2**24, 2**27, 2**31 - 1, 2**31, 2**32 - 1]
    accepted = refused = 0
    raw = Raw("--memory", "16", "--threads", "1")
    pixels = random_pixels(2, SHAPE, 0)
    for at in targets:
        data = bytearray(image)
        data[at : at + 4] = rng.choice(values).to_bytes(4, "little")
        if load(raw, with_crc(data)):
            refused += 1
            continue
        accepted += 1
        raw.command(client.PIXELS, bytes(4) + pixels.tobytes())
        raw.command(client.LABELS, struct.pack("<IHH", 0, 0, 1))
        raw.command(client.SELECT, struct.pack("<II", 0, 1))
        try:
            raw.command(client.PROBE, struct.pack("<QII", 5, 1, 0))
            raw.command(client.UPDATE, struct.pack("<QIIQi", 1, 1, 1, 9, 1 << 18))
        except Refused:
            pass
    assert accepted > 10 and refused > 100
    raw.transport.close()
    assert raw.transport._process.returncode == 0


def test_host_refuses_before_anything_is_sent():
    data = bytearray(tiny_image())
    data[-1] ^= 1
    with pytest.raises(UserError, match="is damaged"):
        open_board("native", bytes(data), sanitize=SANITIZE)


def test_adapted_weights_travel_in_a_new_image():
    image = DeviceImage.read(tiny_image())
    weights = image.get_weights()
    weights[::3] = -weights[::3]
    adapted = image.with_weights(weights)
    assert len(adapted) == len(image.tflite) and adapted != image.tflite
    again = np.concatenate([np.frombuffer(adapted, np.int8, s.count, s.offset) for s in image.segments])
    np.testing.assert_array_equal(again, weights)
