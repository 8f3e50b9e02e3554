"""Small models with memory that is prepared when they are opened."""

from __future__ import annotations

import numpy as np
from fake_package import (
    BRANCH,
    COPY,
    INPUT,
    JUMP,
    KERNEL,
    OUTPUT,
    PREPARE,
    PREPARED,
    Image,
)

SEEN = 4096  # of an input, at most
WEIGHT = np.random.default_rng(5).standard_normal(300_000).astype(np.float32)


def twice(count: int = len(WEIGHT), cost: int = 0) -> Image:
    """y = x + 3 · WEIGHT[:SEEN]: two steps prepare 3 · WEIGHT[:count], the second from what the
    first made. With all of WEIGHT there is enough for several threads.
    """
    image = Image()
    image.arena_bytes = image.const(0)
    n, size, work = image.const(count), image.const(4 * count), image.const(cost)
    seen = image.const(min(count, SEEN))
    x = image.port(INPUT, "x", "float32", [seen])
    y = image.port(OUTPUT, "y", "float32", [seen])
    weight = image.weight(WEIGHT[:count])
    double = image.buffer(PREPARED, size, 0)
    triple = image.buffer(PREPARED, size, -(-4 * count // 64) * 64)
    image.step(PREPARE, "test_add", [weight, weight, double], [n], n)
    image.step(PREPARE, "test_add", [weight, double, triple], [n], n)
    image.step(KERNEL, "test_add", [x, triple, y], [n], seen, cost=work, layer="/Add")
    return image


def faulty() -> Image:
    """Preparing finds an index outside its table."""
    image = Image()
    image.arena_bytes = image.const(0)
    one = image.const(1)
    image.port(INPUT, "x", "float32", [one])
    image.port(OUTPUT, "y", "float32", [one])
    table, index = image.weight(np.zeros(4, np.float32)), image.weight(np.array([9]))
    made = image.buffer(PREPARED, image.const(4), 0)
    image.step(PREPARE, "test_gather", [table, index, made], [image.const(4)], one)
    return image


def inert() -> Image:
    """Records of prepared memory, a branch behind them, kernels that touch nothing."""
    image = Image()
    n = image.symbol("n", 0, 0, 1, 8)
    image.arena_bytes = image.const(0)
    x = image.port(INPUT, "x", "float32", [n, image.const(3)])
    z = image.port(INPUT, "z", "bool", [])
    y = image.port(OUTPUT, "y", "float32", [n, image.const(3)])
    weight = image.weight(np.ones(16, np.float32))
    made = image.buffer(PREPARED, image.const(64), 64)
    four, level = image.const(4), image.expr("level")
    tasks = image.expr("add", four, image.expr("mul", level, four))
    image.step(PREPARE, "test_nothing", [weight, made], [four], tasks, four, layer="/a")
    image.step(BRANCH, 3, [z], layer="/b")
    image.step(JUMP, 3)
    image.step(KERNEL, "test_nothing", [x, made], [n], n, layer="/c")
    image.step(COPY, buffers=[x, y], layer="/d")
    return image
