"""Test vectors: random inputs of the declared shapes, and what the interpreter makes of them.

The interpreter is exact, not fast, so a default build bundles vectors only for models that it
runs in about half a second: `vectors_cost.cost` up to AUTO_LIMIT. That they were left out is
always reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from cuvilc.dialect.dims import evaluate, symbols

Ranges = Mapping[str, tuple[int, int | None]]

AUTO_LIMIT = 1_000_000_000
# Largest error relative to an output's largest magnitude; tests/tolerances.py is the same.
RELATIVE = {"float64": 1e-6, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_TYPICAL_SIZE = 3
_MOST_ROUNDS = 1000  # of loops: random numbers may never meet a loop's condition
# Tried in turn until the model accepts one: (factor for sizes, random integers lie below this).
# Tables may be small; images and sounds may need a least size.
_TRIALS = ((1, 8), (1, 2), (1, 1), (16, 8), (16, 1), (64, 8), (256, 8))


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
    from cuvilc.dialect.narrow import E8M0, FORMATS, numpy_dtype  # noqa: PLC0415  (ml_dtypes)

    if dtype == E8M0:  # it has no sign
        return np.exp2(rng.integers(-3, 4, shape)).astype(numpy_dtype(dtype))
    if dtype in RELATIVE or dtype in FORMATS:
        return rng.standard_normal(shape).astype(numpy_dtype(dtype))
    return rng.integers(0, below, shape).astype(numpy_dtype(dtype))


def trials(
    ranges: Ranges, batches: Collection[str], number: int
) -> Iterator[tuple[dict[str, int], int]]:
    """Sizes to try for case `number`, each with the limit of random integers; small ones first.

    `batches`: symbols that are the first axis of an input, which never need to be large.
    """
    seen = []
    for factor, below in _TRIALS:
        trial = sizes_within(ranges, number, factor, batches), below
        if trial not in seen:
            seen.append(trial)
            yield trial


def sizes_within(
    ranges: Ranges, number: int, factor: int = 1, batches: Collection[str] = ()
) -> dict[str, int]:
    """A size for every symbol: small, within its range, another for each `number`."""
    sizes = {}
    for i, (name, (lo, hi)) in enumerate(sorted(ranges.items())):
        wanted = (_TYPICAL_SIZE + i + 2 * number) * (1 if name in batches else factor)
        sizes[name] = max(lo, wanted if hi is None else min(hi, wanted))
    return sizes


def random_feeds(
    program: Any, number: int = 0, sizes: Mapping[str, int] | None = None, below: int = 8
) -> dict[str, np.ndarray]:
    """One set of random inputs; at small sizes unless `sizes` says otherwise."""
    rng = np.random.default_rng([0, number])
    ranges, batches = _symbols(program)
    sizes = sizes or sizes_within(ranges, number, 1, batches)
    return {
        name: random_array(t.dtype, tuple(evaluate(d, sizes) for d in t.shape), rng, below)
        for name, t in _input_types(program).items()
    }


class TooCostly(Exception):
    """A test vector would take the interpreter longer than the limit; `args[0]` is its cost."""


def reference_vectors(program: Any, count: int, limit: int | None = None) -> Any:
    """`count` cases as the package bundles them; the program is at the graph level.

    Raises ValueError when the interpreter refuses every kind of random input that is tried, and
    TooCostly when a case costs more than `limit`.
    """
    from cuvilc.package.vectors import Case, Vectors  # noqa: PLC0415

    cases = [Case(*_case(program, number, limit)) for number in range(count)]
    return Vectors(cases, tolerance_of(_dtypes(program)))  # type: ignore[arg-type]


def _case(
    program: Any, number: int, limit: int | None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    from cuvilc.dialect.interpret import interpret  # noqa: PLC0415
    from cuvilc.vectors_cost import cost  # noqa: PLC0415

    problem: Exception | None = None
    where = ""
    for sizes, below in trials(*_symbols(program), number):
        if limit is not None and (work := cost(program, sizes)) > limit:
            raise TooCostly(work)
        feeds = random_feeds(program, number, sizes, below)
        try:
            found = interpret(program, feeds, most_rounds=_MOST_ROUNDS)
            return list(feeds.values()), list(found.values())
        except (ValueError, IndexError) as error:  # such as an index beyond a small table
            if problem is None:
                at = ", ".join(f"{n} = {size}" for n, size in sizes.items())
                where = ", ".join(
                    [*getattr(error, "__notes__", ()), *([f"for {at}"] if at else [])]
                )
                problem = error
    raise ValueError(f"{where}: {problem}" if where else str(problem)) from problem


def _symbols(program: Any) -> tuple[dict[str, tuple[int, int | None]], set[str]]:
    """Ranges of the symbols of the inputs, and which of them are a first axis."""
    shapes = [t.shape for t in _input_types(program).values()]
    names = {n for shape in shapes for d in shape for n in symbols(d)}
    batches = {n for shape in shapes if shape for n in symbols(shape[0])}
    return {n: program.ranges.get(n, (1, None)) for n in names}, batches


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
