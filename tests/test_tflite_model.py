"""Reading and patching .tflite files: headroom, the index space, weights in and out."""

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from oracles import random_pixels, tflite_reference

from converters.errors import UserError
from converters.tflite_model import (
    add_headroom,
    check_trainable,
    io_spec,
    read_graph,
    read_weights,
    trainable_segments,
    weight_tensors,
    write_weights,
)

FIXTURES = Path(__file__).parent / "fixtures"
NETWORKS = ["resnet18_w8_32", "mobilenet_v2_035_32", "tiny"]


def load(name: str) -> bytes:
    return (FIXTURES / f"{name}.tflite").read_bytes()


def repack(tflite: bytes, edit) -> bytes:
    import flatbuffers

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite, 0))
    edit(model)
    builder = flatbuffers.Builder(len(tflite))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def groups(graph, tensor) -> np.ndarray:
    """Real weights [scale groups, n]."""
    w = graph.constant(tensor, np.int8).astype(np.float64)
    flat = np.moveaxis(w, tensor.axis, 0).reshape(len(tensor.scales), -1)
    return flat * tensor.scales.astype(np.float64)[:, None]


@pytest.mark.parametrize("mu_max", [1, 4, 16, 32])
@pytest.mark.parametrize("name", NETWORKS)
def test_headroom_keeps_the_network(name, mu_max):
    before, limit = load(name), 127 - mu_max
    after = add_headroom(before, mu_max)
    assert len(after) == len(before)
    old, new = read_graph(before), read_graph(after)
    shrunk = 0
    for (op, a), (_, b) in zip(weight_tensors(old), weight_tensors(new), strict=True):
        raw = old.constant(a, np.int8)
        peak = np.abs(np.moveaxis(raw, a.axis, 0).reshape(len(a.scales), -1).astype(int)).max(axis=1)
        assert np.abs(new.constant(b, np.int8).astype(int)).max() <= limit
        growth = b.scales.astype(np.float64) / a.scales
        assert (growth >= 1).all() and (growth <= 127 / limit * 1.000001).all()
        moved = np.abs(groups(new, b) - groups(old, a))
        assert (moved[peak <= limit] == 0).all(), "a group that has room was changed"
        # Half a step of rounding, or what clipping takes off the largest weights.
        bound = np.maximum(0.5 * b.scales, a.scales * mu_max)[:, None] * 1.000001
        assert (moved <= bound).all()
        # Never worse, in squares, than either of the two plain ways.
        steps = moved / a.scales.astype(np.float64)[:, None]
        w = groups(old, a) / a.scales.astype(np.float64)[:, None]
        clipped = ((np.clip(w, -limit, limit) - w) ** 2).sum(axis=1)
        full = 127 / limit
        scaled = ((np.clip(np.rint(w / full), -limit, limit) * full - w) ** 2).sum(axis=1)
        assert ((steps**2).sum(axis=1) <= np.minimum(clipped, scaled) + 1e-3).all()
        shrunk += int((peak > limit).sum())
        if len(op.inputs) > 2 and op.inputs[2] >= 0:
            x, y = old.tensors[op.inputs[2]], new.tensors[op.inputs[2]]
            real = old.constant(x, np.int32) * x.scales.astype(np.float64)
            again = new.constant(y, np.int32) * y.scales.astype(np.float64)
            assert (np.abs(real - again) <= 0.500001 * y.scales + 1e-6 * np.abs(real)).all()
            expected = new.tensors[op.inputs[0]].scales.astype(np.float64) * b.scales
            np.testing.assert_allclose(y.scales, expected, rtol=1e-6)
    assert shrunk > 0
    assert add_headroom(after, mu_max) == after


def test_headroom_hardly_changes_what_the_network_says():
    before = load("resnet18_w8_32")
    inputs = random_pixels(50, (32, 32, 3), 3).astype(np.int16) - 128
    a, b = (tflite_reference(t, inputs.astype(np.int8)).astype(int) for t in (before, add_headroom(before, 4)))
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.98


@pytest.mark.parametrize("name", NETWORKS)
def test_index_space_covers_every_weight_once(name):
    tflite = load(name)
    graph = check_trainable(tflite)
    segments = trainable_segments(graph)
    weights = read_weights(tflite, segments)
    assert weights.size == sum(np.prod(w.shape) for _, w in weight_tensors(graph))
    expected = [graph.constant(w, np.int8).ravel() for _, w in weight_tensors(graph)]
    np.testing.assert_array_equal(weights, np.concatenate(expected))
    flipped = write_weights(tflite, segments, -weights)
    np.testing.assert_array_equal(read_weights(flipped, segments), -weights)
    assert write_weights(flipped, segments, weights) == tflite


def test_scopes():
    graph = read_graph(load("mobilenet_v2_035_32"))
    count = {scope: len(trainable_segments(graph, scope)) for scope in ("all", "head", "depthwise", "pointwise")}
    assert count["head"] == 1 and count["depthwise"] == 17
    assert count["all"] == count["depthwise"] + count["pointwise"] + 1  # the first convolution is 3x3
    halves = trainable_segments(graph, "first-half") + trainable_segments(graph, "second-half")
    assert halves == trainable_segments(graph)
    with pytest.raises(UserError, match="choose one of all, head"):
        trainable_segments(graph, "tail")
    with pytest.raises(UserError, match="selects no layer"):
        trainable_segments(read_graph(load("resnet18_w8_32")), "depthwise")


def share_first_filter(model, other_scale: bool) -> None:
    """Make the second of two equally shaped convolutions use the buffer of the first."""
    sub = model.subgraphs[0]
    a, b = (sub.tensors[op.inputs[1]] for op in sub.operators[:2])
    assert list(a.shape) == list(b.shape)
    b.buffer = a.buffer
    b.quantization.scale = list(a.quantization.scale)
    if other_scale:
        b.quantization.scale[0] *= 2


def test_a_shared_filter_is_one_segment_or_refused():
    tflite = load("tiny")  # two convolutions of the same shape side by side
    shared = check_trainable(repack(tflite, lambda m: share_first_filter(m, other_scale=False)))
    assert len(trainable_segments(shared)) == len(trainable_segments(read_graph(tflite))) - 1
    clash = check_trainable(repack(tflite, lambda m: share_first_filter(m, other_scale=True)))
    with pytest.raises(UserError, match="are the same bytes under different scales"):
        trainable_segments(clash)


def test_headroom_of_a_shared_filter():
    shared = repack(load("tiny"), lambda m: share_first_filter(m, other_scale=False))
    after = read_graph(add_headroom(shared, 4))
    (_, a), (_, b) = list(weight_tensors(after))[:2]
    np.testing.assert_array_equal(a.scales, b.scales)
    assert np.abs(after.constant(a, np.int8).astype(int)).max() <= 123


def refusal(edit) -> str:
    with pytest.raises(UserError) as error:
        check_trainable(repack(load("tiny"), edit), "x.tflite")
    assert str(error.value).startswith("x.tflite") and str(error.value).rstrip().endswith(".")
    return str(error.value)


def test_refusals_of_weights():
    def tensor(model):
        sub = model.subgraphs[0]
        return sub.tensors[sub.operators[0].inputs[1]]

    def minus_128(model):
        buffer = model.buffers[tensor(model).buffer]
        buffer.data = buffer.data.copy()
        buffer.data[5] = 0x80

    def zero_point(model):
        q = tensor(model).quantization
        q.zeroPoint = [3] * len(q.zeroPoint)

    assert "contain -128" in refusal(minus_128)
    assert "have a zero point" in refusal(zero_point)
    assert "operator 1 of 5, CONV_2D" in refusal(zero_point)


def test_what_is_no_tflite_is_refused():
    for data in (b"", b"\x89PNG\r\n\x1a\n" + bytes(50), bytes(8), load("tiny")[:300], b"\x1c\0\0\0TFL3" + bytes(200)):
        with pytest.raises(UserError, match=r"^x.tflite (is not a TensorFlow Lite model|is damaged|has no network)"):
            check_trainable(data, "x.tflite")


def test_io_spec():
    spec = io_spec(read_graph(load("mobilenet_v2_035_32")))
    assert spec.input_shape == (32, 32, 3) and spec.classes == 10
    assert 0 < spec.output_scale < 1 and spec.input_scale == pytest.approx(2 / 255, rel=0.01)
