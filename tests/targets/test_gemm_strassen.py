"""Products of bytes with fewer products of parts are the definition's, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect.dims import symbol
from cuvilc.targets import x86
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules.gemm_strassen import schedule
from tests.targets.kernel_harness import V4, check, compare, random_feeds
from tests.targets.samples import VNNI, needs
from tests.targets.test_conv_strassen import AVX2, PREFERENCES, prefer
from tests.targets.test_gemm_dot import PACKED, product, requantised, t


def packed(k: int, n: int) -> Any:
    return t(k, n, dtype="int8", layout=PACKED)


SHAPES = {
    "parts": ((128,), 64, 96),
    "an odd number of rows": ((131,), 96, 64),
    "tasks of some rows": ((301,), 1024, 32),
    "an odd block of columns of A": ((64,), 48, 64),
    "an odd block of columns": ((64,), 64, 48),
    "one block": ((40,), 16, 16),
    "several axes": ((2, 3, 17), 64, 64),
    "an axis of 1": ((1, 66), 32, 32),
}


@needs(AVX2)
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shape(shape: str, preference: str, monkeypatch: Any) -> None:
    prefer(preference, monkeypatch)
    rows, k, n = SHAPES[shape]
    check(product(t(*rows, k), packed(k, n)), AVX2, schedule)


@needs(AVX2)
@pytest.mark.parametrize("residual", [False, True])
def test_epilogue(residual: bool) -> None:
    check(requantised(77, 64, 96, residual), AVX2, schedule)


@needs(AVX2)
@pytest.mark.parametrize("signs", ["one", "columns of A", "columns", "both"])
def test_largest_sums(signs: str) -> None:
    """Sums that pass 2³¹ on the way come back."""
    k, n = 8192, 32
    program = product(t(48, k), packed(k, n))
    w = np.full((k, n), -128, np.int8)
    if signs in ("columns of A", "both"):
        w[np.arange(k) // 16 % 2 == 1] = 127
    if signs in ("columns", "both"):
        w[:, 16:] = -1 - w[:, 16:]
    x = np.full((48, k), 255, np.uint8)
    x[::3, 1::5] = 0
    feeds = random_feeds(program) | {"x0": x, "x1": w}
    compare(program, feeds, AVX2, schedule)


REFUSED = {
    "few rows": ("few rows", t(31, 64), packed(64, 64)),
    "rows of a run": ("at run time", t(symbol("m"), 64), packed(64, 64)),
    "half a block": ("not whole blocks", t(64, 40), packed(40, 64)),
    "outputs of half a block": ("not whole blocks", t(64, 64), packed(64, 40)),
    "weights that are not packed": ("not packed", t(64, 64), t(64, 64, dtype="int8")),
    "signed rows": ("product of int8 and int8", t(64, 64, dtype="int8"), packed(64, 64)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    why, *operands = REFUSED[name]
    with pytest.raises(Miss, match=why):
        check(product(*operands), AVX2, schedule)


@pytest.mark.parametrize(
    "chip", [V4, VNNI, *map(x86.CHIPS.get, ("x86-64-v2", "x86-64-v4"))], ids=lambda c: c.name
)
def test_other_chips_refuse(chip: Any) -> None:
    """Those that multiply bytes in one instruction, and those of short or long vectors."""
    with pytest.raises(Miss, match="bytes are not widened"):
        check(product(t(64, 64), packed(64, 64)), chip, schedule)
