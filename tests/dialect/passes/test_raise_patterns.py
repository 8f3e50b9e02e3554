"""What exporters write out is recognised, whatever its spelling; what does not fit says why."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes import canonicalize, raise_patterns
from tests.dialect.passes.programs import bert, make, names, same
from tests.tolerances import RELATIVE, REWRITTEN

PASSES = (canonicalize, raise_patterns)
ROOT2 = math.sqrt(2)


def _tanh_gelu(m, x):
    cube = m.mul(m.pow(x, 3.0), 0.044715)
    inner = m.mul(m.add(x, cube), math.sqrt(2 / math.pi))
    return m.mul(m.mul(x, 0.5), m.add(m.tanh(inner), 1.0))


def _tanh_gelu_factored(m, x):
    inner = m.mul(m.mul(x, 0.7978845608), m.add(m.mul(m.mul(x, 0.044715), x), 1.0))
    return m.mul(m.mul(m.add(m.tanh(inner), 1.0), x), 0.5)


def _softmax(m, x):
    e = m.exp(m.sub(x, m.reduce_max(x, axes=(1,), keepdims=True)))
    return m.div(e, m.reduce_sum(e, axes=(1,), keepdims=True))


ACTIVATIONS = {
    "gelu": lambda m, x: m.mul(m.mul(x, 0.5), m.add(m.erf(m.div(x, ROOT2)), 1.0)),
    "gelu outer half": lambda m, x: m.mul(0.5, m.mul(m.add(1.0, m.erf(m.mul(x, 1 / ROOT2))), x)),
    "gelu half inside": lambda m, x: m.mul(x, m.mul(m.add(m.erf(m.div(x, ROOT2)), 1.0), 0.5)),
    "gelu tanh": _tanh_gelu,
    "gelu tanh factored": _tanh_gelu_factored,
    "silu": lambda m, x: m.mul(x, m.sigmoid(x)),
    "silu scaled": lambda m, x: m.mul(x, m.sigmoid(m.mul(x, 1.702))),
    "silu quotient": lambda m, x: m.div(x, m.add(m.exp(m.neg(x)), 1.0)),
    "sigmoid": lambda m, x: m.div(1.0, m.add(m.exp(m.neg(x)), 1.0)),
    "hard_swish": lambda m, x: m.mul(x, m.hard_sigmoid(x, alpha=1 / 6, beta=0.5)),
    "hard_swish clip": lambda m, x: m.div(
        m.mul(x, m.clip(m.add(x, 3.0), low=0.0, high=6.0)), 6.0
    ),
    "hard_sigmoid": lambda m, x: m.div(m.clip(m.add(x, 3.0), low=0.0, high=6.0), 6.0),
    "mish": lambda m, x: m.mul(x, m.tanh(m.softplus(x))),
    "mish written out": lambda m, x: m.mul(x, m.tanh(m.log(m.add(m.exp(x), 1.0)))),
    "softmax": _softmax,
}  # fmt: skip


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activation(case: str) -> None:
    program = make({"x": "[n,7]"}, ACTIVATIONS[case])
    same(program, *PASSES, limit=REWRITTEN)
    left = [n for n in names(program) if n != "softplus"]
    assert left == [case.split()[0]]


def test_another_constant_is_not_gelu() -> None:
    program = make(
        {"x": "[n,7]"}, lambda m, x: m.mul(m.mul(x, 0.5), m.add(m.erf(m.div(x, 1.5)), 1.0))
    )
    same(program, *PASSES)
    assert "gelu" not in names(program)


def _centred_over_deviation(m, x, axes, spelled):
    c = m.sub(x, m.reduce_mean(x, axes=axes, keepdims=True))
    square = m.pow(c, 2.0) if spelled != "mul" else m.mul(c, c)
    v = m.add(m.reduce_mean(square, axes=axes, keepdims=True), 1e-5)
    if spelled == "power":
        return m.mul(c, m.pow(v, -0.5))
    return m.div(c, m.sqrt(v))


@pytest.mark.parametrize("spelled", ["pow", "mul", "power"])
def test_layer_norm(spelled: str) -> None:
    def body(m, x):
        y = _centred_over_deviation(m, x, (2,), spelled)
        return m.add(m.mul(m.weight(8), y), m.weight(8))

    program = make({"x": "[b,s,8]"}, body)
    same(program, *PASSES, limit=REWRITTEN)
    assert names(program) == ["layer_norm"]


def test_layer_norm_over_pixels_keeps_its_channel_scale() -> None:
    def body(m, x):
        y = _centred_over_deviation(m, x, (2, 3), "pow")
        return m.add(m.mul(y, m.weight(3, 1, 1)), m.weight(3, 1, 1))

    program = make({"x": "[b,3,4,5]"}, body)
    same(program, *PASSES, limit=REWRITTEN)
    assert names(program) == ["layer_norm", "mul", "add"]


def test_layer_norm_over_other_axes_refused() -> None:
    program = make({"x": "[b,3,4]"}, lambda m, x: _centred_over_deviation(m, x, (1,), "pow"))
    context = same(program, *PASSES)
    assert context.why("layer-norm") == [
        "the means are over axes (1,), which are not the last ones"
    ]


def test_residual_is_not_taken_for_a_bias() -> None:
    def body(m, x, r):
        return m.add(m.mul(_centred_over_deviation(m, x, (1,), "pow"), m.weight(8)), r)

    program = make({"x": "[b,8]", "r": "[8]"}, body)
    same(program, *PASSES, limit=REWRITTEN)
    assert names(program) == ["layer_norm", "add"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rms_norm(dtype: str) -> None:
    """LLaMA's: in float32, cast back, then the weight."""

    def body(m, x):
        wide = m.cast(x, dtype="float32")
        v = m.add(m.reduce_mean(m.pow(wide, 2.0), axes=(2,), keepdims=True), 1e-6)
        y = m.mul(wide, m.div(1.0, m.sqrt(v)))
        return m.mul(m.weight(8, dtype=dtype), m.cast(y, dtype=dtype))

    program = make({"x": f"{dtype}[b,s,8]"}, body)
    same(program, *PASSES, limit=RELATIVE["float16"] if dtype == "float16" else REWRITTEN)
    assert names(program) == ["rms_norm"]


def _attention(m, q, k, v, mask=None, scale=None, debris=False, mask_by="add"):
    rank = ir.type_of(k).rank
    scores = m.matmul(q, m.transpose(k, perm=(*range(rank - 2), rank - 1, rank - 2)))
    scores = scores if scale is None else m.mul(scores, scale)
    if mask is not None and mask_by == "add":
        scores = m.add(scores, mask)
    elif mask is not None:
        scores = ir.build("ai.where", mask, scores, ir.full(-math.inf))
    p = m.softmax(scores, axis=rank - 1)
    if debris:
        p = ir.build("ai.where", m.is_nan(p), ir.full(0.0), p)
    return m.matmul(p, v)


HEADS = {"q": "[b,4,s,8]", "k": "[b,4,t,8]", "v": "[b,4,t,6]"}


def test_attention() -> None:
    program = make(HEADS, lambda m, q, k, v: _attention(m, q, k, v, scale=0.35))
    same(program, *PASSES, limit=REWRITTEN)
    assert names(program) == ["attention"]


def test_attention_with_each_factor_scaled() -> None:
    def body(m, q, k, v):
        return _attention(m, m.mul(q, 0.6), m.mul(k, 0.6), v)

    program = make(HEADS, body)
    same(program, *PASSES, canonicalize, limit=REWRITTEN)
    assert names(program) == ["attention"]


@pytest.mark.parametrize(("mask", "how"), [("[b,1,s,t]", "add"), ("bool[b,1,1,t]", "where")])
def test_attention_with_mask(mask: str, how: str) -> None:
    program = make(
        {**HEADS, "mask": mask},
        lambda m, q, k, v, mask: _attention(m, q, k, v, mask, 0.35, mask_by=how),
    )
    same(program, *PASSES, limit=REWRITTEN)
    assert names(program) == ["attention"]


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        (np.zeros((5, 7), np.float32), 3),
        (np.ones((1, 1, 5, 7), bool), 3),
        (np.eye(5, 7, dtype=np.float32), 4),
        (np.eye(5, 7, dtype=bool), 4),
    ],
    ids=["zeros", "true", "not zeros", "not all true"],
)
def test_a_constant_mask_that_hides_nothing(mask: np.ndarray, count: int) -> None:
    """It goes; others stay."""
    inputs = {"q": "[2,4,5,8]", "k": "[2,4,7,8]", "v": "[2,4,7,6]"}

    def body(m, q, k, v):
        return ir.build("ai.attention", q, k, v, ir.constant(m.program, mask, "mask"), scale=0.35)

    program = make(inputs, body)
    same(program, raise_patterns, limit=REWRITTEN)
    with program:
        operations = ir.walk(ir.body(program.function("main")))
        (found,) = [o for o in operations if o.name == "ai.attention"]
        assert len(found.operands) == count


def test_attention_with_the_exporters_test_for_nan() -> None:
    """Rows with everything hidden give 0, before and after."""
    program = make(
        {**HEADS, "mask": "bool[b,1,s,t]"},
        lambda m, q, k, v, mask: _attention(m, q, k, v, mask, 0.35, True, "where"),
    )
    same(program, *PASSES, limit=REWRITTEN, sizes={"t": 2, "s": 5})
    assert names(program) == ["attention", "is_nan", "where"]


@pytest.mark.parametrize("rank", [2, 3])
def test_attention_without_heads(rank: int) -> None:
    batch = "b," if rank == 3 else ""
    inputs = {
        "q": f"[{batch}s,8]",
        "k": f"[{batch}t,8]",
        "v": f"[{batch}t,6]",
        "mask": f"[{batch}s,t]",
    }
    program = make(inputs, lambda m, q, k, v, mask: _attention(m, q, k, v, mask, 0.35))
    same(program, *PASSES, limit=REWRITTEN)
    assert [n for n in names(program) if n != "reshape"] == ["attention"]


def test_attention_with_shared_heads() -> None:
    """repeat_kv disappears: four query heads, two key heads."""

    def repeat(m, x):
        b, g, t, d = ir.type_of(x).shape
        y = m.reshape(x, shape=(b, g, 1, t, d))
        return m.reshape(m.broadcast_to(y, shape=(b, g, 2, t, d)), shape=(b, g * 2, t, d))

    program = make(
        {"q": "[b,4,s,8]", "k": "[b,2,t,8]", "v": "[b,2,t,8]"},
        lambda m, q, k, v: _attention(m, q, repeat(m, k), repeat(m, v), scale=0.35),
    )
    same(program, *PASSES, canonicalize, limit=REWRITTEN)
    assert names(program) == ["attention"]


REFUSALS = {
    "the probabilities are used elsewhere too": lambda m, q, k, v: (
        p := m.softmax(m.matmul(q, m.transpose(k, perm=(0, 1, 3, 2))), axis=3), m.matmul(p, v),
    ),
    "softmax is not along the last axis": lambda m, q, k, v: m.matmul(
        m.softmax(m.matmul(q, m.transpose(k, perm=(0, 1, 3, 2))), axis=2), v
    ),
    "the scores are not a matrix product": lambda m, q, k, v: m.matmul(
        m.softmax(m.relu(m.matmul(q, m.transpose(k, perm=(0, 1, 3, 2)))), axis=3), v
    ),
    f"the scale {2.0**200} is no number of float32": lambda m, q, k, v: _attention(
        m, m.mul(q, 2.0**100), k, v, scale=2.0**100
    ),
    "the mask hides by a number that is not -inf": lambda m, q, k, v: m.matmul(
        m.softmax(
            ir.build(
                "ai.where", ir.full(True, (1, 1, 3, 3), "bool"),
                m.matmul(q, m.transpose(k, perm=(0, 1, 3, 2))), ir.full(-1e4),
            ),
            axis=3,
        ),
        v,
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSALS)
def test_attention_refusals(why: str) -> None:
    program = make({"q": "[2,2,3,4]", "k": "[2,2,3,4]", "v": "[2,2,3,4]"}, REFUSALS[why])
    assert same(program, raise_patterns).why("attention") == [why]


def test_scores_over_nothing() -> None:
    """A quotient by 0 is no factor."""

    def body(m, q, k, v):
        scores = m.div(m.matmul(q, m.transpose(k, perm=(0, 1, 3, 2))), 0.0)
        return m.matmul(m.softmax(scores, axis=3), v)

    program = make({"q": "[2,2,3,4]", "k": "[2,2,3,4]", "v": "[2,2,3,4]"}, body)
    assert same(program, raise_patterns).why("attention") == ["the scores are not a matrix product"]


@pytest.mark.parametrize(("mask", "queries"), [("", 2), ("[b,1,1,t]", 2), ("[b,4,1,t]", 1)])
def test_single_queries_of_grouped_heads(mask: str, queries: int) -> None:
    """They are the queries of one head, unless each has a mask of its own."""

    def body(m, q, k, v, *rest):
        return ir.build("ai.attention", q, k, v, *rest, scale=0.5)

    types = {"q": "[b,4,1,8]", "k": "[b,2,t,8]", "v": "[b,2,t,6]"} | ({"m": mask} if mask else {})
    program = make(types, body)
    same(program, raise_patterns)
    with program:
        block = ir.body(program.function("main"))
        (found,) = [o for o in ir.walk(block) if o.name == "ai.attention"]
        assert ir.type_of(found.operands[0]).shape[1:3] == (4 // queries, queries)


def test_projections_of_one_input_are_joined() -> None:
    program = bert(1)
    context = same(program, *PASSES, limit=RELATIVE["float32"])
    assert context.applied["join-projections"] == 1
    assert names(program).count("matmul") == 4
    assert any(k.count("+") == 2 for k in program.weights)


def test_projections_that_lead_elsewhere_stay() -> None:
    def body(m, x):
        return m.mul(m.matmul(x, m.weight(8, 6)), m.sigmoid(m.matmul(x, m.weight(8, 6))))

    program = make({"x": "[n,8]"}, body)
    context = same(program, raise_patterns)
    assert context.why("join-projections")[0] == "the projections do not all lead to attention"
