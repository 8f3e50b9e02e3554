"""1×1 convolutions of bytes with fewer products are the definition's, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect.dims import symbol
from cuvilc.targets import x86
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import conv_strassen
from cuvilc.targets.schedules.strassen_sizes import Sizes
from tests.targets.kernel_harness import V4, check, compare, random_feeds
from tests.targets.samples import VNNI, needs
from tests.targets.test_conv_dot import conv, layer

AVX2 = x86.CHIPS["x86-64-v3"]
NONE = (0, 0, 0, 0)
# Whether there are fewer products; where blocks do not come in pairs there are not.
PREFERENCES = {"plain": 1.0, "parts": -1.0, "cheapest": None}


def prefer(preference: str, monkeypatch: Any) -> None:
    """Let one of PREFERENCES decide."""
    if (sign := PREFERENCES[preference]) is not None:
        monkeypatch.setattr(Sizes, "cost", property(lambda sizes: sign * sizes.depth))


GEOMETRIES = {
    "parts": ((1, 128, 14, 14), (96, 128, 1, 1), (1, 1), NONE),
    "an odd number of pixels": ((2, 96, 13, 15), (64, 96, 1, 1), (1, 1), NONE),
    "tasks of some rows, odd ones": ((1, 512, 29, 27), (32, 512, 1, 1), (1, 1), NONE),
    "strides": ((2, 64, 27, 30), (64, 64, 1, 1), (2, 2), NONE),
    "strides that differ": ((1, 64, 27, 30), (64, 64, 1, 1), (3, 1), NONE),
    "an odd block of channels": ((1, 48, 14, 14), (64, 48, 1, 1), (1, 1), NONE),
    "an odd block of outputs": ((1, 64, 14, 14), (48, 64, 1, 1), (1, 1), NONE),
    "outputs that end in a block": ((1, 64, 14, 14), (40, 64, 1, 1), (1, 1), NONE),
    "one block": ((1, 16, 9, 9), (16, 16, 1, 1), (1, 1), NONE),
    "few pixels": ((1, 256, 5, 5), (64, 256, 1, 1), (1, 1), NONE),
}


@needs(AVX2)
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometry(geometry: str, preference: str, monkeypatch: Any) -> None:
    prefer(preference, monkeypatch)
    check(conv(*GEOMETRIES[geometry]), AVX2, conv_strassen.schedule)


@needs(AVX2)
@pytest.mark.parametrize("added", [False, True], ids=["", "added"])
@pytest.mark.parametrize("outputs", [64, 40])
def test_layer(outputs: int, added: bool) -> None:
    program = layer((1, 128, 13, 21), (outputs, 128, 1, 1), (1, 1), NONE, "int8", -128, added)
    compare(program, random_feeds(program), AVX2, conv_strassen.schedule)


@needs(AVX2)
@pytest.mark.parametrize("signs", ["one", "channels", "outputs", "both"])
def test_largest_sums(signs: str) -> None:
    """All inputs 0 or 255, all weights of the largest size: every number that is multiplied fits,
    and sums that pass 2³¹ on the way come back.
    """
    channels, blocks = 4096, np.arange(64) // 16 % 2 == 1
    program = conv((1, channels, 8, 12), (64, channels, 1, 1), (1, 1), NONE)
    w = np.full((64, channels, 1, 1), -128, np.int8)
    odd = np.arange(channels) // 16 % 2 == 1
    if signs in ("channels", "both"):
        w[:, odd] = 127
    if signs in ("outputs", "both"):
        w[blocks] = -1 - w[blocks]
    feeds = random_feeds(program)
    feeds["x0"] = np.where(feeds["x0"] >= 128, 255, 0).astype(np.uint8)
    feeds["x0"][..., ::3] = 255
    feeds["x1"] = w
    compare(program, feeds, AVX2, conv_strassen.schedule)


FORM = "not 1×1 windows without padding, or groups, or a single line"
REFUSED = {
    "padding": (FORM, (1, 32, 15, 15), (32, 32, 1, 1)),
    "other windows": (FORM, (1, 32, 15, 15), (32, 32, 1, 3), (1, 1), NONE),
    "groups": (FORM, (1, 64, 15, 15), (64, 32, 1, 1), (1, 1), NONE, (1, 1), 2),
    "a line": (FORM, (1, 256, 1, 49), (64, 256, 1, 1), (1, 1), NONE),
    "half a block": ("not whole blocks", (1, 40, 15, 15), (32, 40, 1, 1), (1, 1), NONE),
    "three pixels": ("few pixels", (1, 32, 3, 1), (32, 32, 1, 1), (1, 1), NONE),
    "sizes of a run": ("at run time", (1, 32, symbol("h"), 15), (32, 32, 1, 1), (1, 1), NONE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    why, *layer = REFUSED[name]
    with pytest.raises(Miss, match=why):
        check(conv(*layer), AVX2, conv_strassen.schedule)


@pytest.mark.parametrize(
    "chip", [V4, VNNI, *map(x86.CHIPS.get, ("x86-64-v2", "x86-64-v4"))], ids=lambda c: c.name
)
def test_other_chips_refuse(chip: Any) -> None:
    """Those that multiply bytes in one instruction, and those of short or long vectors."""
    with pytest.raises(Miss, match="bytes are not widened"):
        check(conv(*GEOMETRIES["parts"]), chip, conv_strassen.schedule)
