"""Sizes for which an operation has no meaning are refused when the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ops.structure import SizeError
from cuvilc.dialect.passes import PIPELINE, require_sizes
from tests.dialect.passes.programs import feeds, make, run


def demands(program: Any) -> list[str]:
    with program:
        block = ir.body(program.function("main"))
        return [ir.attrs(o)["message"] for o in ir.walk(block) if o.name == "ai.require"]


def sliced(m: Any, x: Any) -> Any:
    return m.slice(x, starts=(2,), steps=(1,), sizes=(3,))


def scattered(m: Any, x: Any, y: Any) -> Any:
    indices = ir.build("ai.iota", shape=(2, 3), axis=0, dtype="int64")
    return ir.build("ai.scatter_elements", x, indices, y, axis=0, reduction="none")


CASES = {  # inputs, body, sizes that fit, sizes that do not, what the message says
    "broadcast": ({"x": "[n,4]", "y": "[k,4]"}, lambda m, x, y: m.maximum(x, y),
                  [(3, 3), (1, 3), (3, 1)], (3, 2), "shapes [n,4] and [k,4] do not broadcast"),
    "constant": ({"x": "[n,4]", "y": "[3,k]"}, lambda m, x, y: m.mul(x, y),
                 [(3, 4), (1, 1)], (2, 4), "shapes [n,4] and [3,k] do not broadcast"),
    "slice": ({"x": "[n]"}, sliced, [(5,), (9,)], (4,), "slice of axis 0 reads element 4 of n"),
    "reshape": ({"x": "[n,4]"}, lambda m, x: m.reshape(x, shape=(3, 8)),
                [(6,)], (5,), "[n,4] has 4*n elements"),
    "expand": ({"x": "[n,4]"}, lambda m, x: m.broadcast_to(x, shape=(3, 4)),
               [(1,), (3,)], (2,), "does not broadcast to [3,4]"),
    "window": ({"x": "[1,1,n]"}, lambda m, x: m.conv(x, m.weight(1, 1, 3)),
               [(3,), (7,)], (1,), "a window of 3 (dilation 1) does not fit n"),
    "batch": ({"x": "[n,2,4]", "y": "[k,4,2]"}, lambda m, x, y: m.matmul(x, y),
              [(2, 2), (2, 1)], (3, 2), "shapes [n] and [k] do not broadcast"),
    "scatter": ({"x": "[4,n]", "y": "[2,k]"}, scattered, [(3, 3), (5, 3)], (2, 3), "exceed x"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_refused(case: str) -> None:
    inputs, body, good, bad, message = CASES[case]
    program = make(inputs, body)
    run(program, *PIPELINE)
    for sizes in good:
        interpret(program, feeds(program, dict(zip("nk", sizes, strict=False))))
    with pytest.raises(SizeError) as caught:
        interpret(program, feeds(program, dict(zip("nk", bad, strict=False))))
    assert message in str(caught.value)
    assert f"n = {bad[0]}" in str(caught.value)


def test_what_the_ranges_decide_is_not_asked() -> None:
    program = make({"x": "[n]"}, sliced, {"n": (5, None)})
    run(program, require_sizes)
    assert demands(program) == []


def test_each_demand_is_made_once() -> None:
    program = make({"x": "[n]", "y": "[k]"}, lambda m, x, y: m.mul(m.add(x, y), m.sub(x, y)))
    run(program, require_sizes)
    first = demands(program)
    run(program, require_sizes)
    assert demands(program) == first
    assert len(first) == 1  # the sum and the difference have one shape


def test_a_branch_that_is_not_taken_demands_nothing() -> None:
    def body(m: Any, flag: Any, x: Any) -> Any:
        types = [ir.type_of(x).with_(shape=(3,))]
        result = ir.build("ai.if", flag, types=types)
        operation = result.owner.operation
        for number, begin in enumerate((2, 0)):
            with ir.at_end(operation.regions[number].blocks.append()):
                cut = m.slice(x, starts=(begin,), steps=(1,), sizes=(3,))
                ir.build("ai.yield", cut)
        return result

    program = make({"flag": "bool[]", "x": "[n]"}, body)
    run(program, *PIPELINE)
    x = np.arange(4, dtype=np.float32)
    assert interpret(program, {"flag": np.array(False), "x": x})["y0"].tolist() == [0, 1, 2]
    with pytest.raises(SizeError, match="element 4 of n, for n = 4"):
        interpret(program, {"flag": np.array(True), "x": x})
