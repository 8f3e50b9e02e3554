"""Golden IR: tests/ir/PASS.mlir holds each pass's input and output; `make golden` rewrites them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes import (
    canonicalize,
    choose_convolutions,
    float_levels,
    fold_batch_norm,
    fold_constants,
    fuse,
    merge_lora,
    raise_integers,
    raise_patterns,
    require_sizes,
    simplify_shapes,
)
from tests.dialect.passes.programs import bert, make, run

FOLDER = Path(__file__).parents[2] / "ir"


def _canonicalize() -> Any:
    def body(m, x):
        y = m.maximum(m.add(m.pow(x, 2.0), 0.0), 0.0)
        return m.transpose(m.transpose(m.div(y, 4.0), perm=(1, 0)), perm=(1, 0))

    return make({"x": "[n,5]"}, body)


def _fold_constants() -> Any:
    def body(m, x):
        w = m.mul(m.cast(m.weight(4, 3, low=-9, high=9, dtype="int8"), dtype="float32"), 0.5)
        return m.matmul(x, w)

    return make({"x": "[n,4]"}, body)


def _simplify_shapes() -> Any:
    def body(m, x):
        y = m.pad(m.transpose(m.relu(m.transpose(x, perm=(0, 2, 3, 1))), perm=(0, 3, 1, 2)),
                  before=(0, 0, 1, 1), after=(0, 0, 1, 1))  # fmt: skip
        return m.conv(y, m.weight(4, 3, 3, 3))

    return make({"x": "[n,3,h,w]"}, body)


def _merge_lora() -> Any:
    def body(m, x):
        w = m.weight(6, 4)  # q and v, side by side
        for start, module in ((0, "q"), (4, "v")):
            w = m.lora(w, m.weight(1, 4), m.weight(2, 1), scale=2.0, start=start, adapter="sql",
                       module=module)  # fmt: skip
        y = m.matmul(x, w, transpose_b=True)
        q = m.dequantize_linear(m.weight(3, 6, low=-99, high=99, dtype="int8"), m.weight(3), axis=0)
        q = m.lora(q, m.weight(1, 6), m.weight(3, 1), scale=0.5, adapter="sql", module="out")
        return m.matmul(y, q, transpose_b=True)

    return make({"x": "[n,4]"}, body)


def _raise_patterns() -> Any:
    program = bert(1, hidden=8, heads=2)
    run(program, canonicalize)
    return program


def _raise_integers() -> Any:
    def body(m, x):
        def point(value: int, dtype: str) -> Any:
            return ir.full(value, (), dtype)

        q = m.quantize_linear(x, ir.full(0.02), point(7, "int8"))
        left = m.dequantize_linear(q, ir.full(0.02), point(7, "int8"))
        w = m.dequantize_linear(m.weight(4, 3, 3, 3, low=-99, high=99, dtype="int8"),
                                ir.full(0.01), point(0, "int8"))  # fmt: skip
        y = m.relu(m.conv(left, w, pad=1))
        return m.quantize_linear(y, ir.full(0.5), point(-128, "int8"))

    return make({"x": "[n,3,8,8]"}, body)


def _fold_batch_norm() -> Any:
    def body(m, x):
        y = m.conv(x, m.weight(4, 3, 3, 3), pad=1)
        return m.relu(m.add(m.mul(y, m.weight(4, 1, 1)), m.weight(4, 1, 1)))

    return make({"x": "[n,3,h,w]"}, body)


def _choose_convolutions() -> Any:
    def body(m, x):
        y = m.relu(m.conv(x, m.weight(32, 16, 3, 3), m.weight(32), pad=1))
        y = m.conv(y, m.weight(16, 32, 3, 3), pad=1, stride=2)
        return m.conv(y, m.weight(48, 16, 1, 3))

    return make({"x": "[n,16,h,80]"}, body)


def _fuse() -> Any:
    def body(m, x, r):
        y = m.relu(m.add(m.conv(x, m.weight(4, 3, 1, 1)), r))
        s = m.softmax(m.mul(m.reshape(y, shape=(*ir.type_of(y).shape[:1], 64)), 0.125), axis=1)
        return m.reduce_sum(s, axes=(1,), keepdims=False), m.sigmoid(y)

    return make({"x": "[n,3,4,4]", "r": "[n,4,4,4]"}, body)


def _float_levels() -> Any:
    """Of two sums of levels the first is in one kernel with them."""

    def body(m, x, r):
        def levels(y: Any, number: int) -> Any:
            zero = ir.full(number, (), "uint8")
            q = m.quantize_linear(y, ir.full(0.5), zero)
            return q, m.dequantize_linear(q, ir.full(0.25), zero)

        _, y = levels(x, 3)
        shared, z = levels(m.add(y, r), 7)
        return shared, m.neg(z)

    program = make({"x": "[n,5]", "r": "[n,5]"}, body)
    run(program, fuse)
    return program


def _require_sizes() -> Any:
    def body(m, x, y):
        z = m.add(x, y)
        return m.slice(z, starts=(0, 1), steps=(1, 1), sizes=(ir.type_of(z).shape[0], 2))

    return make({"x": "[n,5]", "y": "[k,5]"}, body, {"n": (1, 8), "k": (1, 8)})


CASES = {
    require_sizes: _require_sizes,
    merge_lora: _merge_lora,
    canonicalize: _canonicalize,
    fold_constants: _fold_constants,
    simplify_shapes: _simplify_shapes,
    raise_integers: _raise_integers,
    raise_patterns: _raise_patterns,
    fold_batch_norm: _fold_batch_norm,
    choose_convolutions: _choose_convolutions,
    fuse: _fuse,
    float_levels: _float_levels,
}


@pytest.mark.parametrize("module", CASES, ids=lambda m: m.NAME)
def test_golden(module: Any) -> None:
    program = CASES[module]()
    before = program.text()
    run(program, module)
    text = f"// before {module.NAME}\n{before}// after {module.NAME}\n{program.text()}"
    path = FOLDER / f"{module.NAME}.mlir"
    if os.environ.get("CUVILC_UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), "run `make golden`"
    assert text == path.read_text()
