"""Random graphs of elementwise operations, moves and reductions: fused is unfused."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.passes import canonicalize, fuse, simplify_shapes
from tests.dialect.passes.programs import feeds, make, run
from tests.tolerances import mismatch

UNARY = ("relu", "neg", "abs", "sigmoid", "tanh", "exp", "sin")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
MOVES = ("transpose", "flat", "concat", "slice", "line", "sum", "softmax", "product")


def _step(m: Any, values: list[Any], name: str, a: int, b: int) -> Any:
    """One more value of shape [4,4] from two that are there."""
    x, y = values[a % len(values)], values[b % len(values)]
    match name:
        case "transpose":
            return m.transpose(x, perm=(1, 0))
        case "flat":
            return m.reshape(m.sin(m.reshape(x, shape=(16,))), shape=(4, 4))
        case "concat":
            top = m.slice(x, starts=(0, 0), steps=(1, 1), sizes=(2, 4))
            low = m.slice(y, starts=(3, 0), steps=(-1, 1), sizes=(2, 4))
            return m.concat(top, low, axis=0)
        case "slice":
            cut = m.slice(x, starts=(1, 1), steps=(1, 1), sizes=(2, 2))
            return m.pad(cut, before=(1, 0), after=(1, 2), value=0.5)
        case "line":
            return m.add(x, m.slice(y, starts=(2, 0), steps=(1, 1), sizes=(1, 4)))
        case "sum":
            return m.sub(x, m.reduce_mean(y, axes=(1,), keepdims=True))
        case "softmax":
            return m.softmax(x, axis=1)
        case "product":
            return m.tanh(m.matmul(x, y))
    if name in UNARY:
        return getattr(m, name)(m.clip(x, low=-3.0, high=3.0) if name == "exp" else x)
    return getattr(m, name)(x, y)


STEP = st.tuples(st.sampled_from(UNARY + BINARY + MOVES), st.integers(0, 40), st.integers(0, 40))


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    st.lists(STEP, min_size=1, max_size=24), st.lists(st.integers(0, 40), min_size=1, max_size=3)
)
def test_fused_is_unfused(steps: list[Any], outputs: list[int]) -> None:
    def body(m: Any, x: Any, y: Any) -> Any:
        values = [x, y, m.weight(4, 4)]
        for step in steps:
            values.append(_step(m, values, *step))
        chosen = dict.fromkeys([values[-1], *(values[i % len(values)] for i in outputs)])
        return list(chosen)

    program = make({"x": "[4,4]", "y": "[4,4]"}, body)
    inputs = feeds(program)
    before = interpret(program, inputs)
    run(program, canonicalize, simplify_shapes, fuse)
    after = interpret(program, inputs)
    for name, expected in before.items():
        assert not mismatch(after[name], expected, scale=1.0)
    _check_kernels(program)


def _check_kernels(program: Any) -> None:
    """Everything that computes is in a fusion whose results have one shape; limits hold."""
    with program:
        for o in ir.operations(ir.body(program.function("main"))):
            assert o.name in ("ai.fusion", "ai.constant", "ai.reshape", "func.return")
            if o.name != "ai.fusion":
                continue
            inner = ir.operations(ir.body(o))
            assert len({ir.type_of(r).shape for r in o.results}) == 1
            assert sum(i.name != "ai.full" for i in inner) <= 25
            made = {r for i in inner for r in i.results}
            assert len({v for i in inner for v in i.operands if v not in made}) <= 12
