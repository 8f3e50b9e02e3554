"""What the shape rules refuse, and that their messages say what is wrong."""

from __future__ import annotations

import re

import pytest

from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import TensorType
from tests.dialect.ops.one_op import parse_type, result_types

WINDOW = {"strides": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0), "dilations": (1, 1)}
POOL = {**WINDOW, "kernel": (2, 2)}
X4 = "float32[1,4,5,5]"

REFUSALS = [
    ("elemwise_add", ("float32[2]", "float32[3]"), {}, "sizes 2 and 3 do not broadcast"),
    ("elemwise_add", ("float32[2]", "int32[2]"), {}, "dtypes float32 and int32 differ"),
    ("elemwise_add", ("float32[2]", "float32[1]"), {"broadcast": False}, "broadcast = false"),
    ("elemwise_add", ("float32[2]", "float32[2]"), {"rounding": "up"}, "'rtne', 'rtz', not 'up'"),
    ("elemwise_mul", ("float32[2]", "float32[2]"), {"rounding": "rtz"}, "one of 'rtne', not 'rtz'"),
    ("elemwise_add", ("bool[2]", "bool[2]"), {}, "must be numbers, not bool"),
    ("less", ("float32[2]", "int32[2]"), {}, "dtypes float32 and int32 differ"),
    ("where", ("int32[2]", "float32[2]", "float32[2]"), {}, "condition must be bool, not int32"),
    ("cast", ("float32[2]",), {"dtype": "float8"}, "not 'float8'"),
    ("cast", ("float32[2]",), {"dtype": "float8_e5m2"}, "not 'float8_e5m2'"),
    ("narrow", ("float32[2]",), {"dtype": "float16"}, "not 'float16'"),
    (
        "narrow", ("float32[2]",), {"dtype": "float8_e5m2", "rounding": "even"},
        "'nearest', 'up', 'down', not 'even'",
    ),
    ("bitcast", ("float32[2]",), {"dtype": "int64"}, "float32 has 32 bits, int64 has 64"),
    ("bitcast", ("int8[2]",), {"dtype": "uint4"}, "int8 has 8 bits, uint4 has 4"),
    ("bitcast", ("int4[2]",), {"dtype": "uint4"}, "cast int4 to its unsigned kin first"),
    ("elemwise_add", ("int4[2]", "int4[2]"), {}, "int4 can be moved, but not computed with"),
    ("equal", ("float8_e5m2[2]", "float8_e5m2[2]"), {}, "can be moved, but not computed with"),
    ("prelu", ("float32[3]", "float32[2,3]"), {}, "slope [2,3] must broadcast to"),
    ("logical_and", ("int32[2]", "int32[2]"), {}, "lhs must be bool, not int32"),
    ("bit_and", ("float32[2]", "float32[2]"), {}, "must be of an integer dtype, not float32"),
    ("exp", ("int32[2]",), {}, "x must be float32 or float64 or float16 or bfloat16, not int32"),
    ("gelu", ("float32[2]",), {"approximate": "fast"}, "'none', 'tanh', not 'fast'"),
    ("reshape", ("float32[2,3]",), {"shape": (4, 2)}, "[2,3] has 6 elements, [4,2] has 8"),
    ("reshape", ("float32[n,2]",), {"shape": (-1,)}, "shape must not be negative: [-1]"),
    ("transpose", ("float32[2,3]",), {"perm": (0, 0)}, "not a permutation of the axes of [2,3]"),
    ("broadcast_to", ("float32[2]",), {"shape": (3,)}, "[2] does not broadcast to [3]"),
    ("broadcast_to", ("float32[1,2]",), {"shape": (2,)}, "[1,2] does not broadcast to [2]"),
    (
        "slice", ("float32[5]",), {"starts": (0,), "steps": (1,), "sizes": (6,)},
        "slice of axis 0 reads element 5 of 5",
    ),
    (
        "slice", ("float32[5]",), {"starts": (1,), "steps": (-1,), "sizes": (3,)},
        "slice of axis 0 reads element -1 of 5",
    ),
    ("slice", ("float32[5]",), {"starts": (0, 1), "steps": (1,), "sizes": (1,)}, "starts needs 1"),
    ("concat", ("float32[2,3]", "float32[3,3]"), {"axis": 1}, "axis 0 of concat's operands: 2"),
    ("concat", ("float32[2]",), {"axis": 1}, "axis 1 is not in 0..0"),
    ("pad", ("float32[2]",), {"before": (-1,), "after": (0,)}, "a negative pad is a slice"),
    ("pad", ("float32[0]",), {"before": (1,), "after": (0,), "mode": "edge"}, "axis 0 is empty"),
    ("gather", ("float32[2]", "float32[2]"), {}, "indices must be int32 or int64, not float32"),
    ("gather_nd", ("float32[2]", "int64[3,2]"), {}, "rows of 2 and batch_dims 0 do not fit"),
    ("gather_nd", ("float32[2]", "int64[n]"), {}, "must be a constant, not n"),
    (
        "scatter_elements", ("float32[3]", "int64[2]", "float32[3]"), {},
        "updates must have shape [2], not [3]",
    ),
    (
        "scatter_nd", ("float32[3]", "int64[2,1]", "float32[2]"), {"reduction": "sub"},
        "reduction must be one of 'none', 'add', 'mul', 'max', 'min', not 'sub'",
    ),
    ("resize", ("float32[1,4]",), {"sizes": (1, 2), "mode": "lanczos"}, "mode must be one of"),
    ("resize", ("float32[0]",), {"sizes": (2,)}, "an empty axis cannot be resized to 2"),
    ("depth_to_space", ("float32[1,6,2,2]",), {"block": 2}, "6 channels are not a multiple of 2²"),
    ("reduce_sum", ("float32[2,3]",), {"axes": (1, 0), "keepdims": True}, "axes must ascend"),
    ("reduce_sum", ("bool[2]",), {"axes": (0,), "keepdims": True}, "must be numbers, not bool"),
    ("arg_max", ("float32[0]",), {"axis": 0, "keepdims": True}, "axis 0 of [0] is empty"),
    ("top_k", ("float32[3]",), {"k": 4, "axis": 0}, "k = 4 exceeds the 3 of axis 0"),
    ("softmax", ("float32[3]",), {"axis": -1}, "axis -1 is not in 0..0 (a negative one is"),
    ("matmul", ("float32[2,3]", "float32[4,2]"), {}, "a [2,3] has 3 columns, b [4,2] has 4 rows"),
    ("matmul", ("float32[3]", "float32[3,2]"), {"transpose_a": True}, "of a vector has no meaning"),
    ("matmul", ("float32[n]", "float32[n + 1,2]"), {}, "has n columns"),
    ("matmul_integer", ("float32[2,3]", "int8[3,2]"), {}, "a must be int8 or uint8, not float32"),
    ("conv", (X4, "float32[2,3,3,3]"), WINDOW, "channels of x and those of w in 1 group(s)"),
    ("conv", (X4, "float32[3,2,1,1]"), {**WINDOW, "groups": 2}, "3 output channels do not divide"),
    ("conv", (X4, "float32[2,4,9,9]"), WINDOW, "a window of 9 (dilation 1) does not fit 5"),
    ("conv", (X4, "float32[2,4,1,1]", "float32[3]"), WINDOW, "bias must have shape [2], not [3]"),
    ("conv", ("float32[1,4]", "float32[2,4]"), WINDOW, "x must be [N, C, 1 to 3 spatial sizes]"),
    ("conv", (X4, "float32[2,4,1,1]"), {**WINDOW, "strides": (0, 1)}, "strides must be 1 or more"),
    ("conv", (X4, "float32[2,4,1,1]"), {**WINDOW, "out_layout": "NHWC"}, "unknown layout 'NHWC'"),
    ("conv_transpose", (X4, "float32[3,2,1,1]"), WINDOW, "channels of x and of w: 4 and 3 differ"),
    ("max_pool", (X4,), {**POOL, "kernel": (2,)}, "kernel needs 2 entries, not 1"),
    ("avg_pool", ("int32[1,4,5,5]",), POOL, "x must be float32"),
    ("layer_norm", ("float32[2,3]", "float32[2]"), {"axis": 1}, "must broadcast to"),
    ("layer_norm", ("float32[2,3]", "float32[2,3]"), {"axis": 1}, "the normalised axes [3]"),
    ("group_norm", (X4, "float32[4]", "float32[4]"), {"groups": 3}, "4 channels do not divide"),
    (
        "attention", ("float32[1,3,2,4]", "float32[1,2,2,4]", "float32[1,2,2,4]"), {"scale": 1.0},
        "3 query heads are not a multiple of 2 key heads",
    ),
    (
        "attention",
        ("float32[1,2,2,4]", "float32[1,2,2,4]", "float32[1,2,2,4]", "int32[2,2]"),
        {"scale": 1.0}, "mask must be bool or float32, not int32",
    ),
    (
        "rotary_embedding", ("float32[1,2,3,4]", "float32[1,3,3]", "float32[1,3,3]"),
        {"rotary_dim": 6}, "rotary_dim 6 exceeds the 4 features of x",
    ),
    (
        "lstm", ("float32[5,2,3]", "float32[1,12,3]", "float32[1,16,4]"), {"hidden": 4},
        "w must have shape [1,16,3], not [1,12,3]",
    ),
    (
        "gru", ("float32[5,2,3]", "float32[1,12,3]", "float32[1,12,4]"),
        {"hidden": 4, "activations": ("Sigmoid",)}, "activations needs 2 entries, not 1",
    ),
    ("quantize_linear", ("float32[2,3]", "float32[2]", "int8[2]"), {}, "scale and axis 1 of x"),
    ("quantize_linear", ("float32[3]", "float32[]", "int32[]"), {}, "zero_point must be int8"),
    ("dequantize_linear", ("int8[4]", "float32[3]"), {"axis": 0, "block": 2}, "[2], not [3]"),
    ("fake_quantize", ("float32[4]", *["float32[]"] * 3), {}, "zero_point must be int8"),
    (
        "fake_quantize", ("float32[4]", "float32[4]", "int8[]", "float32[]"), {},
        "not one number: [4]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "attrs", "message"), REFUSALS)
def test_refusal(name, operands, attrs, message):
    with pytest.raises(ShapeError, match=re.escape(message)):
        result_types(f"ai.{name}", [parse_type(t) for t in operands], **attrs)


def test_blocked_channels_are_joined_at_whole_blocks():
    a, b = (TensorType((1, c, 2, 2), layout="NCHW16c") for c in (16, 20))
    (joined,) = result_types("ai.concat", [a, b], axis=1)
    assert joined == TensorType((1, 36, 2, 2), layout="NCHW16c")
    for operands, axis in (([b, a], 1), ([a, a], 2)):
        with pytest.raises(ShapeError, match="other than at whole blocks"):
            result_types("ai.concat", operands, axis=axis)
    with pytest.raises(ShapeError, match="different layouts"):
        result_types("ai.concat", [a, b.with_(layout="")], axis=1)


def test_layouts_of_elementwise_operands_agree():
    a = TensorType((1, 32, 2, 2), layout="NCHW16c")
    with pytest.raises(ShapeError, match=r"layouts \['NCHW16c', 'NCHW8c'\] differ"):
        result_types("ai.elemwise_add", [a, a.with_(layout="NCHW8c")])
