"""Adapters in a program: what `insert` makes computes what NumPy's formula says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.adapter import Adapter, GraphSemantics, LowRank, ModuleChange
from cuvilc.diagnostics import CuvilError
from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.lora_insert import insert
from cuvilc.dialect.lora_sites import Site, Sites
from cuvilc.dialect.passes import merge_lora
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import make, names

N, K, R = 6, 5, 2
X = np.random.default_rng(7).standard_normal((3, K)).astype(np.float32)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def low_rank(size: int = N, others: int = K, **more: Any) -> LowRank:
    return LowRank(values(R, others), values(size, R), 0.5, R, 1.0, **more)


def delta(low: LowRank) -> np.ndarray:
    return low.scale * low.b.astype(np.float64) @ low.a.astype(np.float64)


def adapter(*changes: ModuleChange, name: str = "sql", **more: Any) -> Adapter:
    return Adapter(name, Path(name), changes, "0" * 64, **more)


def layer(bias: bool = False) -> tuple[Any, np.ndarray]:
    """A product by [K, N], with or without a bias; and its weight."""

    def body(m, x):
        y = m.matmul(x, m.weight(K, N))
        return m.relu(m.add(y, m.weight(N)) if bias else y)

    program = make({"x": f"[n,{K}]"}, body)
    return program, program.weights["w1"]


def site(program: Any, parameter: str = "weight", **more: Any) -> Site:
    """The weight (axis 1 has the outputs), or the bias."""
    with program:
        operations = ir.operations(ir.body(program.function("main")))
        name, operand = ("ai.matmul", 1) if parameter == "weight" else ("ai.elemwise_add", 1)
        (user,) = [o for o in operations if o.name == name]
        given = {"kind": "linear" if parameter == "weight" else "", "start": 0, "size": N} | more
        axis = 1 if parameter == "weight" else 0
        return Site(
            "q", parameter, value=user.operands[operand], uses=((user, operand),), out_axis=axis,
            **given,
        )  # fmt: skip


def run(program: Any) -> np.ndarray:
    program.verify()
    (before,) = interpret(program, {"x": X}, exact=True).values()
    merge_lora.run(program, PassContext())
    program.verify()
    (after,) = interpret(program, {"x": X}).values()
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5)
    return np.asarray(after)


def code(error: Any) -> str:
    (diagnostic,) = error.value.diagnostics
    return str(diagnostic.code)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_two_adapters_are_summed_up() -> None:
    program, w = layer()
    sites = Sites((site(program),))
    first = low_rank()
    second = LowRank(values(3, K, seed=1), values(N, 3, seed=2), 2.0, 3, 6.0)
    insert(
        program, sites,
        [adapter(ModuleChange("q", "linear", low)) if n == 0
         else adapter(ModuleChange("q", "linear", low), name="chat")
         for n, low in enumerate((first, second))],
    )  # fmt: skip
    close(run(program), relu(X @ (w + (delta(first) + delta(second)).T)))


def test_part_of_a_merged_weight() -> None:
    program, w = layer()
    low = low_rank(2)
    sites = Sites((site(program, start=3, size=2),))
    insert(program, sites, [adapter(ModuleChange("q", "linear", low))])
    whole = w.astype(np.float64)
    whole[:, 3:5] += delta(low).T
    close(run(program), relu(X @ whole))


def test_semantics_keep_the_scale_apart() -> None:
    program, _ = layer()
    additive = GraphSemantics(fusion_strategy="additive")
    change = ModuleChange("q", "linear", low_rank())
    insert(program, Sites((site(program),)), [adapter(change, semantics=additive)])
    with program:
        (lora,) = [o for o in ir.walk(ir.body(program.function("main"))) if o.name == "ai.lora"]
        assert ir.attrs(lora)["apart"] and ir.source_name(lora) == "q"


def test_bias_of_b() -> None:
    program, w = layer(bias=True)
    bias = program.weights[next(k for k, a in program.weights.items() if a.ndim == 1)]
    low = low_rank(bias=values(N, seed=5))
    change = adapter(ModuleChange("q", "linear", low))
    insert(program, Sites((site(program), site(program, "bias"))), [change])
    assert names(program).count("add") == 1
    close(run(program), relu(X @ (w + delta(low).T) + bias + 0.5 * low.bias))


def test_bias_of_b_without_a_place() -> None:
    program, _ = layer()
    change = ModuleChange("q", "linear", low_rank(bias=values(N, seed=5)))
    with pytest.raises(CuvilError) as caught:
        insert(program, Sites((site(program),)), [adapter(change)])
    assert code(caught) == "CUV743"


@pytest.mark.parametrize("conv1d", [False, True])
def test_replaced_parameters(conv1d: bool) -> None:
    """torch's [N, K], or [K, N] of GPT-2's Conv1D, laid as the program has it."""
    program, _ = layer(bias=True)
    w, b = values(N, K, seed=8), values(N, seed=9)
    replaced = {"weight": w.T if conv1d else w, "bias": b}
    change = ModuleChange("q", replaced=replaced, fan_in_fan_out=conv1d)
    insert(program, Sites((site(program), site(program, "bias"))), [adapter(change)])
    close(run(program), relu(X @ w.T + b))


def test_square_weight_turned_the_wrong_way() -> None:
    """The base tells which way round a weight lies that was trained on from it."""

    def put(saved: np.ndarray) -> np.ndarray:
        program = make({"x": f"[n,{K}]"}, lambda m, x: m.relu(m.matmul(x, m.weight(K, K))))
        assert np.array_equal(program.weights["w1"], base)
        change = ModuleChange("q", replaced={"weight": saved})
        insert(program, Sites((site(program, size=K),)), [adapter(change)])
        return run(program)

    base = make({"x": f"[n,{K}]"}, lambda m, x: m.matmul(x, m.weight(K, K))).weights["w1"]
    tuned = base + 0.2 * values(K, K, seed=3)  # [K in, K out]
    close(put(tuned.T), relu(X @ tuned))  # torch's Linear: [N, K]
    with pytest.raises(CuvilError, match="the base's transposed") as error:
        put(tuned)
    assert code(error) == "CUV743"
    fresh = values(K, K, seed=4)  # like the base neither way
    close(put(fresh.T), relu(X @ fresh))


def test_packed_weight() -> None:
    def body(m, x):
        packed = m.weight(4, 16, low=0, high=255, dtype="uint8")
        return m.matmul_nbits(x, packed, m.weight(4, 2, low=0.05, high=0.1), bits=4, block=16)

    program = make({"x": "[n,32]"}, body)
    with program:
        (user,) = [o for o in ir.operations(ir.body(program.function("main")))
                   if o.name == "ai.matmul_nbits"]  # fmt: skip
    value = user.operands[1]
    where = Site("q", "weight", "linear", value, ((user, 1),), 0, 0, 4)
    x = values(3, 32, seed=3)
    (before,) = interpret(program, {"x": x}).values()
    low = LowRank(0.1 * values(R, 32), values(4, R), 1.0, R, 2.0)
    insert(program, Sites((where,)), [adapter(ModuleChange("q", "linear", low))])
    (exact,) = interpret(program, {"x": x}).values()
    close(exact, before + x @ delta(low).T)
    merge_lora.run(program, PassContext())
    program.verify()
    assert names(program) == ["matmul_nbits"]
    (after,) = interpret(program, {"x": x}).values()
    assert np.abs(after - exact).max() < 0.3 * np.abs(exact - before).max()


def test_clashing_replacements() -> None:
    program, _ = layer(bias=True)
    both = [adapter(ModuleChange("q", replaced={"bias": values(N, seed=s)}), name=f"a{s}")
            for s in (1, 2)]  # fmt: skip
    with pytest.raises(CuvilError) as caught:
        insert(program, Sites((site(program, "bias"),)), both)
    assert code(caught) == "CUV742"


def test_low_rank_over_another_adapters_weight() -> None:
    program, _ = layer()
    first = adapter(ModuleChange("q", replaced={"weight": values(N, K)}), name="a")
    second = adapter(ModuleChange("q", "linear", low_rank()), name="b")
    with pytest.raises(CuvilError) as caught:
        insert(program, Sites((site(program),)), [first, second])
    assert code(caught) == "CUV742"


@pytest.mark.parametrize(
    "change",
    [
        ModuleChange("k", "linear", low_rank()),
        ModuleChange("q", replaced={"bias": values(N)}),
        ModuleChange("q", replaced={"weight": values(N, K + 1)}),
    ],
    ids=["no weight", "no bias", "other sizes"],
)
def test_no_place(change: ModuleChange) -> None:
    program, _ = layer()
    with pytest.raises(CuvilError) as caught:
        insert(program, Sites((site(program),)), [adapter(change)])
    assert code(caught) == "CUV743"
