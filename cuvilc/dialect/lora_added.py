"""Biases that the graph of a model lacks: exporters drop those that are zeros, and some layers have
none. An adapter that brings one gets zeros to change, added to the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import ir
from .lora_packed import MOVES

# What stands between a product and its bias without computing anything else.
_PASSED = (*MOVES, "ai.slice", "ai.quantize_linear", "ai.dequantize_linear")


def products(use: ir.Use) -> Iterator[ir.Use]:
    """What computes with the weight that `use` reads, behind whatever moves it, and as which
    operand.
    """
    operation, operand = use
    if operation.name not in MOVES:
        yield operation, operand
        return
    for read in ir.uses(operation.results[0]):
        yield from products(read)


def outputs_axis(product: ir.Use) -> int:
    """The axis of a product's result, from its end, along which the weight's outputs lie; 0 for
    none.
    """
    operation, operand = product
    rank = ir.type_of(operation.results[0]).rank
    axes = {
        ("ai.matmul", 1): -1, ("ai.matmul", 0): -2, ("ai.matmul_nbits", 1): -1,
        ("ai.conv", 1): 1 - rank,
    }  # fmt: skip
    axis = axes.get((operation.name, operand), 0)
    return axis if -rank <= axis else 0


def is_bare(product: ir.Operation) -> bool:
    """Whether certainly no bias is added to what a product gives: no constant is, as far as sums
    and moves go on, and a convolution has none of its own.
    """
    if product.name == "ai.conv" and len(product.operands) > 2:
        return False
    waiting, seen = [product.results[0]], set[ir.Operation]()
    while waiting:
        for user, place in ir.uses(waiting.pop()):
            if user.name == "ai.elemwise_add":
                if _is_fixed(user.operands[1 - place]):
                    return False
            elif user.name not in _PASSED:
                continue
            if user not in seen:
                seen.add(user)
                waiting.append(user.results[0])
    return True


def is_scaled(product: ir.Operation) -> bool:
    """Whether the model's node multiplies its product (alpha of a Gemm) before it adds a bias."""
    node = ir.source_name(product)
    users = ir.users(product.results[0])
    return any(u.name == "ai.elemwise_mul" and ir.source_name(u) == node for u in users)


def add_zeros(weight: ir.Value, reads: Sequence[ir.Use]) -> tuple[ir.Value, list[ir.Use]]:
    """Zeros that are added to products by one weight, each a line along its outputs, and the
    additions' uses of them. The products must be alike.
    """
    owner = ir.defining(weight)
    assert owner is not None
    t, axis = ir.type_of(reads[0][0].results[0]), outputs_axis(reads[0])
    with ir.after(owner):
        zeros = ir.full(0.0, (t.shape[axis], *[1] * (-axis - 1)), t.dtype)
    added = []
    for product, _ in reads:
        result = product.results[0]
        readers = ir.uses(result)
        with ir.after(product):
            made = ir.create("ai.elemwise_add", result, zeros)
        for reader, place in readers:
            reader.operands[place] = made.results[0]
        added.append((made, 1))
    return zeros, added


def _is_fixed(value: ir.Value) -> bool:
    """Whether a value is the same in every run."""
    waiting, seen = [value], set[ir.Operation]()
    while waiting:
        owner = ir.defining(waiting.pop())
        if owner is None or (not len(owner.operands) and owner.name not in ir.CONSTANTS):
            return False
        if owner not in seen:
            seen.add(owner)
            waiting += owner.operands
    return True
