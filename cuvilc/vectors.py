"""Test vectors: random inputs of the declared shapes, and what the interpreter makes of them in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate, symbols
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.types import TensorType, numpy_dtype

# Relative to the largest magnitude of each output; the same table as tests/tolerances.py.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
_TYPICAL_SIZE = 3


def sample_sizes(program: Any, number: int) -> dict[str, int]:
    """A size for every symbol: small, within its range, another for each `number`."""
    names: set[str] = set()
    with program:
        for argument in ir.body(program.function("main")).arguments:
            for d in ir.type_of(argument).shape:
                names |= symbols(d)
    sizes = {}
    for i, name in enumerate(sorted(names)):
        lo, hi = program.ranges.get(name, (1, None))
        wanted = _TYPICAL_SIZE + i + 2 * number
        sizes[name] = max(lo, wanted if hi is None else min(hi, wanted))
    return sizes


def random_array(t: TensorType, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    """Normal floats, small non-negative integers, fair bools: valid for most models."""
    shape = tuple(evaluate(d, sizes) for d in t.shape)
    if t.is_float:
        return rng.standard_normal(shape).astype(numpy_dtype(t.dtype))
    high = 2 if t.dtype == "bool" else 8
    return rng.integers(0, high, shape).astype(numpy_dtype(t.dtype))


def random_feeds(program: Any, number: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """One set of random inputs."""
    rng = np.random.default_rng([seed, number])
    sizes = sample_sizes(program, number)
    with program:
        main = program.function("main")
        names = ir.attrs(main)["input_names"]
        types = [ir.type_of(a) for a in ir.body(main).arguments]
    return {n: random_array(t, sizes, rng) for n, t in zip(names, types, strict=True)}


def reference_vectors(program: Any, count: int) -> Any:
    """`count` cases as the package bundles them; the program is at the graph level."""
    from cuvilc.package.vectors import Case, Vectors  # noqa: PLC0415

    cases = []
    for number in range(count):
        feeds = random_feeds(program, number)
        cases.append(Case(list(feeds.values()), list(interpret(program, feeds).values())))
    return Vectors(cases, TOLERANCE)
