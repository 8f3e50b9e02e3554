"""Small models, each with what it should compute."""

from __future__ import annotations

import numpy as np
from fake_adapters import BASE, Change, cuvla, embed
from fake_package import BRANCH, COPY, DIMS, INPUT, JUMP, KERNEL, OUTPUT, REQUIRE, Image

K, N = 5, 7
WEIGHT = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32)
BIAS = np.random.default_rng(1).standard_normal(N).astype(np.float32)


def mlp(cost: int = 10**9, lo: int = 1, hi: int = 64) -> Image:
    """y = x @ WEIGHT + BIAS; shape = the shape of y. `cost` decides whether steps use threads."""
    image = Image()
    batch = image.symbol("batch", 0, 0, lo, hi)
    k, n, work = image.const(K), image.const(N), image.const(cost)
    image.arena_bytes = image.const(0)
    x = image.port(INPUT, "x", "float32", [batch, k])
    y = image.port(OUTPUT, "y", "float32", [batch, n])
    shape = image.port(OUTPUT, "shape", "int64", [image.const(2)])
    weight, bias = image.weight(WEIGHT), image.weight(BIAS)
    size = image.mul(batch, n, image.const(4))
    hidden = image.arena(size)
    row = image.const(N * 4)
    image.step(KERNEL, "test_matmul", [x, weight, hidden], [k, n], batch, row, work, "/fc/MatMul")
    image.step(
        KERNEL, "test_add", [hidden, bias, y], [n], image.mul(batch, n), cost=work, layer="/fc/Add"
    )
    image.step(DIMS, buffers=[shape], scalars=[batch, n], layer="/Shape")
    return image


def mlp_reference(x: np.ndarray) -> np.ndarray:
    return x @ WEIGHT + BIAS


def gather(cost: int = 0) -> Image:
    """y[i] = table[index[i]] with table[j] = 10 j; an index outside 0..8 is a fault."""
    image = Image()
    count = image.symbol("count", 0, 0)
    image.arena_bytes = image.const(0)
    index = image.port(INPUT, "index", "int64", [count])
    y = image.port(OUTPUT, "y", "float32", [count])
    table = image.weight(np.arange(9, dtype=np.float32) * 10)
    work = image.const(cost)
    buffers = [table, index, y]
    image.step(
        KERNEL, "test_gather", buffers, [image.const(9)], count, cost=work, layer="/embed/Gather"
    )
    return image


def branch() -> Image:
    """y = a when flag, else b."""
    image = Image()
    n = image.symbol("n", 1, 0)
    image.arena_bytes = image.const(0)
    flag = image.port(INPUT, "flag", "bool", [])
    a, b = (image.port(INPUT, name, "float32", [n]) for name in "ab")
    y = image.port(OUTPUT, "y", "float32", [n])
    image.step(BRANCH, 3, [flag], layer="/If")
    image.step(COPY, buffers=[a, y], layer="/If/then")
    image.step(JUMP, 4)
    image.step(COPY, buffers=[b, y], layer="/If/else")
    return image


def demanding() -> Image:
    """y = x for n below 5, which must be even when flag."""
    image = Image()
    n = image.symbol("n", 1, 0)
    image.arena_bytes = image.const(0)
    flag = image.port(INPUT, "flag", "bool", [])
    x = image.port(INPUT, "x", "float32", [n])
    y = image.port(OUTPUT, "y", "float32", [n])
    below = image.expr("lt", n, image.const(5))
    even = image.expr("eq", image.expr("mod", n, image.const(2)), image.const(0))
    image.step(REQUIRE, "n must be below 5", scalars=[below], layer="/Slice")
    image.step(BRANCH, 3, [flag], layer="/If")
    image.step(REQUIRE, "n must be even", scalars=[even], layer="/If/then")
    image.step(COPY, buffers=[x, y], layer="/Copy")
    return image


def loop() -> Image:
    """y = x + count * step: a loop that runs `count` times."""
    image = Image()
    n = image.symbol("n", 1, 0)
    image.arena_bytes = image.const(0)
    count = image.port(INPUT, "count", "int64", [])
    x, step = (image.port(INPUT, name, "float32", [n]) for name in ("x", "step"))
    y = image.port(OUTPUT, "y", "float32", [n])
    left, more = image.arena(image.const(8)), image.arena(image.const(1))
    one = image.const(1)
    image.step(COPY, buffers=[count, left])
    image.step(COPY, buffers=[x, y])
    image.step(KERNEL, "test_countdown", [left, more], [], one, layer="/Loop/cond")
    image.step(BRANCH, 6, [more])
    image.step(KERNEL, "test_add", [y, step, y], [n], n, layer="/Loop/body")
    image.step(JUMP, 2)
    return image


def shapes() -> Image:
    """Inputs a[n], b[n], c[2 n + 1], output y[ceil(n / 4), max(n, 3)]; nothing is computed."""
    image = Image()
    n = image.symbol("n", 0, 0, 0, 100)
    one, two, three = (image.const(i) for i in (1, 2, 3))
    image.arena_bytes = image.const(0)
    image.port(INPUT, "a", "int8", [n])
    image.port(INPUT, "b", "int8", [n])
    image.port(INPUT, "c", "int8", [image.expr("add", image.mul(two, n), one)])
    blocks = image.expr("ceildiv", n, image.const(4))
    image.port(OUTPUT, "y", "int8", [blocks, image.expr("max", n, three)])
    return image


def inert() -> Image:
    """Every kind of record and step, but kernels that touch nothing: for corruption tests."""
    image = Image()
    n = image.symbol("n", 0, 0, 1, 8)
    image.arena_bytes = image.const(0)
    x = image.port(INPUT, "x", "float32", [n, image.const(3)])
    z = image.port(INPUT, "z", "bool", [])
    y = image.port(OUTPUT, "y", "float32", [n, image.const(3)])
    size = image.mul(n, image.const(12))
    first, second = image.arena(size), image.arena(image.const(16))
    weight = image.weight(np.ones(16, np.float32))
    rest = image.expr("select", image.expr("lt", n, image.const(4)), n, image.const(1))
    image.expr("mod", image.expr("sub", n, image.const(9)), image.const(4))
    image.expr("floordiv", image.expr("min", n, image.const(2)), rest)
    image.step(KERNEL, "test_nothing", [x, weight, first], [n, rest], n, rest, size, "/a")
    image.step(COPY, buffers=[first, y], layer="/b")
    image.step(DIMS, buffers=[second], scalars=[n, rest], layer="/c")
    image.step(BRANCH, 5, [z], layer="/d")
    image.step(JUMP, 5)
    whole, merged = np.ones(16, np.float32), np.ones((2, 1, 32), np.float32)
    adapted = [image.adapted(whole), image.adapted(merged, "test_nothing", 1, 33, 1)]
    image.step(KERNEL, "test_nothing", adapted, [], n, cost=size, layer="/e")
    image.lora = BASE + bytes(32)
    change = Change(1, np.ones((2, 1), np.float32), np.ones((1, 2, 32), np.float32))
    return embed(image, [cuvla("all", [Change(0, 2 * whole), change])])
