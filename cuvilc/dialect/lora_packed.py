"""Products by packed weights as products by dequantised ones, which adapters can be put on."""

from __future__ import annotations

from dataclasses import dataclass, field

from cuvilc.diagnostics import fail

from . import ir
from . import lora_codes as codes
from .lora_sites import Site, Sites
from .lora_values import Array
from .narrow import unpack
from .op import OPS
from .types import numpy_dtype

MOVES = ("ai.transpose", "ai.reshape", "ai.cast")


@dataclass
class Uses:
    """The uses of each site (by its number) as they are now; bits of those that were packed."""

    of: list[list[ir.Use]] = field(default_factory=list)
    bits: dict[ir.Operation, int] = field(default_factory=dict)


def unpack_products(program: ir.Program, sites: Sites) -> Uses:
    """After it no site's use is an `ai.matmul_nbits`. CUV743 where its weight is not constant."""
    found = Uses()
    made: dict[ir.Operation, ir.Operation] = {}
    for site in sites:
        uses = []
        for operation, operand in site.uses:
            if operation.name == "ai.matmul_nbits":
                if operation not in made:
                    made[operation] = _unpacked(program, operation, site)
                    found.bits[made[operation]] = ir.attrs(operation)["bits"]
                uses.append((made[operation], 1))
            else:
                uses.append((operation, operand))
        found.of.append(uses)
    for operation, product in made.items():
        ir.replace(operation, product.results[0])
    return found


def _unpacked(program: ir.Program, product: ir.Operation, site: Site) -> ir.Operation:
    """x · dequantise(numbers)ᵀ, before the product by the packed ones."""
    x, packed, *rest = product.operands
    arrays = [known(program, v) for v in (packed, *rest)]
    constant = [a for a in arrays if a is not None]
    if len(constant) < len(arrays):
        message = f"the packed weight of `{site.module}` is not constant"
        raise fail(codes.NO_PLACE, message, place=ir.source_name(product))
    levels, scales, *points = constant
    bits, block = ir.attrs(product)["bits"], ir.attrs(product)["block"]
    narrow = f"uint{bits}"
    with ir.before(product):
        numbers = unpack(levels, bits).astype(numpy_dtype(narrow))
        q = ir.constant(program, numbers, f"{site.module}.levels")
        scale = ir.constant(program, scales, f"{site.module}.scale")
        if points:
            stored = points[0].astype(numpy_dtype(narrow))
            zero = ir.constant(program, stored, f"{site.module}.zero")
        else:  # merge-lora sees by the ai.full that there was none
            zero = ir.full(1 << (bits - 1), scales.shape, narrow)
        w = ir.build("ai.dequantize_linear", q, scale, zero, axis=1, block=block)
        return ir.create("ai.matmul", x, w, transpose_a=False, transpose_b=True)


def known(program: ir.Program, value: ir.Value) -> Array | None:
    """The array of a constant, also of one that is only moved or cast; else None."""
    source = ir.defining(value)
    if source is None:
        return None
    if source.name not in MOVES:
        return program.constant_array(value)
    inner = known(program, source.operands[0])
    declared = OPS[source.name]
    if inner is None or declared.reference is None or not ir.type_of(value).is_static:
        return None
    made: Array = declared.reference(inner, **ir.attrs(source))
    return made.astype(numpy_dtype(ir.type_of(value).dtype))
