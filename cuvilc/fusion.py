"""Public API of the fusion engine: say in one rule what becomes one kernel.

    from cuvilc import fusion
    from cuvilc.fusion import op

    def enough_channels(match):
        if match.graph.type(match["conv"]).shape[1] == 1:
            raise fusion.Miss("a single channel is not worth a kernel of its own")

    fusion.register(fusion.Rule(
        name="conv_relu_fuse", kind="conv", guard=enough_channels,
        pattern=op("ai.relu", op("ai.conv").one_use().bind("conv")),
    ))

A package can offer rules without being imported: entry points of group "cuvilc.fusion_rules"
that name `Rule` objects. Rules of higher priority choose first; the built-in ones lie between 10
and 100. `cuvilc build --explain-fusion` prints what each rule took and why it refused.
"""

from __future__ import annotations

from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.fuse_rules import GROUP, KINDS, register, rules, unregister
from cuvilc.dialect.passes.fuse_rules import FusionRule as Rule
from cuvilc.dialect.passes.rules_graph import Graph, Node
from cuvilc.dialect.passes.rules_pattern import (
    Match,
    Pattern,
    any_value,
    constant,
    either,
    maybe,
    number,
    op,
)

__all__ = [
    "GROUP", "KINDS", "Graph", "Match", "Miss", "Node", "Pattern", "Rule", "any_value", "constant",
    "either", "maybe", "number", "op", "register", "rules", "unregister",
]  # fmt: skip
