"""Constant operations go; what would bloat the package stays and says so."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes import fold_constants
from tests.dialect.passes.programs import make, names, same


def test_dequantised_weight_becomes_one_constant() -> None:
    def body(m, x):
        w = m.weight(16, 8, low=-100, high=100, dtype="int8")
        wide = m.mul(m.cast(w, dtype="float32"), m.weight(1, 8))
        return m.matmul(x, wide)

    program = make({"x": "[n,16]"}, body)
    keys = set(program.weights)
    same(program, fold_constants)
    assert names(program) == ["matmul"]
    (new,) = set(program.weights) - keys
    assert new == "+".join(sorted(keys))
    assert program.weights[new].dtype == np.float32


def test_small_results_become_numbers() -> None:
    program = make({"x": "[3]"}, lambda m, x: m.mul(x, m.sqrt(m.add(m.weight(1), 2.0))))
    same(program, fold_constants)
    assert names(program) == ["mul"]
    assert "ai.constant" not in program.text()


def test_large_expansion_stays_with_a_reason() -> None:
    program = make(
        {"x": "[300,300]"},
        lambda m, x: m.add(x, m.broadcast_to(m.weight(1, 300), shape=(300, 300))),
    )
    context = same(program, fold_constants)
    assert names(program) == ["broadcast_to", "add"]
    assert context.why("fold-constants") == ["the result is 358800 bytes larger than its operands"]


def test_large_arrays_go_in_parts() -> None:
    """The chunked path gives what the whole would."""

    def body(m, x):
        return m.add(x, m.mul(m.weight(1200, 1000), m.weight(1200, 1)))

    program = make({"x": "[1200,1000]"}, body)
    same(program, fold_constants)
    assert names(program) == ["add"]


@pytest.mark.parametrize(
    ("axis", "block", "scales"),
    [(0, 0, (1200,)), (0, 50, (24, 1000)), (1, 0, (1000,)), (1, 50, (1200, 20))],
)
def test_scales_of_large_arrays(axis: int, block: int, scales: tuple[int, ...]) -> None:
    """Parts of a matrix meet the scales that are theirs, whichever axis those are along."""

    def body(m, x):
        levels = m.weight(1200, 1000, low=-100, high=100, dtype="int8")
        zero = m.weight(*scales, low=-100, high=100, dtype="int8")
        w = ir.build(
            "ai.dequantize_linear", levels, m.weight(*scales), zero, axis=axis, block=block
        )
        return m.add(x, w)

    program = make({"x": "[1200,1000]"}, body)
    same(program, fold_constants)
    assert names(program) == ["add"]


def test_several_readers_share_one_constant() -> None:
    def body(m, x):
        w = m.neg(m.weight(7))
        return m.add(m.mul(x, w), w)

    program = make({"x": "[7]"}, body)
    same(program, fold_constants)
    assert program.text().count("ai.constant") == 1


def test_inside_branches() -> None:
    def body(m, x, c):
        y = ir.build("ai.if", c, types=[ir.type_of(x)])
        for region in ir.defining(y).regions:
            with ir.at_end(region.blocks.append()):
                ir.build("ai.yield", m.add(x, m.neg(m.weight(5))))
        return y

    program = make({"x": "[5]", "c": "bool[]"}, body)
    same(program, fold_constants)
    assert "ai.neg" not in program.text()


def test_sizes_known_at_run_time_stay() -> None:
    """A model may give its input's shape away: no operand, and yet no constant."""

    def body(m, x):
        n, k = ir.type_of(x).shape
        return m.cast(ir.build("ai.dim_values", values=(n, k)), dtype="float32")

    program = make({"x": "[n,4]"}, body)
    same(program, fold_constants)
    assert names(program) == ["dim_values", "cast"]
