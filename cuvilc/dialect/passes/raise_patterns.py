"""Recognise what exporters wrote out: activations, softmax, normalisations, attention.

Expects canonical form: powers as products, subtraction of numbers as addition, transposes in
flags.
"""

from __future__ import annotations

from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import (
    raise_patterns_activations,
    raise_patterns_attention,
    raise_patterns_norm,
)
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.raise_patterns_projections import join_projections
from cuvilc.dialect.passes.rules_graph import Graph, merged_rules, rewrite

NAME = "raise-patterns"
VERSION = 1


RULES = merged_rules(
    raise_patterns_norm.RULES, raise_patterns_activations.RULES, raise_patterns_attention.RULES
)


def run(program: Program, context: PassContext) -> None:
    """After it the program says layer_norm, gelu, attention where it meant them."""
    if context.math_exact:
        return
    with program:
        graph = Graph(program)
        rewrite(graph, RULES, context)
        join_projections(graph, context)
