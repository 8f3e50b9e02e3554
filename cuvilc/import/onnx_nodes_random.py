"""Random numbers: deterministic, so that a package gives the same on every run and machine.

They follow from the node's attribute `seed`, or without one from the node's name, by ai.random_bits
(Philox4x32-10). Uniform numbers have 24 bits, of doubles 53; normal ones come of two uniform ones
(Box & Muller 1958), so that none is farther from the mean than 5.8 standard deviations, of doubles
8.6.
"""

from __future__ import annotations

import math
from zlib import crc32

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Shape
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import FLOATS

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_slice import sliced
from .onnx_tensors import DTYPES


def _seed(n: Node) -> int:
    given = n.attr("seed")
    if given is None or given != given:
        return crc32(f"{n.place} {n.label}".encode()) | 1 << 32  # apart from all given ones
    return int(np.float32(given).view(np.uint32))


def _uniform(n: Node, shape: Shape, dtype: str, stream: int = 0) -> ir.Value:
    """Numbers in [0, 1) in float64 if that is the dtype, else in float32."""

    def bits(number: int, kept: int) -> ir.Value:
        found = ai("random_bits", shape=shape, seed=_seed(n), stream=2 * stream + number)
        drop = n.constant(np.array(32 - kept, np.uint32))
        return cast(ai("shift_right", found, drop), wide)

    wide = "float64" if dtype == "float64" else "float32"
    if wide == "float32":
        high = bits(0, 24)
        return ai("elemwise_mul", high, scalar(2.0**-24, high))
    high, low = bits(0, 27), bits(1, 26)
    whole = ai("elemwise_add", ai("elemwise_mul", high, scalar(2.0**26, high)), low)
    return ai("elemwise_mul", whole, scalar(2.0**-53, whole))


def _spread(x: ir.Value, factor: float, shift: float) -> ir.Value:
    return ai("elemwise_add", ai("elemwise_mul", x, scalar(factor, x)), scalar(shift, x))


def _uniform_between(n: Node, shape: Shape, dtype: str) -> ir.Value:
    low, high = n.attr("low", 0.0), n.attr("high", 1.0)
    return cast(_spread(_uniform(n, shape, dtype), high - low, low), dtype)


def _normal(n: Node, shape: Shape, dtype: str) -> ir.Value:
    """√(-2 ln(1 - u)) · cos 2πv, so that the logarithm is of no 0."""
    u, v = (_uniform(n, shape, dtype, stream) for stream in (0, 1))
    rest = ai("elemwise_sub", scalar(1.0, u), u)
    radius = ai("sqrt", ai("elemwise_mul", ai("log", rest), scalar(-2.0, u)))
    wave = ai("cos", ai("elemwise_mul", v, scalar(2 * math.pi, v)))
    x = ai("elemwise_mul", radius, wave)
    return cast(_spread(x, n.attr("scale", 1.0), n.attr("mean", 0.0)), dtype)


_KINDS = {"RandomUniform": _uniform_between, "RandomNormal": _normal}


@importer(*_KINDS)
def random(n: Node) -> ir.Value:
    shape = n.ints("shape")
    if shape is None:
        raise ShapeError("the attribute `shape` is missing")
    return _drawn(n, n.op, shape, DTYPES[n.attr("dtype", 1)].name)


@importer(*(f"{name}Like" for name in _KINDS))
def random_like(n: Node) -> ir.Value:
    dtype = n.attr("dtype", 0)
    name = DTYPES[dtype].name if dtype else n.type(0).dtype
    return _drawn(n, n.op.removesuffix("Like"), n.shape(0), name)


def _drawn(n: Node, kind: str, shape: Shape, dtype: str) -> ir.Value:
    if dtype not in FLOATS:
        raise ShapeError(f"random numbers are floats, not {dtype}")
    return _KINDS[kind](n, shape, dtype)


@importer("Bernoulli")
def bernoulli(n: Node) -> ir.Value:
    """1 with the probability that the input says."""
    p = n[0]
    p = cast(p, "float64" if dtype_of(p) == "float64" else "float32")
    drawn = ai("less", _uniform(n, shape_of(p), dtype_of(p)), p)
    dtype = n.attr("dtype", 0)
    return cast(drawn, DTYPES[dtype].name if dtype else n.type(0).dtype)


@importer("Multinomial")
def multinomial(n: Node) -> ir.Value:
    """Of each row's unnormalised log-probabilities [B, C]: how many running sums a number passes.

    In float64, where u · total < total: the class of an exact 0 is never drawn.
    """
    if len(n.shape(0)) != 2:
        raise ShapeError(f"the input must be [batch, classes], not {n.shape(0)}")
    batch, classes = n.shape(0)
    count = n.attr("sample_size", 1)
    powers = ai("softmax", cast(n[0], "float64"), axis=1)
    sums = ai("cumsum", powers, axis=1, exclusive=False, reverse=False)
    last = sliced(sums, (0, classes - 1), (batch, 1))
    u = ai("elemwise_mul", _uniform(n, (batch, count), "float64"), last)
    passed = ai("less_equal", reshape(sums, (batch, 1, classes)), reshape(u, (batch, count, 1)))
    drawn = ai("reduce_sum", cast(passed, "int64"), axes=(2,), keepdims=False)
    return cast(drawn, DTYPES[n.attr("dtype", 6)].name)
