"""Quantised products in integers: what was dequantised, multiplied and quantised again.

- A dequantisation moves down past operations that only move or compare elements, so that these work
  on bytes and dequantisations meet the quantisations that undo them.
- Products and convolutions of dequantised bytes become sums in int32, then one multiplication by
  the product of the scales. int32 biases in units of that product are added to the sums.
- A quantisation after it divides the scales instead of the values.
- The sums themselves are brought into the one form that has fast schedules, uint8 times int8 with
  nothing subtracted; zero points become terms beside them:
  Σ (a - p)(b - q) = Σ a·b - p·Σ b - q·Σ a + n·p·q.    (Jacob et al. 2018, eq. 7)

Integer sums are exact and wrap as the interpreter's do, so these are equal bit by bit; the result
is quantised from sum · (a scale · b scale / y scale), as onnxruntime and ONNX's reference do it.
"""

from __future__ import annotations

from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.raise_integers_levels import RULES as LEVELS
from cuvilc.dialect.passes.raise_integers_products import RULES as PRODUCTS
from cuvilc.dialect.passes.raise_integers_sums import RULES as SUMS
from cuvilc.dialect.passes.rules_graph import Graph, merged_rules, rewrite

NAME = "raise-integers"
VERSION = 2

RULES = merged_rules(LEVELS, PRODUCTS, SUMS)


def run(program: Program, context: PassContext) -> None:
    """After it no product takes dequantised bytes, where one scale is enough for an operand's row
    or column, and every sum of bytes is of uint8 times int8 without zero points.
    """
    with program:
        rewrite(Graph(program), RULES, context)
