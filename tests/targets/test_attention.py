"""Attention: samples, odd sizes, symbols, masks, grouped heads, and the operations around it."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims_text import parse
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import attention
from tests.targets.kernel_harness import (
    CHIPS,
    V4,
    Kernel,
    check,
    compare,
    program_of,
    random_feeds,
    tensor,
)
from tests.targets.samples import check_sample, on_chips, on_samples

SIZES = [
    {"b": b, "s": s, "t": t}
    for b, s, t in (
        (1, 1, 1),
        (2, 7, 64),
        (1, 48, 65),
        (1, 50, 130),
        (1, 97, 33),
        (1, 9, 515),
        (1, 300, 290),
    )
]


@on_chips
@on_samples(lambda o: o.name == "ai.attention")
def test_samples(name, case, chip):
    check_sample(name, case, chip, attention.schedule)


@pytest.mark.parametrize("mask", [None, "b,1,1,t", "1,4,s,t", "s,1", "b,1,s,t"])
@pytest.mark.parametrize("causal", [False, True])
@on_chips
def test_symbolic(mask, causal, chip):
    types = [tensor("b,4,s,24"), tensor("b,2,t,24"), tensor("b,2,t,40")] + (
        [tensor(mask)] if mask else []
    )
    program = program_of(types, lambda *x: ir.build("ai.attention", *x, scale=0.3, causal=causal))
    check(program, chip, attention.schedule, SIZES)


@pytest.mark.parametrize(
    ("s", "t", "d"),
    [(1, 200, 64), (128, 128, 64), (5, 0, 4), (3, 17, 80), (2, 259, 64), (7, 700, 24)],
)
def test_static(s, t, d):
    types = [tensor(f"1,2,{s},{d}"), tensor(f"1,2,{t},{d}"), tensor(f"1,2,{t},{d}")]
    program = program_of(types, lambda *x: ir.build("ai.attention", *x, scale=0.125))
    check(program, V4, attention.schedule)


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("layout", ["plain", "turned", "sliced"])
@on_chips
def test_few_queries(queries, layout, chip):
    """Keys are read as they lie, if their features lie side by side: the last of them at the end of
    memory, some in the middle of a vector of keys.
    """
    kind = {"plain": "b,2,t,32", "turned": "b,t,2,32", "sliced": "b,2,t,48"}[layout]
    types = [tensor(f"b,4,{queries},32"), tensor(kind), tensor("b,2,t,24"), tensor("b,1,1,t")]

    def body(q, k, v, mask):
        if layout == "turned":
            k = ir.build("ai.transpose", k, perm=(0, 2, 1, 3))
        if layout == "sliced":
            sizes = (*ir.type_of(k).shape[:3], 32)
            k = ir.build("ai.slice", k, starts=(0, 0, 0, 16), steps=(1, 1, 1, 1), sizes=sizes)
        return ir.build("ai.attention", q, k, v, mask, scale=0.2)

    sizes = [
        {"b": b, "t": t} for b, t in ((1, 1), (3, 16), (2, 67), (1, 63), (1, 64), (1, 300), (2, 0))
    ]
    check(program_of(types, body), chip, attention.schedule, sizes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_chips
def test_halves(dtype, chip):
    """Keys with whole vectors of features, which are floats only after they are read."""
    types = [tensor("2,4,9,24", dtype), tensor("2,9,4,24", dtype), tensor("2,4,9,24", dtype)]

    def body(q, k, v):
        heads = ir.build("ai.transpose", k, perm=(0, 2, 1, 3))
        return ir.build("ai.attention", q, heads, v, scale=0.25)

    check(program_of(types, body), chip, attention.schedule)


@on_chips
def test_hidden_keys(chip):
    """Whole blocks of keys hidden, and a row with everything hidden."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 2, 5, 16)), *(rng.normal(size=(1, 2, 600, 16)) for _ in range(2))]
    feeds = {f"x{n}": a.astype(np.float32) for n, a in enumerate(arrays)}
    visible = rng.random((1, 1, 5, 600)) < 0.5
    visible[..., :300] = False
    visible[0, 0, 3] = False
    types = [tensor("1,2,5,16"), tensor("1,2,600,16"), tensor("1,2,600,16")]
    for mask, dtype in (
        (visible, "bool"),
        (np.where(visible, 0, -np.inf).astype(np.float32), "float32"),
    ):
        program = program_of(
            [*types, tensor("1,1,5,600", dtype)],
            lambda *x: ir.build("ai.attention", *x, scale=0.25),
        )
        compare(program, {**feeds, "x3": mask}, chip, attention.schedule)


@pytest.mark.parametrize("growth", [-40.0, -3.0, 3.0, 7.9, 9.0, 40.0, 100.0])
@on_chips
def test_scores_that_grow(growth, chip):
    """From block to block, by less or more than what a row's base puts up with."""
    rng = np.random.default_rng(0)
    q, v = np.ones((1, 1, 7, 16)), rng.normal(size=(1, 1, 900, 16))
    k = rng.normal(size=(1, 1, 900, 16)) + (np.arange(900) * growth / 256 / 16)[:, None]
    feeds = {f"x{n}": a.astype(np.float32) for n, a in enumerate((q, k, v))}
    types = [tensor("1,1,7,16"), tensor("1,1,900,16"), tensor("1,1,900,16")]
    program = program_of(types, lambda *x: ir.build("ai.attention", *x, scale=1.0))
    compare(program, feeds, chip, attention.schedule)


def test_projections_in_and_out():
    """Heads cut out of one fused projection, and put back beside each other."""
    s = parse("s")

    def heads(x, start):
        part = ir.build("ai.slice", x, starts=(0, 0, start), steps=(1, 1, 1), sizes=(1, s, 128))
        return ir.build(
            "ai.transpose", ir.build("ai.reshape", part, shape=(1, s, 4, 32)), perm=(0, 2, 1, 3)
        )

    def body(x):
        y = ir.build("ai.attention", heads(x, 0), heads(x, 128), heads(x, 256), scale=0.2)
        return ir.build(
            "ai.reshape", ir.build("ai.transpose", y, perm=(0, 2, 1, 3)), shape=(1, s, 128)
        )

    check(program_of([tensor("1,s,384")], body), V4, attention.schedule, [{"s": 1}, {"s": 70}])


@pytest.mark.parametrize("softcap", [1e-40, 2.0])
def test_softcap(softcap):
    """One whose inverse float32 does not have, too."""
    types = [tensor("1,2,5,4"), tensor("1,2,70,4"), tensor("1,2,70,4")]
    program = program_of(types, lambda *x: ir.build("ai.attention", *x, scale=1.0, softcap=softcap))
    check(program, V4, attention.schedule)


def test_elementwise_operations_follow():
    """What exporters leave: rows that see nothing become 0; then heads go beside each other."""

    def body(q, k, v, mask):
        y = ir.build("ai.attention", q, k, v, mask, scale=1.0)
        y = ir.build("ai.where", ir.build("ai.is_nan", y), ir.full(0.0), y)
        return ir.build("ai.transpose", y, perm=(0, 2, 1, 3))

    program = program_of([tensor("1,2,5,4")] * 3 + [tensor("5,5")], body)
    feeds = random_feeds(program)
    feeds["x3"] = np.where(np.arange(5)[:, None] == 2, -np.inf, 0).repeat(5, 1).astype(np.float32)
    for chip in CHIPS:
        compare(program, feeds, chip, attention.schedule)


def test_a_result_of_another_shape_is_refused():
    def body(q, k, v):
        y = ir.build("ai.attention", q, k, v, scale=1.0)
        return ir.build("ai.relu", ir.build("ai.reshape", y, shape=(8,)))

    with pytest.raises(Miss, match="transposes and reshapes"):
        Kernel(program_of([tensor("1,1,2,4")] * 3, body), V4, attention.schedule)
