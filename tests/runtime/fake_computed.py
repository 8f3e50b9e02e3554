"""Small models with sizes that only a run can tell, each with what it should compute."""

from __future__ import annotations

import numpy as np
from fake_package import BIND, BRANCH, COPY, DIMS, INPUT, JUMP, KERNEL, OUTPUT, REQUIRE, Image

HI = 2**63 - 1


def nonzero(lo: int = 0, hi: int = HI, cost: int = 10**9) -> Image:
    """places = where x is not 0; twice[i] = [2 places[i], n], through a heap slot, on threads."""
    image = Image()
    n = image.symbol("n", 0, 0)
    count = image.computed("count", lo, hi)
    image.arena_bytes = image.const(0)
    one, two, eight, work = (image.const(i) for i in (1, 2, 8, cost))
    x = image.port(INPUT, "x", "float32", [n])
    places = image.port(OUTPUT, "places", "int64", [count])
    twice = image.port(OUTPUT, "twice", "int64", [count, two])
    counted = image.arena(eight)
    size = image.mul(count, image.const(16))
    pairs = image.heap(0, size, image.const(0))
    image.step(KERNEL, "test_count_nonzero", [x, counted], [n], one, layer="/NonZero/count")
    image.step(BIND, 1, [counted], [image.const(0)], layer="/NonZero/size")
    image.step(KERNEL, "test_nonzero", [x, places], [n], one, layer="/NonZero")
    image.step(
        KERNEL, "test_pairs", [places, pairs], [count, n], count, image.mul(count, eight), work,
        "/Pairs",
    )  # fmt: skip
    image.step(COPY, buffers=[pairs, twice], layer="/Copy")
    return image


def nonzero_reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    places = np.flatnonzero(x)
    return places, np.stack([2 * places, np.full_like(places, len(x))], 1)


def grow() -> Image:
    """A loop whose value grows: y = x with 0, 1, .., total - 1 appended; scan[i] = its length.

    The value lies in heap slot 0, the scan's rows, one after another, in slot 1.
    """
    image = Image()
    n = image.symbol("n", 1, 0)
    total, i, length, size = (image.computed(name) for name in ("total", "i", "length", "size"))
    image.arena_bytes = image.const(0)
    zero, one, four, eight = (image.const(k) for k in (0, 1, 4, 8))
    count = image.port(INPUT, "count", "int64", [])
    x = image.port(INPUT, "x", "float32", [n])
    y = image.port(OUTPUT, "y", "float32", [size])
    scan = image.port(OUTPUT, "scan", "int64", [total])
    start = image.heap(0, image.mul(four, n), zero)
    value = image.heap(0, image.mul(four, length), zero)
    result = image.heap(0, image.mul(four, size), zero)
    row = image.heap(1, eight, image.mul(eight, i))
    rows = image.heap(1, image.mul(eight, total), zero)
    image.step(BIND, 1, [count], [zero], layer="/Loop/count")
    image.step(BIND, 2, scalars=[zero])
    image.step(BIND, 3, scalars=[n])
    image.step(COPY, buffers=[x, start])
    turn = image.step(BRANCH, 10, scalars=[image.expr("lt", i, total)], layer="/Loop/cond")
    image.step(BIND, 3, scalars=[image.expr("add", length, one)], layer="/Loop/Concat/size")
    image.step(KERNEL, "test_put", [value], [length, i], one, layer="/Loop/Concat")
    image.step(DIMS, buffers=[row], scalars=[length], layer="/Loop/Shape")
    image.step(BIND, 2, scalars=[image.expr("add", i, one)])
    image.step(JUMP, turn)
    image.step(BIND, 4, scalars=[length])
    image.step(COPY, buffers=[result, y])
    image.step(COPY, buffers=[rows, scan])
    return image


def grow_reference(count: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    added = np.arange(count)
    return np.concatenate([x, added.astype(x.dtype)]), len(x) + added + 1


def sized(size: str, *, place: int = 0, element: int = 0, lo: int = 0) -> Image:
    """y[count] := a heap buffer of that many bytes; count comes from element `element` of n[k].

    `size`: of another buffer, "same" or "less" (by 3). `place`: that of the copied buffer.
    """
    image = Image()
    k = image.symbol("k", 0, 0, 1, 4)
    count = image.computed("count", lo)
    image.arena_bytes = image.const(0)
    n = image.port(INPUT, "n", "int64", [k])
    y = image.port(OUTPUT, "y", "int8", [count])
    whole = image.heap(0, count, image.const(0))
    image.heap(1, image.expr("sub", count, image.const(3)) if size == "less" else count, 0)
    source = image.heap(0, image.const(1), image.expr("add", image.const(place), image.const(0)))
    image.step(BIND, 1, [n], [image.const(element)], layer="/Size")
    image.step(DIMS, buffers=[whole], layer="/Dims")
    image.step(COPY, buffers=[source if place else whole, y], layer="/Copy")
    return image


def demanding() -> Image:
    """y = n[0] zeros, where n[0] must be even, and then n[0] / 2 below 5."""
    image = Image()
    count = image.computed("count")
    image.arena_bytes = image.const(0)
    n = image.port(INPUT, "n", "int64", [image.const(1)])
    y = image.port(OUTPUT, "y", "int8", [count])
    even = image.expr("eq", image.expr("mod", count, image.const(2)), image.const(0))
    half = image.expr("floordiv", count, image.const(2))
    image.step(BIND, 0, [n], [image.const(0)])
    image.step(REQUIRE, "the count must be even", scalars=[even], layer="/Reshape")
    below = image.expr("lt", half, image.const(5))
    image.step(BRANCH, 5, scalars=[below], layer="/If")
    image.step(KERNEL, "test_zero", [y], [count], image.const(1), layer="/If/then")
    image.step(JUMP, 6)
    image.step(REQUIRE, "the half must be below 5", scalars=[image.const(0)], layer="/If/else")
    return image


def inert() -> Image:
    """Every kind of record and step of computed sizes, for corruption tests; no loop."""
    image = Image()
    n = image.symbol("n", 0, 0, 1, 8)
    count, more = image.computed("count", -4, 100), image.computed("more", 0, 4000)
    image.arena_bytes = image.const(0)
    zero, three, eight = (image.const(k) for k in (0, 3, 8))
    x = image.port(INPUT, "x", "int64", [n])
    y = image.port(OUTPUT, "y", "int64", [count, three])
    z = image.port(OUTPUT, "z", "int64", [n, more])
    size = image.mul(count, image.const(24))
    first, second = image.heap(0, size, zero), image.heap(1, image.mul(eight, more), size)
    fixed = image.heap(2, image.mul(eight, n), zero)
    whole = image.heap(1, image.mul(eight, n, more), zero)
    local = image.arena(image.const(64))
    half = image.expr("min", image.expr("floordiv", count, image.const(2)), image.const(7))
    part = image.buffer(0, image.mul(eight, image.expr("max", half, zero)), zero)
    image.step(COPY, buffers=[x, fixed], layer="/a")
    image.step(BIND, 1, scalars=[image.expr("add", n, image.const(4))], layer="/b")
    image.step(KERNEL, "test_nothing", [first, part], [count], count, size, size, "/c")
    image.step(DIMS, buffers=[local], scalars=[count, half, n], layer="/d")
    image.step(
        BIND, 2, [local], [image.expr("sub", count, image.expr("add", n, three))], layer="/e"
    )
    image.step(BRANCH, 7, scalars=[image.expr("lt", more, count)], layer="/f")
    image.step(REQUIRE, "more", scalars=[image.expr("lt", more, image.const(50))], layer="/g")
    image.step(COPY, buffers=[first, y], layer="/h")
    image.step(COPY, buffers=[whole, z], layer="/i")
    image.step(KERNEL, "test_nothing", [second, y, z], [more], more, layer="/j")
    return image
