"""Resampling of images by nearest, linear or cubic interpolation."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from cuvilc.dialect.dims import equal, less, maximum
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import same
from cuvilc.dialect.ops._rules import (
    INTEGERS,
    need,
    need_length,
    need_not_negative,
    need_number,
    need_true,
    need_word,
    spell,
)

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@op("ai.resize", traits=("injective",))
class Resize:
    """x resampled to `sizes`.    (ONNX operator specification, Resize)

    Output index i along an axis lies at coordinate c of x, computed in float32 on every target:
    half_pixel (i + ½)/s - ½; pytorch_half_pixel the same, but 0 for an output of 1; asymmetric i/s;
    align_corners i·(n - 1)/(m - 1); half_pixel_symmetric half_pixel, centred when n·s is not whole.
    s = scales[axis], else m/n. An axis with m = n and s = 1 is left alone.
    nearest takes the element at c rounded as `nearest` says; linear weighs 2 neighbours, cubic 4 by
    Keys' kernel with a = cubic_a (Keys 1981, eq. 4). Beyond the edge lies the edge's element;
    exclude_outside (cubic) gives it weight 0 instead and rescales the others.
    """

    x: Tensor
    sizes: tuple
    scales: tuple | None = None
    mode: str = "nearest"
    coordinate: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False

    def shape(x, *, sizes, scales, mode, coordinate, nearest, **rest):
        need_length(sizes, x.rank, "sizes")
        need_not_negative(sizes, "sizes")
        if scales is not None:
            need_length(scales, x.rank, "scales")
            need(all(s > 0 for s in scales), f"scales must be positive: {spell(scales)}")
        need_word(mode, MODES, "mode")
        need_word(coordinate, COORDINATES, "coordinate")
        need_word(nearest, NEAREST, "nearest")
        if mode != "nearest":
            need_number(x)
        for n, m in zip(x.shape, sizes, strict=True):
            message = f"an empty axis cannot be resized to {m}: {spell(x.shape)}"
            need_true(1 if n == m else maximum(less(0, n), equal(m, 0)), message)
        return x.with_(shape=sizes)

    def reference(x, *, sizes, scales, **how):
        for axis, size in enumerate(sizes):
            scale = None if scales is None else scales[axis]
            if not untouched(x.shape[axis], size, scale):
                x = _resample(x, axis, size, scale, **how)
        return x

    def element(k, i, x, *, sizes, scales, mode, **how):
        compute = "float32" if x.dtype in (*INTEGERS, "bool") else x.dtype
        axes = []
        for axis, (n, m) in enumerate(zip(x.shape, sizes, strict=True)):
            scale = None if scales is None else scales[axis]
            if untouched(n, m, scale):
                axes.append([(i[axis], None)])
            else:
                axes.append(taps(Notation(k), i[axis], n, m, scale, mode, **how))
        total = None
        for choice in product(*axes):
            value = x[tuple(place for place, _ in choice)]
            if mode == "nearest":
                return value
            value = k.cast(value, compute)
            for _, weight in choice:
                value = value if weight is None else value * k.cast(weight, compute)
            total = value if total is None else total + value
        return k.cast(total, x.dtype)

    samples = (
        sample(
            "float32[1,2,3,4]", sizes=(1, 2, 6, 8), scales=(1.0, 1.0, 2.0, 2.0),
            coordinate="asymmetric", nearest="floor",
        ),
        sample("float32[1,2,4,5]", sizes=(1, 2, 7, 3), mode="linear"),
        sample("float32[1,1,4,5]", sizes=(1, 1, 8, 9), mode="linear", coordinate="align_corners"),
        sample("float32[1,1,5,6]", sizes=(1, 1, 8, 9), mode="cubic"),
        sample(
            "float32[1,1,6,4]", sizes=(1, 1, 4, 7), scales=(1.0, 1.0, 0.7, 1.9), mode="cubic",
            exclude_outside=True, cubic_a=-0.5,
        ),
        sample("uint8[2,3,5]", sizes=(2, 3, 4), nearest="ceil", low=0, high=255),
        sample("float32[3,7]", sizes=(1, 4), mode="linear", coordinate="pytorch_half_pixel"),
        sample(
            "float16[1,1,7]", sizes=(1, 1, 4), scales=(1.0, 1.0, 0.6), mode="linear",
            coordinate="half_pixel_symmetric",
        ),
    )  # fmt: skip


def untouched(n: Any, m: Any, scale: float | None) -> bool:
    """Whether an axis of n elements that become m stays as it is."""
    return (scale is None or scale == 1.0) and same(n, m)


class Arrays:
    """The words of the notation that coordinates need, in NumPy float32; see Notation."""

    def real(self, value):
        return np.asarray(value, np.float32)

    def whole(self, value):
        return np.asarray(value).astype(np.int64)

    def div(self, a, b):
        return a / b

    def select(self, condition, a, b):
        return np.where(condition, a, b)

    floor, ceil, abs = staticmethod(np.floor), staticmethod(np.ceil), staticmethod(np.abs)
    eq, both = staticmethod(np.equal), staticmethod(np.logical_and)
    ge, lt = staticmethod(np.greater_equal), staticmethod(np.less)

    def clamp(self, value, low, high):
        return np.minimum(np.maximum(value, low), high)

    def clamp_index(self, i, n):
        return np.clip(i, 0, n - 1)


class Notation:
    """The same words in index notation, so that one text computes coordinates in both."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def __getattr__(self, name: str) -> Any:
        return getattr(self.k, name)

    def real(self, value):
        if isinstance(value, float):
            return self.k.const(value, "float32")
        return self.k.value_of_index(value, "float32")

    def whole(self, value):
        return self.k.index(value)

    def clamp(self, value, low, high):
        return self.k.min(self.k.max(value, low), high)


def _coordinate(words: Any, i: Any, n: Any, m: Any, scale: float | None, kind: str) -> Any:
    """Where output index i of m lies in an axis of n elements; float32."""
    real = words.real
    at, size, resized, half, one = real(i), real(n), real(m), real(0.5), real(1.0)
    if kind == "align_corners":
        steps = words.select(words.eq(resized, one), one, resized - one)
        return words.div(at * (size - one), steps)
    ratio = words.div(resized, size) if scale is None else real(float(scale))
    if kind == "asymmetric":
        return words.div(at, ratio)
    place = words.div(at + half, ratio)
    if kind == "half_pixel_symmetric":
        return half * size * (one - words.div(resized, ratio * size)) + place - half
    if kind == "pytorch_half_pixel":
        return words.select(words.eq(resized, one), real(0.0), place - half)
    return place - half


def taps(
    words: Any, i: Any, n: Any, m: Any, scale: float | None, mode: str, *,
    coordinate: str, nearest: str, cubic_a: float, exclude_outside: bool,
) -> list[tuple[Any, Any]]:  # fmt: skip
    """(index, weight) of the elements that output index i is made of; weight None is 1."""
    c = _coordinate(words, i, n, m, scale, coordinate)
    if mode == "nearest":
        half = words.real(0.5)
        rounded = {
            "floor": lambda: words.floor(c),
            "ceil": lambda: words.ceil(c),
            "round_prefer_floor": lambda: words.ceil(c - half),
            "round_prefer_ceil": lambda: words.floor(c + half),
        }[nearest]()
        return [(words.clamp_index(words.whole(rounded), n), None)]
    one = words.real(1.0)
    if mode == "linear":
        c = words.clamp(c, words.real(0.0), words.real(n) - one)
        low = words.floor(c)
        place = words.whole(low)
        return [(place, one - (c - low)), (words.clamp_index(place + 1, n), c - low)]
    low = words.floor(c)
    place = words.whole(low)
    weights = keys_weights(words.real, c - low, cubic_a)
    places = [place + offset for offset in (-1, 0, 1, 2)]
    if exclude_outside:
        zero = words.real(0.0)
        inside = [words.both(words.ge(p, 0), words.lt(p, n)) for p in places]
        weights = [words.select(c, w, zero) for c, w in zip(inside, weights, strict=True)]
        total = weights[0] + weights[1] + weights[2] + weights[3]
        weights = [words.div(w, total) for w in weights]
    return [(words.clamp_index(p, n), w) for p, w in zip(places, weights, strict=True)]


def keys_weights(real: Any, t: Any, a: float) -> list[Any]:
    """Weights of the elements at -1, 0, 1, 2 for a point at t in [0, 1).    (Keys 1981, eq. 4)

    real: makes a constant of the notation of a Python float.
    """
    one = real(1.0)

    def near(d):
        return (real(a + 2.0) * d - real(a + 3.0)) * d * d + one

    def far(d):
        return ((real(a) * d - real(5.0 * a)) * d + real(8.0 * a)) * d - real(4.0 * a)

    return [far(t + one), near(t), near(one - t), far(one + one - t)]


def _resample(x: np.ndarray, axis: int, size: int, scale: float | None, **how: Any) -> np.ndarray:
    """x with one axis resampled to `size`."""
    words = Arrays()
    found = taps(words, np.arange(size), x.shape[axis], size, scale, **how)
    line = [1] * x.ndim
    line[axis] = size
    total: Any = 0
    for place, weight in found:
        part = np.take(x, place, axis)
        total = part if weight is None else total + part * weight.astype(np.float64).reshape(line)
    return total
