"""Adapters end in the weights: one rounding, quantised weights in the groups they had."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.lora_refit import Quantised, refit
from cuvilc.dialect.lora_values import Part, merge, round_once
from cuvilc.dialect.narrow import pack, unpack
from cuvilc.dialect.op import OPS
from cuvilc.dialect.passes import merge_lora
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import make, names, same

FLOAT64 = np.float64


def wanted(w: np.ndarray, parts: list[Part], axis: int) -> np.ndarray:
    """The parts over the weight, by the operation's own reference."""
    value = w.astype(FLOAT64)
    for p in parts:
        m = None if p.magnitude is None else p.magnitude.astype(FLOAT64)
        value = OPS["ai.lora"].reference(
            value, p.a.astype(FLOAT64), p.b.astype(FLOAT64), m, scale=p.scale, out_axis=axis,
            start=p.start, adapter="", module="", apart=False, bits=0,
        )  # fmt: skip
    return value


def part(rng: Any, shape: tuple[int, ...], axis: int, start: int, size: int, rank: int = 3,
         dora: bool = False, gain: float = 1.0) -> Part:  # fmt: skip
    others = int(np.prod(shape)) // shape[axis]
    a = (gain * rng.standard_normal((rank, others))).astype(np.float32)
    b = rng.standard_normal((size, rank)).astype(np.float32)
    m = rng.uniform(1, 2, size).astype(np.float32) if dora else None
    return Part(a, b, m, 0.5, start, f"a{start}", "layer")


SHAPES = [
    ((40, 30), 0), ((30, 40), 1), ((6, 5, 3, 3), 0), ((4, 7, 5), 1), ((3, 2, 8), 2), ((5000, 20), 1)
]  # fmt: skip


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_merge_is_the_reference_rounded_once(shape, axis, dtype, dora) -> None:
    rng = np.random.default_rng(1)
    w = rng.standard_normal(shape).astype(dtype)
    size = shape[axis]
    parts = [part(rng, shape, axis, 0, size // 2, dora=dora)]
    parts.append(part(rng, shape, axis, size // 2, size - size // 2, rank=80))
    if not dora:
        parts.append(part(rng, shape, axis, 1, size - 1, rank=1))
    made, loss = merge(w, axis, parts)
    exact = wanted(w, parts, axis)
    assert made.dtype == w.dtype
    error = np.abs(made.astype(FLOAT64) - exact)
    # Half a unit in the last place of each element, and what float64 sums differ by.
    least = 2.0**-24 if w.dtype == np.float16 else 0.0  # of subnormal numbers
    unit = np.spacing(np.abs(made).astype(np.float32)).astype(FLOAT64)
    lost = {"float16": 13, "bfloat16": 16, "float32": 0, "float64": -29}[w.dtype.name]
    limit = 0.5 * np.maximum(unit * 2.0**lost, least)
    assert (error <= limit * (1 + 1e-9) + 1e-13).all()
    assert loss.max_abs == pytest.approx(error.max(), rel=1e-3, abs=1e-13)
    delta = exact - w.astype(FLOAT64)
    assert loss.delta_rms == pytest.approx(np.sqrt((delta * delta).mean()), rel=1e-6)
    assert loss.largest == pytest.approx(np.abs(exact).max(), rel=1e-9)


def test_outputs_of_other_modules_keep_every_bit() -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal((12, 8)).astype(np.float32)
    made, _ = merge(w, 0, [part(rng, w.shape, 0, 4, 4)])
    assert np.array_equal(made[:4], w[:4]) and np.array_equal(made[8:], w[8:])
    assert not np.array_equal(made[4:8], w[4:8])


def test_bfloat16_rounds_once() -> None:
    """Through float32 the sum would fall on a tie first, and then to even: the wrong way."""
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-40, 1 + 3 * 2.0**-8])
    both = round_once(np.concatenate([x, -x, [np.inf, 0.0]]), np.dtype(ml_dtypes.bfloat16))
    up = 1 + 2.0**-7
    right = np.array([up, 1, 1, 1 + 2.0**-6])
    assert np.array_equal(both.astype(FLOAT64), np.concatenate([right, -right, [np.inf, 0.0]]))


INTEGERS = [np.int8, np.uint8, np.int16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.uint2]


def quantised(w: np.ndarray, dtype: Any, axis: int, block: int, symmetric: bool) -> Quantised:
    """A weight quantised plainly: each group's range over all levels."""
    limits = ml_dtypes.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    if axis < 0:
        ends = w.min(initial=0), w.max(initial=0)
    elif not block:
        flat = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
        ends = flat.min(1, initial=0), flat.max(1, initial=0)
    else:
        edges = range(0, w.shape[axis], block)
        ends = tuple(f.reduceat(w, edges, axis) for f in (np.minimum, np.maximum))
        ends = np.minimum(ends[0], 0), np.maximum(ends[1], 0)
    middle = 0 if low < 0 else (high + 1) // 2
    if symmetric:
        scale = np.maximum(-ends[0], ends[1]) / (high - middle)
        zero = np.full(np.shape(scale), middle)
    else:
        scale = (ends[1] - ends[0]) / (high - low)
        zero = np.clip(np.rint(low - ends[0] / scale), low, high)
    scale, zero = np.asarray(scale, np.float32), np.asarray(zero, np.int32)
    wide = [t if axis < 0 else spread(t, w, axis, block) for t in (scale, zero)]
    q = np.clip(np.rint(w / wide[0]) + wide[1], low, high).astype(np.int32)
    return Quantised(q.astype(dtype), scale, zero.astype(dtype), max(axis, 0), block)


def spread(t: np.ndarray, w: np.ndarray, axis: int, block: int) -> np.ndarray:
    if block:
        return np.take(np.repeat(t, block, axis), np.arange(w.shape[axis]), axis)
    return t.reshape([-1 if j == axis else 1 for j in range(w.ndim)])


def value_of(q: Quantised) -> np.ndarray:
    return OPS["ai.dequantize_linear"].reference(
        q.levels, q.scale.astype(FLOAT64), q.zero, axis=q.axis, block=q.block
    )


def rms(x: np.ndarray) -> float:
    return float(np.sqrt((x * x).mean()))


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    ("axis", "block"), [(-1, 0), (0, 0), (1, 0), (1, 32), (1, 40), (0, 16)],
    ids=["tensor", "rows", "columns", "blocks", "short", "blocks of rows"],
)  # fmt: skip
def test_refit_loses_what_quantising_the_merged_weight_would(dtype, axis, block, symmetric) -> None:
    rng = np.random.default_rng(3)
    w = 0.05 * rng.standard_normal((48, 96))
    q = quantised(w, dtype, axis, block, symmetric)
    change = part(rng, w.shape, 0, 12, 24, gain=0.05)
    made, loss = refit(q, 0, [change])
    assert (made.levels.dtype, made.scale.dtype, made.zero.dtype) == (
        q.levels.dtype, q.scale.dtype, q.zero.dtype
    )  # fmt: skip
    assert (made.levels.shape, made.scale.shape) == (q.levels.shape, q.scale.shape)
    exact = wanted(value_of(q), [change], 0)
    error = (value_of(made) - exact)[12:36]
    assert loss.rms == pytest.approx(rms(error), rel=1e-6)
    assert loss.max_abs == pytest.approx(np.abs(error).max(), rel=1e-6)
    afresh = quantised(exact, dtype, axis, block, symmetric)
    assert rms(value_of(made) - exact) <= 1.02 * rms(value_of(afresh) - exact)
    if symmetric:
        assert np.array_equal(made.zero.astype(int), q.zero.astype(int))
    untouched = axis == 0
    if untouched:
        step = block or 1
        keep = [i for i in range(48) if not 12 - 12 % step <= i < -(-36 // step) * step]
        assert np.array_equal(made.levels[keep].astype(int), q.levels[keep].astype(int))


def test_negative_scales_stay_usable() -> None:
    """onnxruntime's symmetric 4-bit quantiser gives the largest magnitude the level -8."""
    rng = np.random.default_rng(4)
    q = quantised(0.05 * rng.standard_normal((8, 64)), ml_dtypes.int4, 1, 32, True)
    q = Quantised(q.levels, -q.scale, q.zero, 1, 32)
    change = part(rng, (8, 64), 0, 0, 8, gain=0.05)
    made, loss = refit(q, 0, [change])
    exact = wanted(value_of(q), [change], 0)
    assert loss.rms < 0.1 * rms(exact)
    assert loss.rms == pytest.approx(rms(value_of(made) - exact), rel=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing(bits: int) -> None:
    packed = np.random.default_rng(5).integers(0, 256, (5, 8)).astype(np.uint8)
    assert np.array_equal(pack(unpack(packed, bits), bits), packed)


def adapted(m: Any, w: Any, size: int, others: int, rank: int = 2, **attrs: Any) -> Any:
    given = {"scale": 0.5, "adapter": "sql", "module": "layer"} | attrs
    magnitude = [m.weight(size, low=0.5, high=2)] if given.pop("dora", False) else []
    return m.lora(w, m.weight(rank, others), m.weight(size, rank), *magnitude, **given)


def test_product_convolution_and_table() -> None:
    def body(m, x, i):
        y = m.matmul(x, adapted(m, m.weight(6, 8), 8, 6, out_axis=1))
        y = m.matmul(y, adapted(m, m.weight(4, 8), 4, 8, dora=True), transpose_b=True)
        table = adapted(m, m.weight(9, 4), 4, 9, out_axis=1)
        return m.add(y, m.gather(table, i, axis=0))

    program = make({"x": "[n,6]", "i": "int64[n]"}, body)
    same(program, merge_lora)
    assert "lora" not in names(program)
    assert len(program.weights) == 3  # the factors are gone


def test_several_adapters_round_once() -> None:
    def body(m, x):
        w = m.weight(4, 6)
        for adapter in ("a", "b", "c"):
            w = adapted(m, w, 4, 6, adapter=adapter)
        return m.matmul(x, w, transpose_b=True)

    program = make({"x": "[n,6]"}, body)
    before = dict(program.weights)
    context = PassContext()
    merge_lora.run(program, context)
    (merged,) = program.weights.keys() - before.keys()
    keys = sorted(before, key=lambda k: int(k[1:]))
    w, *factors = (before[k] for k in keys)
    parts = [
        Part(factors[2 * i], factors[2 * i + 1], None, 0.5, 0) for i in range(3)
    ]  # fmt: skip
    exact = wanted(w, parts, 0).astype(np.float32)
    assert np.array_equal(program.weights[merged], exact)
    (record,) = context.merged
    assert [c[0] for c in record.changes] == ["a", "b", "c"]
    assert 0 < record.loss.to_json()["max_error"] < 1e-7


def test_a_tied_weight_changes_only_where_it_is_adapted() -> None:
    def body(m, x):
        w = m.weight(6, 6)
        return m.matmul(x, adapted(m, w, 6, 6)), m.matmul(x, w)

    program = make({"x": "[n,6]"}, body)
    same(program, merge_lora)
    assert len(program.weights) == 2


@pytest.mark.parametrize("block", [0, 8])
def test_quantised_weights_keep_their_form(block: int) -> None:
    def body(m, x):
        q = m.weight(6, 16, low=-7, high=7, dtype="int8")
        scale = m.weight(*((6, 2) if block else (6,)), low=0.01, high=0.02)
        zero = ir.full(0, ir.type_of(scale).shape, "int8")
        w = m.dequantize_linear(q, scale, zero, axis=1 if block else 0, block=block)
        return m.matmul(x, adapted(m, w, 6, 16), transpose_b=True)

    program = make({"x": "[n,16]"}, body)
    context = PassContext()
    merge_lora.run(program, context)
    program.verify()
    assert names(program) == ["dequantize_linear", "matmul"]
    (record,) = context.merged
    assert record.dtype == "int8" and record.loss.base_rms > 0


def test_packed_products_stay_packed() -> None:
    def body(m, x):
        q = m.weight(6, 32, low=0, high=15, dtype="uint4")
        scale = m.weight(6, 2, low=0.01, high=0.02)
        zero = ir.full(8, (6, 2), "uint4")
        w = m.dequantize_linear(q, scale, zero, axis=1, block=16)
        return m.matmul(x, adapted(m, w, 6, 32, bits=4), transpose_b=True)

    program = make({"x": "[n,32]"}, body)
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    (before,) = interpret(program, {"x": x}).values()
    merge_lora.run(program, PassContext())
    program.verify()
    assert names(program) == ["matmul_nbits"]
    (after,) = interpret(program, {"x": x}).values()
    assert rms(after - before) < 0.1 * rms(before)


def test_factors_that_come_at_run_time_stay() -> None:
    def body(m, x, a):
        return m.matmul(x, m.lora(m.weight(6, 4), a, m.weight(4, 2), scale=1.0, out_axis=1))

    program = make({"x": "[n,6]", "a": "[2,6]"}, body)
    context = PassContext()
    merge_lora.run(program, context)
    assert names(program) == ["lora", "matmul"]
    assert context.why("merge-lora")


def test_a_magnitude_does_not_chain() -> None:
    def body(m, x):
        w = adapted(m, m.weight(4, 6), 4, 6, adapter="a")
        return m.matmul(x, adapted(m, w, 4, 6, adapter="b", dora=True), transpose_b=True)

    with pytest.raises(CuvilError) as caught:
        merge_lora.run(make({"x": "[n,6]"}, body), PassContext())
    assert [d.code for d in caught.value.diagnostics] == ["CUV740"]


def test_magnitudes_of_two_modules_of_a_merged_weight() -> None:
    def body(m, x):
        w = adapted(m, m.weight(8, 6), 4, 6, module="q", dora=True)
        w = adapted(m, w, 4, 6, module="v", start=4, dora=True)
        return m.matmul(x, w, transpose_b=True)

    same(make({"x": "[n,6]"}, body), merge_lora)


def test_beyond_float16_is_refused() -> None:
    def body(m, x):
        w = m.weight(4, 6, dtype="float16")
        return m.matmul(x, m.lora(w, m.weight(2, 6), m.weight(4, 2), scale=1e7), transpose_b=True)

    with pytest.raises(CuvilError) as caught:
        merge_lora.run(make({"x": "float16[n,6]"}, body), PassContext())
    assert [d.code for d in caught.value.diagnostics] == ["CUV741"]
