"""Which gathers leave the rows of a batch where they are: those that are proven to, no others.

The truth is the interpreter: whether a row of the result changes with other rows of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.passes.batch_rows import turned
from tests.dialect.passes.programs import make

B, S = 4, 5  # of an open batch when it runs; s may be as long as the batch
Body = Callable[..., Any]


def count(size: Dim, axis: int = 0, shape: Any = None, **more: Any) -> Any:
    return ir.build("ai.iota", shape=shape or (size,), axis=axis, dtype="int64", **more)


def wide(m: Any, line: Any, b: Dim, s: Dim, at: int) -> Any:
    """A line laid along axis `at` of [b, s, 1]."""
    sizes = [1, 1]
    sizes[at] = ir.type_of(line).shape[0]
    return m.reshape(
        m.broadcast_to(m.reshape(line, shape=tuple(sizes)), shape=(b, s)), shape=(b, s, 1)
    )


def pairs(m: Any, first: Any, second: Any, b: Dim, s: Dim) -> Any:
    """[b, s, 2]: both lines, the first along the batch."""
    return m.concat(wide(m, first, b, s, 0), wide(m, second, b, s, 1), axis=2)


def rows(m: Any, b: Dim, s: Dim) -> Any:
    return pairs(m, count(b), count(s), b, s)


def backwards(m: Any, b: Dim, s: Dim) -> Any:
    return pairs(m, count(b, start=b - 1, step=-1), count(s), b, s)


def zeros(m: Any, b: Dim, s: Dim) -> Any:
    first = m.mul(count(b), ir.full(0, (), "int64"))
    return pairs(m, first, count(s), b, s)


def sliced(m: Any, b: Dim, s: Dim) -> Any:
    return pairs(m, m.slice(count(b + 1), starts=(1,), steps=(1,), sizes=(b,)), count(s), b, s)


def strided(m: Any, b: Dim, s: Dim) -> Any:
    return pairs(m, m.slice(count(2 * b), starts=(0,), steps=(2,), sizes=(b,)), count(s), b, s)


def cut(m: Any, b: Dim, s: Dim) -> Any:
    return pairs(m, m.slice(count(b + 1), starts=(0,), steps=(1,), sizes=(b,)), count(s), b, s)


def swapped(m: Any, b: Dim, s: Dim) -> Any:
    return m.concat(wide(m, count(s), b, s, 1), wide(m, count(b), b, s, 0), axis=2)


def other_axis(m: Any, b: Dim, s: Dim) -> Any:
    """The same number in a column: i[1] where i[0] is meant."""
    return m.concat(count(s, 1, (b, s, 1)), count(s, 1, (b, s, 1)), axis=2)


def turned_about(m: Any, b: Dim, s: Dim) -> Any:
    return m.transpose(m.concat(count(s, 0, (s, b, 1)), count(s, 0, (s, b, 1)), axis=2),
                       perm=(1, 0, 2))  # fmt: skip


def turned_right(m: Any, b: Dim, s: Dim) -> Any:
    first = m.transpose(count(b, 1, (s, b, 1)), perm=(1, 0, 2))
    return m.concat(first, count(s, 1, (b, s, 1)), axis=2)


def narrow(m: Any, b: Dim, s: Dim) -> Any:
    line = m.cast(m.cast(count(b), dtype="int32"), dtype="int64")
    return pairs(m, line, count(s), b, s)


def bytes_of(m: Any, b: Dim, s: Dim) -> Any:
    """Bytes begin again at 0: right for 256 rows, and not proven."""
    return pairs(m, m.cast(m.cast(count(b), dtype="uint8"), dtype="int64"), count(s), b, s)


def constant(order: list[int]) -> Body:
    def body(m: Any, b: Dim, s: Dim) -> Any:
        grid = np.stack(np.broadcast_arrays(np.array(order)[:, None], np.arange(S)), axis=-1)
        return ir.constant(m.program, grid.astype(np.int64), "places")

    return body


def merged(m: Any, b: Dim, s: Dim) -> Any:
    """[2, 10] read as [4, 5]: two rows for each number."""
    line = m.reshape(count(2, 0, (2, 10)), shape=(b, s))
    return m.concat(m.reshape(line, shape=(b, s, 1)), wide(m, count(s), b, s, 1), axis=2)


OPEN, FIXED, SQUARE = (parse("b"), parse("s")), (B, S), (B, B)
KEPT: dict[str, tuple[Body, tuple[Dim, Dim]]] = {
    "open": (rows, OPEN), "fixed": (rows, FIXED), "square": (rows, SQUARE), "cut": (cut, OPEN),
    "turned right": (turned_right, OPEN), "turned right, square": (turned_right, SQUARE),
    "narrow": (narrow, OPEN), "constant": (constant(list(range(B))), FIXED),
}  # fmt: skip
LOST: dict[str, tuple[Body, tuple[Dim, Dim]]] = {
    "backwards": (backwards, OPEN), "times zero": (zeros, OPEN), "sliced": (sliced, OPEN),
    "strided": (strided, OPEN), "swapped": (swapped, SQUARE), "other axis": (other_axis, SQUARE),
    "turned about": (turned_about, SQUARE), "read in another shape": (merged, FIXED),
    "constant in another order": (constant([0, 2, 1, 3]), FIXED),
    "constant with one row twice": (constant([0, 1, 2, 2]), FIXED),
}  # fmt: skip


def gathered(body: Body, sizes: tuple[Dim, Dim]) -> Any:
    b, s = sizes
    shape = f"int64[{b if b == s or isinstance(b, int) else 'b'},{s}]"
    return make({"x": shape}, lambda m, x: m.gather_nd(x, body(m, b, s), batch_dims=0))


def lost(program: Any, batch: Dim) -> list[str]:
    with program:
        main = ir.body(program.function("main"))
        return [o.name for o in turned(program, main, batch).values()]


def mixes(program: Any, sizes: tuple[Dim, Dim]) -> bool:
    """Whether a row of the result holds what another row of x has."""
    shape = [v if isinstance(v, int) else {"b": B, "s": S}[str(v)] for v in sizes]
    x = np.broadcast_to(np.arange(shape[0])[:, None], shape).astype(np.int64)
    found = interpret(program, {"x": np.ascontiguousarray(x)})["y0"]
    return not np.array_equal(found, x)


@pytest.mark.parametrize("case", KEPT)
def test_rows_that_are_picked_in_their_places(case: str) -> None:
    body, sizes = KEPT[case]
    program = gathered(body, sizes)
    assert not mixes(program, sizes)
    assert lost(program, sizes[0]) == []


@pytest.mark.parametrize("case", LOST)
def test_rows_that_may_be_others(case: str) -> None:
    body, sizes = LOST[case]
    program = gathered(body, sizes)
    if case not in ("strided", "sliced"):  # those are out of range
        assert mixes(program, sizes)
    assert lost(program, sizes[0]) == ["ai.gather_nd"]


def test_what_is_not_proven_is_lost() -> None:
    assert lost(gathered(bytes_of, OPEN), OPEN[0]) == ["ai.gather_nd"]


def test_rows_of_another_length_are_lost() -> None:
    """Counted, but not all, or of an axis in front of which the batch is not."""
    b, s = OPEN
    program = make({"x": "[b,s]"}, lambda m, x: m.gather_nd(x, rows(m, 2, s), batch_dims=0))
    assert lost(program, b) == ["ai.gather_nd"]


@pytest.mark.parametrize("name", ["gather", "gather_nd"])
def test_an_axis_in_front_of_the_batch_is_picked_from(name: str) -> None:
    """x [s, b, 3]: a row of what is picked from its first axis has something of all rows."""
    b = OPEN[0]

    def body(m: Any, x: Any) -> Any:
        first = m.transpose(x, perm=(1, 0, 2))
        if name == "gather":
            return m.gather(first, count(b, 0, (b, 1)), axis=0)
        return m.gather_nd(first, count(b, 0, (b, 1)), batch_dims=0)

    program = make({"x": "[b,s,3]"}, body)
    assert lost(program, b)[-1] == f"ai.{name}"


def written(m: Any, x: Any, indices: Any) -> Any:
    """x put into zeros of its shape, at the indices."""
    zeros = ir.full(0, ir.type_of(x).shape, "int64")
    return m.scatter_nd(zeros, indices, x, reduction="none")


@pytest.mark.parametrize("case", [*KEPT, "backwards", "swapped", "turned about"])
def test_rows_that_are_written(case: str) -> None:
    """Where they were, or to where others are."""
    body, (b, s) = (KEPT | LOST)[case]
    program = make({"x": f"int64[{b},{s}]"}, lambda m, x: written(m, x, body(m, b, s)))
    assert mixes(program, (b, s)) == (case in LOST)
    assert lost(program, b) == ["ai.scatter_nd"] * (case in LOST)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_are_written_along_an_axis(axis: int) -> None:
    def body(m: Any, x: Any) -> Any:
        places = count(B, axis, (B, B), start=B - 1, step=-1)
        zeros = ir.full(0, (B, B), "int64")
        return m.scatter_elements(zeros, places, x, axis=axis, reduction="none")

    program = make({"x": f"int64[{B},{B}]"}, body)
    assert mixes(program, SQUARE) == (axis == 0)
    assert lost(program, B) == ["ai.scatter_elements"] * (axis == 0)


@pytest.mark.parametrize("start", range(B + 1))
@pytest.mark.parametrize("through", ["", "relu"])
@pytest.mark.parametrize("how", ["concat", "pad"])
def test_rows_cut_out_of_more(how: str, through: str, start: int) -> None:
    """A batch with other rows in front and behind: right is only a whole batch of those joined."""

    def body(m: Any, x: Any) -> Any:
        more = (
            m.concat(x, x, axis=0) if how == "concat"
            else m.pad(x, before=(B, 0), after=(B, 0), mode="wrap")
        )  # fmt: skip
        more = m.relu(more) if through else more
        return m.slice(more, starts=(start, 0), steps=(1, 1), sizes=(B, S))

    program = make({"x": f"int64[{B},{S}]"}, body)
    assert mixes(program, FIXED) == (start % B != 0)
    kept = start % B == 0 and how == "concat" and not through  # of the others it is not proven
    assert lost(program, B) == ["ai.slice"] * (not kept)
