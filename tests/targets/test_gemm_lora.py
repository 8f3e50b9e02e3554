"""Products whose rows have adapters of their own agree with the interpreter: every mixture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.ops.lora_batch import COLUMNS, PANEL
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import gemm_lora, lora_shrink
from tests.targets.kernel_harness import V2, V3, V4, Kernel, agrees, check, program_of

RANK, SLOTS, POOL = symbol("lora_rank"), symbol("lora_slots"), symbol("lora_pool")
M, BATCH = symbol("m"), symbol("b")
# What an adapter of each slot is: rank, gain, bias. Slot 0 is none.
ADAPTERS = [
    (0, False, False), (8, False, False), (16, False, False), (1, True, False), (4, False, True),
    (64, True, True), (0, True, True), (256, False, False), (3, False, False), (7, True, False),
]  # fmt: skip

on_levels = pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)


def types(shape: Sequence[Any], n: int, parts: Any, batch: Any, layout: str) -> list[TensorType]:
    """Of x, w, slots, table, pool."""
    k = shape[-1]
    return [
        TensorType(tuple(shape)),
        TensorType((n, k) if layout == "pack0_32" else (k, n), "float32", layout),
        TensorType((batch,), "int64"), TensorType((len(parts), SLOTS, COLUMNS), "int64"),
        TensorType((POOL,)),
    ]  # fmt: skip


def held(k: int, parts: Any, adapters: Sequence[Any], seed: int = 0) -> dict[str, np.ndarray]:
    """table and pool of these adapters, every tensor of random numbers."""
    rng = np.random.default_rng(seed)
    pool: list[np.ndarray] = [np.full(3, np.nan)]
    table = np.zeros((len(parts), len(adapters), COLUMNS), np.int64)

    def put(size: int) -> int:
        start = sum(map(len, pool))
        pool.extend([rng.uniform(-1, 1, size), np.full(5, np.nan)])
        return start

    for p, (start, size) in enumerate(parts):
        first, end = start // PANEL, -(-(start + size) // PANEL)
        width = (end - first) * PANEL
        for s, (rank, gain, bias) in enumerate(adapters):
            places = [put(rank * k), put(rank * width)]
            places += [put(width) if has else -1 for has in (gain, bias)]
            table[p, s, :7] = [rank, *places, first, end - first]
    return {"table": table, "pool": np.concatenate(pool).astype(np.float32)}


def feeds_of(
    shape: Sequence[int], n: int, parts: Any, slots: Sequence[int], layout: str = "pack1_32",
    adapters: Sequence[Any] = ADAPTERS, rank: int = -1,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Inputs of the product, t as ai.lora_shrink has it; `rank` is that of the run."""
    rng = np.random.default_rng(len(slots))
    k, made = shape[-1], held(shape[-1], parts, adapters)
    used = [max(adapters[s][0], 1) for s in slots if s]
    rank = max(used, default=0) if rank < 0 else rank
    return {
        "x": rng.uniform(-1, 1, shape),
        "w": rng.uniform(-1, 1, (n, k) if layout == "pack0_32" else (k, n)),
        "t": rng.uniform(-1, 1, (*shape[:-1], len(parts) * rank)),
        "slots": np.array(slots, np.int64), **made,
        "line": np.zeros(rank), "residual": rng.uniform(-1, 1, (*shape[:-1], n)),
    }  # fmt: skip


MIXTURES = {
    "none": [0], "one": [1], "alternating": [1, 2], "with-none": [0, 2, 0, 0, 5],
    "all": [1, 2, 3, 4, 5, 6, 7, 8, 9, 0], "segments": [2] * 5 + [0] * 9 + [9] * 20 + [3] * 2,
}  # fmt: skip


def slots_of(mixture: str, batch: int) -> list[int]:
    return list(islice(cycle(MIXTURES[mixture]), batch))


def product_program(
    shape: Sequence[Any], n: int, parts: Any, batch: Any, layout: str = "pack1_32",
    activations: Sequence[str] = (),
) -> Any:  # fmt: skip
    """x, w, slots, table, pool, t, a line as long as the rank, a residual before activations."""
    x, w, *rest = types(shape, n, parts, batch, layout)
    t = TensorType((*shape[:-1], len(parts) * RANK))
    names = ["x", "w", "slots", "table", "pool", "t", "line", "residual"]

    def body(
        x: Any, w: Any, slots: Any, table: Any, pool: Any, t: Any, _: Any, *residual: Any
    ) -> Any:
        transposed = layout == "pack0_32"
        y = ir.build("ai.lora_matmul", x, w, t, slots, table, pool, transpose_b=transposed)
        for value in residual:
            y = ir.build("ai.elemwise_add", y, value)
        for name in activations:
            y = ir.build(name, y)
        return y

    residual = [TensorType((*shape[:-1], n))] if activations else []
    types_ = [x, w, *rest, t, TensorType((RANK,)), *residual]
    return program_of(types_, body), names[: len(types_)]


def shrink_program(shape: Sequence[Any], parts: Any, batch: Any) -> Any:
    """x, slots, table, pool, and a line whose length is the rank of the run."""
    x, _, *rest = types(shape, 32, parts, batch, "")

    def body(x: Any, slots: Any, table: Any, pool: Any, line: Any) -> Any:
        return ir.build("ai.lora_shrink", x, slots, table, pool, rank=RANK)

    return program_of([x, *rest, TensorType((RANK,))], body)


def product_feeds(names: Sequence[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"x{i}": feeds[name] for i, name in enumerate(names)}


def shrink_feeds(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return product_feeds(["x", "slots", "table", "pool", "line"], feeds)


WHOLE = ((0, 70),)


@on_levels
@pytest.mark.parametrize("m", [1, 3, 7, 64, 128, 129])
def test_every_mixture_of_rows(m: int, chip: Any) -> None:
    program, names = product_program((m, 33), 70, WHOLE, m)
    kernel = Kernel(program, chip, gemm_lora.schedule)
    shrink = Kernel(shrink_program((m, 33), WHOLE, m), chip, lora_shrink.schedule)
    for mixture in MIXTURES:
        feeds = feeds_of((m, 33), 70, WHOLE, slots_of(mixture, m))
        agrees(kernel, product_feeds(names, feeds), mixture)
        agrees(shrink, shrink_feeds(feeds), mixture)


@on_levels
def test_symbolic_rows_and_batch(chip: Any) -> None:
    for shape, batch in (((BATCH, M, 20), BATCH), ((M, 20), BATCH), ((M, 20), 1), ((M, 20), M)):
        program, names = product_program(shape, 40, ((0, 40),), batch)
        kernel = Kernel(program, chip, gemm_lora.schedule)
        shrink = Kernel(shrink_program(shape, ((0, 40),), batch), chip, lora_shrink.schedule)
        for b, m in ((1, 1), (3, 1), (2, 5), (5, 3), (1, 30), (4, 29), (0, 3)):
            count = {BATCH: b, M: b * m}.get(batch, 1)
            sizes = (b, m, 20) if len(shape) == 3 else (b * m, 20)
            if count == 0 and len(shape) == 2 and batch is BATCH:
                continue  # which rows would be whose?
            for mixture in ("none", "with-none", "all"):
                feeds = feeds_of(sizes, 40, ((0, 40),), slots_of(mixture, count))
                agrees(kernel, product_feeds(names, feeds), (b, m, mixture))
                agrees(shrink, shrink_feeds(feeds), (b, m, mixture))


@on_levels
@pytest.mark.parametrize("n", [96, 100, 10, 33])
def test_parts_of_a_merged_matrix(n: int, chip: Any) -> None:
    parts = ((0, n // 3), (n // 2 + 16, n - n // 2 - 16)) if n > 32 else ((0, n),)
    for layout in ("pack1_32", "pack0_32"):
        program, names = product_program((2, 9, 24), n, parts, 2, layout, ["ai.gelu"])
        feeds = feeds_of((2, 9, 24), n, parts, [1, 5], layout)
        kernel = Kernel(program, chip, gemm_lora.schedule)
        agrees(kernel, product_feeds(names, feeds))
    shrink = Kernel(shrink_program((2, 9, 24), parts, 2), chip, lora_shrink.schedule)
    agrees(shrink, shrink_feeds(feeds))


@on_levels
def test_large_layers(chip: Any) -> None:
    """K whose rows alias in the cache, and odd ones; 64 adapters in 64 rows."""
    many = [ADAPTERS[0]] + [(1 + i % 16, i % 5 == 0, i % 7 == 0) for i in range(64)]
    for k, n in ((1024, 64), (1021, 65)):
        program, names = product_program((64, k), n, ((0, n),), 64, activations=["ai.relu"])
        feeds = feeds_of((64, k), n, ((0, n),), range(1, 65), adapters=many)
        kernel = Kernel(program, chip, gemm_lora.schedule)
        agrees(kernel, product_feeds(names, feeds))
        shrink = Kernel(shrink_program((64, k), ((0, n),), 64), chip, lora_shrink.schedule)
        agrees(shrink, shrink_feeds(feeds))


@on_levels
def test_a_row_has_the_same_bits_beside_any_others(chip: Any) -> None:
    program, names = product_program((29, 50), 70, WHOLE, 29)
    kernel = Kernel(program, chip, gemm_lora.schedule)
    shrink = Kernel(shrink_program((29, 50), WHOLE, 29), chip, lora_shrink.schedule)
    feeds = feeds_of((29, 50), 70, WHOLE, slots_of("all", 29), rank=256)
    mixed = [kernel.run(product_feeds(names, feeds))[0], shrink.run(shrink_feeds(feeds))[0]]
    for slot in range(len(ADAPTERS)):
        alike = {**feeds, "slots": np.full(29, slot)}
        mine = feeds["slots"] == slot
        for was, now in zip(
            mixed,
            [kernel.run(product_feeds(names, alike))[0], shrink.run(shrink_feeds(alike))[0]],
            strict=True,
        ):
            assert was[mine].tobytes() == now[mine].tobytes()


def test_refusals() -> None:
    program, _ = product_program((4, 8), 40, ((0, 40),), 4, "")
    with pytest.raises(Miss):
        check(program, V4, gemm_lora.schedule)
