"""Random attributes and shapes: the reference against onnxruntime, and the facets against it."""

from __future__ import annotations

import numpy as np
import onnx_nodes_sampling  # noqa: F401  (its nodes)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cuvilc.dialect.op import OPS, ShapeError, sample
from cuvilc.dialect.ops import resize as resizing
from cuvilc.dialect.ops import sampling
from cuvilc.dialect.ops._windows import window_counts
from tests.dialect.ops.one_op import build, operand_arrays, operand_types, result_types, run
from tests.dialect.ops.onnx_nodes import NODES, expected
from tests.dialect.ops.slow_notation import lower

few = settings(max_examples=20, deadline=None, derandomize=True)
small = st.integers(1, 5)


def check(name, *operands, **attrs):
    """Reference, facets and onnxruntime agree; attributes that do not fit are skipped."""
    declared, drawn = OPS[name], sample(*operands, **attrs)
    types = operand_types(drawn)
    try:
        (result,) = result_types(name, types, **attrs)
    except ShapeError:
        assume(False)
    arrays = operand_arrays(name, drawn)
    (ours,) = run(build(name, types, attrs), arrays)
    full = declared.complete(attrs)
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(lower(declared, arrays, full, result), ours, **near)
    if name in NODES:
        (theirs,) = expected(NODES[name](arrays, full))
        np.testing.assert_allclose(ours, theirs, **near)


def pairs(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def windows(draw, kernel):
    """Window attributes whose padding is less than the kernel, as onnxruntime demands."""
    pads = [tuple(draw(st.integers(0, k - 1)) for k in kernel) for _ in range(2)]
    return {
        "strides": draw(pairs(1, 3)), "pads_begin": pads[0], "pads_end": pads[1],
        "dilations": draw(pairs(1, 2)),
    }  # fmt: skip


@few
@given(st.data(), pairs(3, 6), pairs(1, 3), st.booleans(), st.booleans())
def test_pools(data, size, kernel, ceil_mode, include):
    attrs = {"kernel": kernel, "ceil_mode": ceil_mode, **data.draw(windows(kernel))}
    x = f"float32[1,2,{size[0]},{size[1]}]"
    check("ai.max_pool", x, **attrs)
    check("ai.max_pool_index", x, by_columns=include, **attrs)
    check("ai.avg_pool", x, count_include_pad=include, **attrs)
    check("ai.lp_pool", x, p=2, **attrs)


@few
@given(st.data(), pairs(2, 5), pairs(1, 3), st.integers(1, 2))
def test_conv(data, size, kernel, groups):
    spatial = f"{size[0]},{size[1]}"
    check(
        "ai.conv", f"float32[1,{2 * groups},{spatial}]",
        f"float32[{2 * groups},2,{kernel[0]},{kernel[1]}]", f"float32[{2 * groups}]",
        groups=groups, **data.draw(windows(kernel)),
    )  # fmt: skip


@few
@given(st.data(), pairs(1, 4), pairs(1, 3), st.integers(1, 2))
def test_conv_transpose(data, size, kernel, groups):
    attrs = data.draw(windows(kernel))
    extra = tuple(data.draw(st.integers(0, s - 1)) for s in attrs["strides"])
    check(
        "ai.conv_transpose", f"float32[1,{2 * groups},{size[0]},{size[1]}]",
        f"float32[{2 * groups},2,{kernel[0]},{kernel[1]}]",
        groups=groups, output_padding=extra, **attrs,
    )  # fmt: skip


@settings(few, max_examples=60)
@given(
    pairs(1, 6), pairs(1, 8), st.sampled_from(resizing.MODES),
    st.sampled_from(resizing.COORDINATES), st.sampled_from(resizing.NEAREST), st.booleans(),
    st.one_of(st.none(), st.sampled_from([0.5, 0.6, 1.3, 1.5, 2.0, 3.0])),
)  # fmt: skip
def test_resize(size, target, mode, coordinate, nearest, outside, scale):
    scales = None
    if scale is not None:
        scales = (1.0, 1.0, scale, 1.0)
        target = (int(np.float32(size[0]) * np.float32(scale)), size[1])
        assume(target[0] > 0)
    check(
        "ai.resize", f"float32[1,1,{size[0]},{size[1]}]", sizes=(1, 1, *target), scales=scales,
        mode=mode, coordinate=coordinate, nearest=nearest,
        exclude_outside=outside and mode == "cubic",
    )  # fmt: skip


@few
@given(pairs(1, 4), pairs(0, 6), pairs(0, 6), st.sampled_from(["constant", "edge", "wrap"]))
def test_pad(size, before, after, mode):
    check("ai.pad", f"float32[{size[0]},{size[1]}]", before=before, after=after, mode=mode)


@few
@given(st.integers(1, 5), st.data())
def test_pad_reflect(size, data):
    before, after = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    check("ai.pad", f"float32[{size}]", before=(before,), after=(after,), mode="reflect")


@few
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), st.data())
def test_reshape(shape, data):
    count, target = int(np.prod(shape)), []
    while count > 1 and len(target) < 3:
        divisors = [d for d in range(1, count + 1) if count % d == 0]
        target.append(data.draw(st.sampled_from(divisors)))
        count //= target[-1]
    spelled = ",".join(map(str, shape))
    check("ai.reshape", f"float32[{spelled}]", shape=(*target, count))


@few
@given(st.integers(1, 9), st.data())
def test_slice(size, data):
    start = data.draw(st.integers(0, size - 1))
    step = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    room = (size - 1 - start) // step + 1 if step > 0 else start // -step + 1
    length = data.draw(st.integers(0, room))
    check("ai.slice", f"float32[{size}]", starts=(start,), steps=(step,), sizes=(length,))


@few
@given(st.data(), small, small, small, st.booleans(), st.booleans())
def test_matmul(data, m, n, k, transpose_a, transpose_b):
    batches = data.draw(st.sampled_from([("", ""), ("2,", ""), ("2,1,", "3,"), ("", "1,")]))
    a = (k, m) if transpose_a else (m, k)
    b = (n, k) if transpose_b else (k, n)
    spelled = [f"float32[{s}{x},{y}]" for s, (x, y) in zip(batches, (a, b), strict=True)]
    check("ai.matmul", *spelled, transpose_a=transpose_a, transpose_b=transpose_b)


@few
@given(
    pairs(1, 5), pairs(1, 3), st.sampled_from(resizing.MODES), st.sampled_from(sampling.PADDINGS),
    st.booleans(),
)  # fmt: skip
def test_grid_sample(size, out, mode, padding, align):
    check(
        "ai.grid_sample", f"float32[1,2,{size[0]},{size[1]}]", f"float32[1,{out[0]},{out[1]},2]",
        mode=mode, padding=padding, align_corners=align,
    )  # fmt: skip


@few
@given(
    pairs(1, 6), pairs(1, 3), st.integers(0, 3), st.sampled_from([0.5, 1.0]), st.booleans(),
    st.booleans(), st.data(),
)  # fmt: skip
def test_regions(size, output, ratio, scale, maximum, half_pixel, data):
    corner = st.floats(-3, 12, width=16)
    rois = np.array([[data.draw(corner) for _ in range(4)] for _ in range(2)], np.float32)
    x = f"float32[2,2,{size[0]},{size[1]}]"
    check(
        "ai.roi_align", x, rois, np.array([1, 0]), output=output, ratio=ratio, scale=scale,
        maximum=maximum, half_pixel=half_pixel,
    )  # fmt: skip
    boxes = np.concatenate([[[1], [0]], np.abs(rois)], 1).astype(np.float32)
    check("ai.max_roi_pool", x, boxes, output=output, scale=scale)


@few
@given(st.data(), pairs(2, 6), pairs(1, 3))
def test_columns(data, image, kernel):
    attrs = data.draw(windows(kernel))
    try:
        counts = window_counts(image, kernel, **attrs)
    except ShapeError:
        assume(False)
    columns = f"float32[1,{2 * kernel[0] * kernel[1]},{counts[0] * counts[1]}]"
    check("ai.col2im", columns, image=image, kernel=kernel, **attrs)
    groups, places = data.draw(st.integers(1, 2)), kernel[0] * kernel[1]
    out = f"{counts[0]},{counts[1]}"
    check(
        "ai.deform_columns", f"float32[1,2,{image[0]},{image[1]}]",
        f"float32[1,{groups * places * 2},{out}]", f"float32[1,{groups * places},{out}]",
        kernel=kernel, groups=groups, **attrs,
    )  # fmt: skip


@few
@given(pairs(1, 5), st.integers(1, 9), st.integers(-9, 9), st.booleans())
def test_tensor_scatter(size, room, start, circular):
    cache, new = max(room, size[0]), size[0]
    start = start if circular else abs(start) % (cache - new + 1)
    check(
        "ai.tensor_scatter", f"float32[2,{cache},3]", f"float32[2,{new},3]",
        np.array([start, start // 2]), axis=1, circular=circular,
    )  # fmt: skip


@few
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=9, unique=True), st.data())
def test_lookup(keys, data):
    x = np.array(data.draw(st.lists(st.integers(-21, 21), max_size=9)), np.int64)
    check(
        "ai.lookup", x, np.array(sorted(keys)), np.arange(len(keys), dtype=np.float32),
        np.array(-1, np.float32),
    )  # fmt: skip
