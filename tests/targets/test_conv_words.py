"""Convolutions of bytes by integer Winograd are the definition's, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect.dims import symbol
from cuvilc.targets import x86
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import conv_words
from tests.targets.kernel_harness import V4, check, compare, random_feeds
from tests.targets.samples import VNNI, needs
from tests.targets.test_conv_dot import conv, layer

WORDS_CHIPS = pytest.mark.parametrize(
    "chip",
    [pytest.param(c, marks=needs(c)) for c in map(x86.CHIPS.get, ("x86-64-v3", "x86-64-v4"))],
    ids=lambda c: c.name,
)
MOST_CHANNELS = 1824  # whole blocks of which four times a sum is an int32

GEOMETRIES = {
    "whole tiles": ((1, 32, 14, 14), (48, 32, 3, 3)),
    "odd sizes": ((2, 48, 15, 13), (64, 48, 3, 3)),
    "small, many channels": ((1, 256, 7, 7), (96, 256, 3, 3)),
    "tasks of some rows": ((1, 64, 45, 56), (32, 64, 3, 3)),
    "the last task is small": ((1, 64, 18, 56), (32, 64, 3, 3)),
    "outputs that end in a block": ((1, 64, 16, 20), (40, 64, 3, 3)),
    "no padding": ((1, 32, 16, 18), (32, 32, 3, 3), (1, 1), (0, 0, 0, 0)),
    "uneven padding": ((1, 32, 15, 18), (32, 32, 3, 3), (1, 1), (0, 2, 1, 0)),
    "much padding": ((1, 32, 13, 15), (32, 32, 3, 3), (1, 1), (3, 4, 5, 3)),
    "little beside its padding": ((1, 64, 3, 9), (64, 64, 3, 3), (1, 1), (2, 2, 2, 2)),
    "few rows": ((3, 64, 2, 40), (64, 64, 3, 3)),
}


@WORDS_CHIPS
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometry(geometry: str, chip: Any) -> None:
    check(conv(*GEOMETRIES[geometry]), chip, conv_words.schedule)


@WORDS_CHIPS
@pytest.mark.parametrize("added", [False, True], ids=["", "added"])
@pytest.mark.parametrize("outputs", [48, 40])
def test_layer(outputs: int, added: bool, chip: Any) -> None:
    program = layer((1, 64, 13, 21), (outputs, 64, 3, 3), (1, 1), (1, 1, 1, 1), "uint8", 7, added)
    feeds = random_feeds(program)
    compare(program, feeds, chip, conv_words.schedule)


@WORDS_CHIPS
@pytest.mark.parametrize("signs", ["one", "alternating", "checkered"])
def test_largest_sums(signs: str, chip: Any) -> None:
    """All inputs 255 and all weights of the largest size: every intermediate number fits."""
    program = conv((1, MOST_CHANNELS, 8, 12), (16, MOST_CHANNELS, 3, 3))
    w = np.full((16, MOST_CHANNELS, 3, 3), -128, np.int8)
    taps = np.indices((3, 3)).sum(0) % 2
    if signs == "alternating":
        w[:, 1::2] = 127
    elif signs == "checkered":
        w[..., taps == 1] = 127
    feeds = random_feeds(program)
    feeds |= {"x0": np.full_like(feeds["x0"], 255), "x2": np.full_like(feeds["x2"], 255)}
    feeds["x1"] = w
    compare(program, feeds, chip, conv_words.schedule)


FORM, BLOCKS = "not windows of 3×3 beside each other", "not whole blocks, or very many"
REFUSED = {
    "strides": (FORM, (1, 32, 15, 15), (32, 32, 3, 3), (2, 2)),
    "other windows": (FORM, (1, 32, 15, 15), (32, 32, 3, 5)),
    "dilated": (FORM, (1, 32, 15, 15), (32, 32, 3, 3), (1, 1), (1, 1, 1, 1), (2, 2)),
    "groups": (FORM, (1, 64, 15, 15), (64, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "half a block": (BLOCKS, (1, 40, 15, 15), (32, 40, 3, 3)),
    "more channels than fit": (
        BLOCKS,
        (1, MOST_CHANNELS + 16, 8, 8),
        (32, MOST_CHANNELS + 16, 3, 3),
    ),
    "one tile": ("transforms that take longer", (1, 32, 2, 2), (32, 32, 3, 3)),
    "sizes of a run": ("at run time", (1, 32, symbol("h"), 15), (32, 32, 3, 3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    why, *layer = REFUSED[name]
    with pytest.raises(Miss, match=why):
        check(conv(*layer), x86.CHIPS["x86-64-v3"], conv_words.schedule)


@pytest.mark.parametrize("chip", [V4, VNNI, x86.CHIPS["x86-64-v2"]], ids=lambda c: c.name)
def test_other_chips_refuse(chip: Any) -> None:
    """Those that multiply bytes in one instruction, and those of short vectors."""
    with pytest.raises(Miss, match="bytes are not widened"):
        check(conv(*GEOMETRIES["whole tiles"]), chip, conv_words.schedule)


def test_plain_input_refused() -> None:
    program = conv(*GEOMETRIES["whole tiles"], layout="")
    with pytest.raises(Miss, match=BLOCKS):
        check(program, x86.CHIPS["x86-64-v3"], conv_words.schedule)
