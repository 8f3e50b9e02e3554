"""Test vectors: random inputs of the declared shapes, and what the interpreter makes of them.

The interpreter is exact, not fast, so a default build bundles vectors only for models that it
runs in about half a second: `cost(program)` up to AUTO_LIMIT. Whether they were left out is
always reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cuvilc.dialect.dims import evaluate, symbols

AUTO = -1  # as a number of vectors: one if that is cheap, else none
AUTO_LIMIT = 1_000_000_000
# Largest error relative to an output's largest magnitude; tests/tolerances.py is the same.
RELATIVE = {"float64": 1e-6, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_TYPICAL_SIZE = 3
_INTEGER_LIMITS = (8, 2, 1)  # random integers lie below; the next is tried where a model refuses
_WIDENING = 8  # the interpreter's work per element it reads or writes, in FLOPs


def tolerance_of(dtypes: set[str]) -> dict[str, float]:
    """rtol and atol for a program that computes in these dtypes: the coarsest one decides."""
    relative = max((RELATIVE[d] for d in dtypes if d in RELATIVE), default=RELATIVE["float32"])
    return {"rtol": relative, "atol": relative * 1e-3}


def random_array(
    dtype: str, shape: tuple[int, ...], rng: np.random.Generator, below: int = 8
) -> np.ndarray:
    """Normal floats, small non-negative integers, fair bools: valid for most models."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: PLC0415  (only models with bfloat16 inputs need it)

        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    if dtype in RELATIVE:
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, below, shape).astype(dtype)


def sizes_within(ranges: Mapping[str, tuple[int, int | None]], number: int) -> dict[str, int]:
    """A size for every symbol: small, within its range, another for each `number`."""
    sizes = {}
    for i, (name, (lo, hi)) in enumerate(sorted(ranges.items())):
        wanted = _TYPICAL_SIZE + i + 2 * number
        sizes[name] = max(lo, wanted if hi is None else min(hi, wanted))
    return sizes


def sample_sizes(program: Any, number: int) -> dict[str, int]:
    """Sizes for the symbols of a program's inputs."""
    names = {n for t in _input_types(program).values() for d in t.shape for n in symbols(d)}
    return sizes_within({n: program.ranges.get(n, (1, None)) for n in names}, number)


def random_feeds(
    program: Any, number: int = 0, seed: int = 0, below: int = 8
) -> dict[str, np.ndarray]:
    """One set of random inputs."""
    rng = np.random.default_rng([seed, number])
    sizes = sample_sizes(program, number)
    return {
        name: random_array(t.dtype, tuple(evaluate(d, sizes) for d in t.shape), rng, below)
        for name, t in _input_types(program).items()
    }


def reference_vectors(program: Any, count: int) -> Any:
    """`count` cases as the package bundles them; the program is at the graph level.

    Raises ValueError when the interpreter refuses every kind of random input that is tried.
    """
    from cuvilc.package.vectors import Case, Vectors  # noqa: PLC0415

    cases = [Case(*_case(program, number)) for number in range(count)]
    return Vectors(cases, tolerance_of(_dtypes(program)))  # type: ignore[arg-type]


def _case(program: Any, number: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    from cuvilc.dialect.interpret import interpret  # noqa: PLC0415

    problem: Exception | None = None
    for below in _INTEGER_LIMITS:
        feeds = random_feeds(program, number, below=below)
        try:
            return list(feeds.values()), list(interpret(program, feeds).values())
        except (ValueError, IndexError) as error:  # such as an index beyond a small table
            problem = problem or error
    raise ValueError(str(problem)) from problem


def _input_types(program: Any) -> dict[str, Any]:
    from cuvilc.dialect import ir  # noqa: PLC0415

    with program:
        main = program.function("main")
        arguments = ir.body(main).arguments
        names = ir.attrs(main)["input_names"]
        return {n: ir.type_of(a) for n, a in zip(names, arguments, strict=True)}


def _dtypes(program: Any) -> set[str]:
    """The dtypes of all values that the program's operations make."""
    from cuvilc.dialect import ir  # noqa: PLC0415

    with program:
        block = ir.body(program.function("main"))
        found = {ir.type_of(r).dtype for o in ir.walk(block) for r in o.results}
        return found | {ir.type_of(a).dtype for a in block.arguments}


def cost(program: Any, number: int = 0) -> int:
    """What one vector costs the interpreter, in FLOPs: products, and every element touched."""
    from cuvilc.dialect import ir  # noqa: PLC0415

    sizes = sample_sizes(program, number)
    with program:
        return sum(_work(o, sizes) for o in ir.walk(ir.body(program.function("main"))))


def _work(operation: Any, sizes: dict[str, int]) -> int:
    from cuvilc.dialect import ir  # noqa: PLC0415

    def elements(value: Any) -> int:
        total = 1
        for d in ir.type_of(value).shape:
            total *= max(evaluate(d, sizes), 0)
        return total

    if ir.definition(operation) is None or operation.name in ("ai.constant", "ai.full"):
        return 0
    operands = [elements(v) for v in operation.operands]
    made = sum(elements(v) for v in operation.results)
    work = _WIDENING * (sum(operands) + made)
    if operation.name in _PRODUCTS and len(operands) > 1:
        work += 2 * made * _depth(operation, operands, sizes)
    return work


_RECURRENT = ("ai.lstm", "ai.gru", "ai.rnn")
_PRODUCTS = ("ai.matmul", "ai.conv", "ai.conv_transpose", "ai.attention", *_RECURRENT)


def _depth(operation: Any, operands: list[int], sizes: dict[str, int]) -> int:
    """Multiplications for one element of the result."""
    from cuvilc.dialect import ir  # noqa: PLC0415

    shapes = [[evaluate(d, sizes) for d in ir.type_of(v).shape] for v in operation.operands]
    if operation.name == "ai.matmul":
        transposed = ir.attrs(operation).get("transpose_a")
        return shapes[0][-2 if transposed else -1] if len(shapes[0]) > 1 else operands[0]
    if operation.name == "ai.attention":
        return 2 * shapes[1][-2]
    if operation.name in _RECURRENT:  # w [D, gates·H, I] and r [D, gates·H, H] make [.., D, .., H]
        return (operands[1] + operands[2]) // max(shapes[2][0] * shapes[2][-1], 1)
    return operands[1] // max(shapes[1][0], 1)
