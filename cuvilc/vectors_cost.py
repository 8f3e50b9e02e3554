"""What a run costs the interpreter: decides whether a build bundles test vectors unasked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate
from cuvilc.dialect.ops.structure import computed_sizes

_WIDENING = 8  # the interpreter's work per element it reads or writes, in FLOPs
_COMPUTED = 8  # what a size that the model computes, such as the rounds of a loop, is taken for
_WITHOUT_BLAS = 16  # products of integers are that much slower


def cost(program: Any, sizes: Mapping[str, int]) -> int:
    """In FLOPs: products, and every element touched."""
    with program:
        computed = dict.fromkeys(computed_sizes(ir.body(program.function("main"))), _COMPUTED)
        sizes = computed | dict(sizes)
        return sum(_work(o, sizes) for o in ir.walk(ir.body(program.function("main"))))


def _work(operation: Any, sizes: Mapping[str, int]) -> int:
    def elements(value: Any) -> int:
        total = 1
        for d in ir.type_of(value).shape:
            total *= max(evaluate(d, sizes), 0)
        return total

    if ir.definition(operation) is None or operation.name in ir.CONSTANTS:
        return 0
    operands = [elements(v) for v in operation.operands]
    made = sum(elements(v) for v in operation.results)
    work = _WIDENING * (sum(operands) + made)
    if operation.name in _PRODUCTS and len(operands) > 1:
        products = 2 * made * _depth(operation, operands, sizes)
        work += products * (1 if ir.type_of(operation.results[0]).is_float else _WITHOUT_BLAS)
    return work


_RECURRENT = ("ai.lstm", "ai.gru", "ai.rnn")
_PRODUCTS = ("ai.matmul", "ai.conv", "ai.conv_transpose", "ai.attention", *_RECURRENT)


def _depth(operation: Any, operands: list[int], sizes: Mapping[str, int]) -> int:
    """Multiplications for one element of the result."""
    shapes = [[evaluate(d, sizes) for d in ir.type_of(v).shape] for v in operation.operands]
    if operation.name == "ai.matmul":
        transposed = ir.attrs(operation).get("transpose_a")
        return shapes[0][-2 if transposed else -1] if len(shapes[0]) > 1 else operands[0]
    if operation.name == "ai.attention":
        return 2 * shapes[1][-2]
    if operation.name in _RECURRENT:  # w [D, gates·H, I] and r [D, gates·H, H] make [.., D, .., H]
        return (operands[1] + operands[2]) // max(shapes[2][0] * shapes[2][-1], 1)
    return operands[1] // max(shapes[1][0], 1)
