"""Fourier transforms of signals, and the weights of mel spectrograms."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import numpy_dtype

from . import onnx_fourier as fourier
from ._table import importer
from .onnx_node import DataDependent, Node, ai, axis, cast, dtype_of, reshape, shape_of
from .onnx_nodes_slice import sliced
from .onnx_tensors import DTYPES
from .onnx_values import Val


@importer("DFT")
def dft(n: Node) -> ir.Value:
    rank = len(n.shape(0))
    at = n.attr("axis", 1 if n.opset < 20 else -2)
    if n.opset >= 20 and n.has(2):
        (at,) = n.static(2, "the axis is")
    at = axis(at, rank)
    if at == rank - 1:
        raise ShapeError("the last axis holds real and imaginary parts; it is not transformed")
    backward, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    size = n.shape(0)[at]
    if n.has(1):
        (size,) = n.dims(1, "the transform's length is")
    elif backward and onesided:
        size = 2 * (size - 1)
    if not isinstance(size, int):
        raise DataDependent("the transform's length is")
    _check_length(size)
    x, perm = _lines(n[0], at)
    x = _fitted(x, size // 2 + 1 if backward and onesided else size)
    if backward and onesided:
        y = fourier.inverse_real(n, x, size)
    else:
        y = fourier.inverse(n, x) if backward else fourier.forward(n, x, onesided)
    others = tuple(n.shape(0)[p] for p in perm[:-2])
    y = reshape(y, (*others, *shape_of(y)[1:]))
    back = tuple(int(p) for p in np.argsort(perm))
    return cast(ai("transpose", y, perm=back), n.type(0).dtype)


def _check_length(length: int) -> None:
    if not 1 <= length <= fourier.LONGEST:
        raise ShapeError(f"a transform's length must be 1 to {fourier.LONGEST}, not {length}")


def _lines(x: ir.Value, at: int) -> tuple[ir.Value, tuple[int, ...]]:
    """[.., n, .., parts] as [B, parts, n] in float32 or float64, and the order of its axes."""
    sizes = shape_of(x)
    if sizes[-1] not in (1, 2):
        raise ShapeError(f"the last axis holds 1 or 2 parts, not {sizes[-1]}")
    perm = (*(a for a in range(len(sizes) - 1) if a != at), len(sizes) - 1, at)
    x = cast(x, dtype_of(x) if dtype_of(x) == "float64" else "float32")
    x = ai("transpose", x, perm=perm)
    return reshape(x, (D.product(shape_of(x)[:-2]), *shape_of(x)[-2:])), perm


def _fitted(x: ir.Value, length: int) -> ir.Value:
    """The signal cut to `length`, or with zeros after it."""
    batch, parts, size = shape_of(x)
    if not isinstance(size, int):
        raise DataDependent("the signal's length is")
    if size > length:
        return sliced(x, (0, 0, 0), (batch, parts, length))
    if size == length:
        return x
    after = (0, 0, length - size)
    return ai("pad", x, before=(0, 0, 0), after=after, mode="constant", value=0.0)


@importer("STFT")
def stft(n: Node) -> ir.Value:
    """Frames [B, F, L] of the signal, times the window, each transformed."""
    batch, size, parts = n.shape(0) if len(n.shape(0)) == 3 else (*n.shape(0), 1)
    (step,) = n.static(1, "the step of frames is")
    if n.has(3):
        (length,) = n.static(3, "the length of frames is")
    elif n.has(2):
        (length,) = n.shape(2)  # type: ignore[assignment]
    else:
        raise ShapeError("a window or a frame length is needed")
    if not isinstance(length, int):
        raise DataDependent("the length of frames is")
    _check_length(length)
    if step < 1:
        raise ShapeError(f"frames every {step}")
    if n.has(2):
        n.require_equal(n.shape(2)[0], length)
    dtype = "float64" if n.type(0).dtype == "float64" else "float32"
    frames = D.floordiv(size - length, step) + 1
    x = reshape(cast(n[0], dtype), (batch, size, parts))
    shape = (frames, length)
    first = ai("iota", shape=shape, axis=0, dtype="int64", start=0, step=step)
    place = ai("iota", shape=shape, axis=1, dtype="int64", start=0, step=1)
    x = ai("gather", x, ai("elemwise_add", first, place), axis=1)
    if n.has(2):
        x = ai("elemwise_mul", x, reshape(cast(n[2], dtype), (length, 1)))
    x = reshape(ai("transpose", x, perm=(0, 1, 3, 2)), (batch * frames, parts, length))
    y = fourier.forward(n, x, bool(n.attr("onesided", 1)))
    y = ai("transpose", y, perm=(0, 2, 1))
    return cast(reshape(y, (batch, frames, *shape_of(y)[1:])), n.type(0).dtype)


@importer("MelWeightMatrix")
def mel_weight_matrix(n: Node) -> Val:
    """Triangles over the frequencies, evenly spaced in mel.    (Davis & Mermelstein 1980, fig. 1)

    As onnx's reference computes it: mel = 2595 log₁₀(1 + f/700), corners rounded down to bins.
    """
    words = ("the number of mel bins is", "the transform's length is", "the sample rate is")
    bins, length, rate = (int(n.number(i, what)) for i, what in enumerate(words))
    low, high = (n.number(i, "an edge frequency is") for i in (3, 4))
    rows = length // 2 + 1
    _check_length(length)
    if not 0 <= bins * rows <= 64 * fourier.LONGEST:
        raise ShapeError(f"{bins} mel bins of {rows} frequencies")
    if rate < 1 or not 0 <= low <= high < float("inf"):
        raise ShapeError(f"{low} to {high} Hz of {rate}")
    low_mel, high_mel = (2595 * np.log1p(f / 700) / np.log(10) for f in (low, high))
    mels = low_mel + np.arange(bins + 2) * ((high_mel - low_mel) / (bins + 2))
    corners = (length + 1) * (700 * np.expm1(mels / 2595 * np.log(10))) // rate
    if corners.max() >= rows:
        raise ShapeError(f"edges {low} to {high} Hz lie outside the spectrum of {rate} Hz")
    matrix, row = np.zeros((rows, bins)), np.arange(rows)
    for i, (left, centre, right) in enumerate(
        zip(corners[:-2], corners[1:-1], corners[2:], strict=True)
    ):
        rising, falling = (row >= left) & (row <= centre), (row >= centre) & (row < right)
        up = (row - left) / (centre - left) if centre > left else np.ones(rows)
        matrix[:, i] = np.where(rising, up, 0)
        if right > centre:
            matrix[:, i] = np.where(falling, (right - row) / (right - centre), matrix[:, i])
    dtype = DTYPES[n.attr("output_datatype", 1)].name
    return Val.constant(matrix.astype(numpy_dtype(dtype)), n.proto.output[0])
