"""Pieces of any length reach the file whole, in calls that end at multiples of a huge page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cuvilc.package.blocks import HUGE_PAGE, BlockWriter

BEGIN = 70_000


@pytest.mark.parametrize("short", [False, True], ids=["whole", "short"])
def test_blocks_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    """`short`: the system writes less than it was given, as it may."""
    calls: list[tuple[int, int]] = []
    write = os.pwritev

    def watched(descriptor: int, pieces: Sequence[memoryview], place: int) -> int:
        assert len(pieces) <= 1024
        wanted = sum(map(len, pieces))
        if short:
            pieces = [b"".join(pieces)[: wanted // 3 + 1]]
        calls.append((place, wanted))
        return write(descriptor, pieces, place)

    monkeypatch.setattr(os, "pwritev", watched)
    rng = np.random.default_rng(0)
    sizes = [0, 1, 3 * HUGE_PAGE, *[5000] * 3000, 4 * HUGE_PAGE - 1, 17, 20 * HUGE_PAGE, 64]
    data = [rng.bytes(n) for n in sizes]
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.write(bytes(BEGIN))
        blocks = BlockWriter(file)
        for i, piece in enumerate(data):
            blocks.write(piece)
            if i == 2000:  # somebody reads in between
                blocks.flush()
                file.seek(0)
                assert file.read(BEGIN) == bytes(BEGIN)
        blocks.flush()
        assert file.tell() == BEGIN + sum(sizes)
    assert path.read_bytes() == bytes(BEGIN) + b"".join(data)
    flushed = BEGIN + sum(sizes[:2001])
    ends = {place + wanted for place, wanted in calls}
    assert all(end % HUGE_PAGE == 0 for end in ends - {flushed, BEGIN + sum(sizes)})
    if not short:
        assert max(wanted for _, wanted in calls) >= 8 * HUGE_PAGE


def test_a_call_takes_a_limited_number_of_pieces(tmp_path: Path) -> None:
    """Of the first of a thousand pieces a part is left after a call, and more come."""
    half = HUGE_PAGE // 2
    sizes = [15 * half, *[1] * 998, half, *[1] * 100, 16 * half]
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(half + 1))
        blocks = BlockWriter(file)
        for size in sizes:
            blocks.write(bytes(size))
        blocks.flush()
        assert file.tell() == half + 1 + sum(sizes)


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "w+b", buffering=0) as file:
        blocks = BlockWriter(file)
        blocks.write(b"x")
        with pytest.raises(OSError, match="No space"):
            blocks.flush()
