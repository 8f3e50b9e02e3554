"""Programs for the pass tests, made by a function that builds `main`; their comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate, symbols
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program
from cuvilc.dialect.op import write_attr
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType, numpy_dtype
from tests.tolerances import MOVED


def parse_type(spelled: str) -> TensorType:
    """`float32[2,n]`, or `[2,n]` for float32."""
    dtype, dims = re.fullmatch(r"(\w*)\[(.*)\]", spelled).groups()
    shape = tuple(parse(d) for d in dims.split(",")) if dims else ()
    return TensorType(shape, dtype or "float32")


class Maker:
    """Builds operations and constants in `main`; `m.add(x, y)` is `ai.add` or `ai.elemwise_add`."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program = program
        self.rng = np.random.default_rng(seed)
        self.count = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        full = f"ai.elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"ai.{name}"

        def build(*operands: Any, **attrs: Any) -> Any:
            like = next((v for v in operands if isinstance(v, ir.Value)), None)
            dtype = ir.type_of(like).dtype if like is not None else "float32"
            values = [v if isinstance(v, ir.Value) else ir.full(v, (), dtype) for v in operands]
            with ir.named(f"{name}_{self.count}"):
                self.count += 1
                return ir.build(full, *values, **attrs)

        return build

    def weight(
        self, *shape: int, low: float = -0.5, high: float = 0.5, dtype: str = "float32"
    ) -> Any:
        array = self.rng.uniform(low, high, shape).astype(numpy_dtype(dtype))
        self.count += 1
        return ir.constant(self.program, array, f"w{self.count}")

    def conv(
        self, x: Any, w: Any, *bias: Any, pad: int = 0, stride: int = 1, groups: int = 1
    ) -> Any:
        n = ir.type_of(x).rank - 2
        return ir.build(
            "ai.conv", x, w, *bias, strides=(stride,) * n, pads_begin=(pad,) * n,
            pads_end=(pad,) * n, dilations=(1,) * n, groups=groups,
        )  # fmt: skip

    def matmul(self, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        with ir.named(f"matmul_{self.count}"):
            self.count += 1
            return ir.build("ai.matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def make(
    inputs: Mapping[str, str],
    body: Callable[..., Any],
    ranges: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Program:
    """A program whose main takes `inputs` (name → type) and returns what body(m, *inputs) does."""
    program = Program.create("test")
    with program:
        types = [parse_type(t) for t in inputs.values()]
        block = ir.define_function(program, "main", types)
        with ir.at_end(block):
            results = body(Maker(program, seed), *block.arguments)
        results = results if isinstance(results, (tuple, list)) else (results,)
        main = block.owner.operation
        main.attributes["input_names"] = write_attr(tuple(inputs))
        main.attributes["output_names"] = write_attr(tuple(f"y{i}" for i in range(len(results))))
        ir.finish_function(block, list(results))
    program.ranges.update(ranges or {})
    program.verify()
    return program


def feeds(
    program: Program, sizes: Mapping[str, int] | None = None, seed: int = 1
) -> dict[str, Any]:
    """Random inputs; every symbol that `sizes` leaves out is 3."""
    rng = np.random.default_rng(seed)
    with program:
        main = program.function("main")
        arguments = ir.body(main).arguments
        types = {
            n: ir.type_of(a) for n, a in zip(ir.attrs(main)["input_names"], arguments, strict=True)
        }
    found = {}
    for name, t in types.items():
        known = {s: (sizes or {}).get(s, 3) for d in t.shape for s in symbols(d)}
        shape = tuple(evaluate(d, known) for d in t.shape)
        if t.is_float:
            found[name] = rng.uniform(-2, 2, shape).astype(numpy_dtype(t.dtype))
        else:
            found[name] = rng.integers(0, 2, shape).astype(numpy_dtype(t.dtype))
    return found


def run(program: Program, *passes: Any, context: PassContext | None = None) -> PassContext:
    """Run passes; each must leave a program that verifies and reads back from its text."""
    context = context or PassContext()
    for p in passes:
        p.run(program, context)
        program.verify()
        text = program.text()
        assert Program.parse(text, program.weights).text() == text
    return context


def same(program: Program, *passes: Any, limit: float = MOVED, sizes: Any = None) -> PassContext:
    """Run passes: the function stays, and running the last one again changes nothing.

    limit: of the error relative to the output's scale, a row of tests/tolerances.py.
    """
    given = feeds(program, sizes)
    before = interpret(program, given)
    context = run(program, *passes)
    text = program.text()
    run(program, passes[-1])
    assert program.text() == text, "not idempotent"
    after = interpret(program, given)
    for name, expected in before.items():
        found = after[name]
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        wide, other = expected.astype(np.float64), found.astype(np.float64)
        scale = np.nanmax(np.abs(wide), initial=1e-6, where=np.isfinite(wide))
        np.testing.assert_allclose(other, wide, rtol=0, atol=limit * scale)
    return context


def names(program: Program, kernels: bool = False) -> list[str]:
    """Names of main's operations without the prefix; of kernels as `kind(first, second, …)`."""
    found = []
    with program:
        for o in ir.operations(ir.body(program.function("main"))):
            if o.name == "ai.fusion":
                inner = [i.name.removeprefix("ai.") for i in ir.operations(ir.body(o))][:-1]
                inner = [n.removeprefix("elemwise_") for n in inner if n != "full"]
                found.append(f"{ir.attrs(o)['kind']}({', '.join(inner)})")
            elif o.name not in ("func.return", "ai.constant", "ai.full"):
                found.append(o.name.removeprefix("ai.").removeprefix("elemwise_"))
    return found


def bert(layers: int, hidden: int = 64, heads: int = 4, exported: bool = True) -> Program:
    """An encoder as PyTorch exports it: attention, layer norm and gelu written out."""

    def norm(m: Maker, x: Any) -> Any:
        centred = m.sub(x, m.reduce_mean(x, axes=(2,), keepdims=True))
        variance = m.reduce_mean(m.pow(centred, 2.0), axes=(2,), keepdims=True)
        y = m.div(centred, m.sqrt(m.add(variance, 1e-5)))
        return m.add(m.mul(y, m.weight(hidden)), m.weight(hidden))

    def dense(m: Maker, x: Any, n: int, k: int) -> Any:
        return m.add(m.matmul(x, m.weight(n, k, low=-0.1, high=0.1)), m.weight(k))

    def split(m: Maker, x: Any) -> Any:
        b, s, _ = ir.type_of(x).shape
        y = m.reshape(dense(m, x, hidden, hidden), shape=(b, s, heads, hidden // heads))
        return m.transpose(y, perm=(0, 2, 1, 3))

    def layer(m: Maker, x: Any, mask: Any) -> Any:
        q, k, v = (split(m, x) for _ in range(3))
        scores = m.matmul(q, m.transpose(k, perm=(0, 1, 3, 2)))
        scores = m.div(scores, float(np.sqrt(hidden // heads)))
        p = m.softmax(m.add(scores, mask), axis=3)
        p = ir.build("ai.where", m.is_nan(p), ir.full(0.0), p)
        y = m.transpose(m.matmul(p, v), perm=(0, 2, 1, 3))
        y = m.reshape(y, shape=ir.type_of(x).shape)
        x = norm(m, m.add(dense(m, y, hidden, hidden), x))
        h = dense(m, x, hidden, 4 * hidden)
        e = m.erf(m.div(h, float(np.sqrt(2))))
        h = m.mul(m.mul(h, m.add(e, 1.0)), 0.5)
        return norm(m, m.add(dense(m, h, 4 * hidden, hidden), x))

    def body(m: Maker, x: Any, mask: Any) -> Any:
        for _ in range(layers):
            x = layer(m, x, mask)
        return x

    return make({"x": f"[b,s,{hidden}]", "mask": "[b,1,1,s]"}, body)
