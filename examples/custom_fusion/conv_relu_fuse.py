"""A fusion rule of one's own: a convolution and the relu after it become one kernel.

    python examples/custom_fusion/conv_relu_fuse.py

The compiler's own rules do this and more; the point is the form: {name, pattern, guard, rewrite}.
"""

from __future__ import annotations

from cuvilc import fusion
from cuvilc.fusion import Match, Miss, Node, Rule, op


def enough_channels(match: Match) -> None:
    """Guard: refuse a convolution with fewer output channels than a vector has lanes."""
    channels = match.graph.type(match["conv"]).shape[1]
    if isinstance(channels, int) and channels < 8:
        raise Miss(f"{channels} output channels do not fill a vector")


def conv_and_relu(match: Match) -> list[Node]:
    """Rewrite: the operations of the kernel. (What the pattern went through is the default.)"""
    return match.nodes


RULE = Rule(
    name="conv_relu_fuse",
    pattern=op("ai.relu", op("ai.conv").one_use().bind("conv")),
    kind="conv",
    guard=enough_channels,
    rewrite=conv_and_relu,
)


def main() -> None:
    """Fuse a small network with the rule and print what it took and what it refused."""
    from network import two_convolutions

    from cuvilc.dialect.passes import fuse
    from cuvilc.dialect.passes.context import PassContext

    fusion.register(RULE)
    try:
        program, context = two_convolutions(), PassContext()
        fuse.run(program, context)
    finally:
        fusion.unregister(RULE.name)
    print(program.text())
    print(f"conv_relu_fuse took {context.applied['conv_relu_fuse']} pair(s)")
    for miss in context.misses:
        if miss.rule == RULE.name:
            print(f"refused at {miss.place}: {miss.why}")


if __name__ == "__main__":
    main()
