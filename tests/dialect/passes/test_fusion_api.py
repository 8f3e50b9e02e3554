"""The public way to add a rule, tried on the shipped example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cuvilc import fusion
from cuvilc.dialect.passes import fuse
from cuvilc.fusion import Match, Miss, Rule, op
from tests.dialect.passes.programs import make, names, same

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_fusion"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import conv_relu_fuse

    yield conv_relu_fuse
    for name in ("conv_relu_fuse", "network"):
        sys.modules.pop(name, None)


@pytest.fixture
def register():
    """Registers rules for one test."""
    added = []

    def add(rule):
        added.append(fusion.register(rule).name)

    yield add
    for name in added:
        fusion.unregister(name)


def test_example_runs(example, capsys) -> None:
    example.main()
    out = capsys.readouterr().out
    assert 'rule = "conv_relu_fuse"' in out
    assert "conv_relu_fuse took 1 pair(s)" in out
    assert "refused at narrow.relu: 4 output channels do not fill a vector" in out


def test_rule_comes_before_the_built_in_ones(register, example) -> None:
    register(example.RULE)

    def body(m, x):
        return m.neg(m.relu(m.conv(x, m.weight(16, 4, 1, 1))))

    program = make({"x": "[n,4,5,5]"}, body)
    same(program, fuse)
    assert names(program) == ["conv(conv, relu)", "elementwise(neg)"]


def test_rule_cannot_break_a_region(register) -> None:
    """A rule that names operations with a third between them is refused: it would make a cycle."""

    def ends(match: Match) -> list:
        middle = match.graph.producers[match["top"]]
        return [match.root, match.graph.producers[middle.operands[0]]]

    pattern = op("ai.neg", op("ai.top_k").bind("top"))
    register(Rule("skips", pattern, "elementwise", rewrite=ends))
    program = make({"x": "[n,8]"}, lambda m, x: m.neg(m.top_k(m.exp(x), k=8, axis=1)[0]))
    context = same(program, fuse)
    assert context.why("skips") == ["another kernel between them needs one and feeds the other"]


def test_results_of_different_shapes_are_refused(register) -> None:
    def both(match: Match) -> list:
        return [match.root, match.graph.producers[match["x"]]]

    pattern = op("ai.reduce_sum", op("ai.exp").bind("x"))
    register(Rule("two shapes", pattern, "reduction", rewrite=both))

    def body(m, x):
        e = m.exp(x)
        return m.reduce_sum(e, axes=(1,), keepdims=False), e

    context = same(make({"x": "[n,8]"}, body), fuse)
    assert context.why("two shapes") == ["the results have different shapes"]


def test_guard_may_refuse(register) -> None:
    def never(match: Match) -> None:
        raise Miss("not today")

    register(Rule("never", op("ai.exp"), "elementwise", guard=never))
    context = same(make({"x": "[n,8]"}, lambda m, x: m.exp(x)), fuse)
    assert context.why("never") == ["not today"]


def test_bad_rules_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="kind 'fast' is none of"):
        fusion.register(Rule("x", op("ai.exp"), "fast"))
    with pytest.raises(ValueError, match="must start with an operation"):
        fusion.register(Rule("x", fusion.any_value("x"), "conv"))
    fusion.register(rule := Rule("x", op("ai.exp"), "elementwise"))
    try:
        with pytest.raises(ValueError, match="is registered already"):
            fusion.register(Rule("x", op("ai.sin"), "elementwise"))
        assert fusion.register(rule) is rule
    finally:
        fusion.unregister("x")
