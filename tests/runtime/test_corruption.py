"""A damaged package is refused or runs; it never crashes. Each batch has its own process."""

from __future__ import annotations

import random
import resource
import struct
import subprocess
import sys
from pathlib import Path

import fake_computed
import fake_models
import fake_prepared
import numpy as np
import pytest
from fake_package import BRANCH, CHECKSUM, JUMP, SECTIONS, WEIGHTS, seal

import cuvil  # isort: skip

ROUNDS = 250


@pytest.mark.parametrize(
    "models", [fake_models, fake_computed, fake_prepared], ids=["static", "computed", "prepared"]
)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["flip", "field"])
def test_damage(make, tmp_path, mode, seed, models):
    """flip: one bit anywhere before the weights, checksum left alone: always refused.

    field: one 32-bit field set to a telling value and the checksum made right again, as by a
    faulty packer.
    """
    path = make(models.inert())
    command = [sys.executable, __file__, str(path / "model.so"), str(tmp_path), mode, str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, f"{run.stdout[-500:]}\n{run.stderr[-2000:]}"
    refused, ran = map(int, run.stdout.split()[-2:])
    assert refused + ran == ROUNDS
    assert refused == ROUNDS if mode == "flip" else 20 < refused < ROUNDS


def damage_and_run(library: str, folder: str, mode: str, seed: str) -> None:
    """Damage, load, run, ROUNDS times over. Prints each damage first, so that a crash names it."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    rng = random.Random(int(seed))
    original = Path(library).read_bytes()
    start = original.rindex(b"CUVILIMG")
    image = original[start:]
    count = {True: 0, False: 0}
    for number in range(ROUNDS):
        place, damaged = (flip if mode == "flip" else field)(image, rng)
        print(f"{number}: byte {place} of the image", flush=True)
        file = Path(folder) / f"{number}.so"
        file.write_bytes(original[:start] + (damaged if mode == "flip" else seal(damaged)))
        count[survives(file, damaged)] += 1
        file.unlink()
    print(count[False], count[True])


def sections(image: bytes) -> list[tuple[int, int]]:
    return [struct.unpack_from("<QQ", image, 32 + 16 * i) for i in range(len(SECTIONS))]


def tables(image: bytes) -> list[tuple[int, int]]:
    """Where each section that a checksum covers begins and ends."""
    places = [p for i, p in enumerate(sections(image)) if i != WEIGHTS]
    return [(offset, offset + size) for offset, size in places if size]


def flip(image: bytes, rng: random.Random) -> tuple[int, bytes]:
    """One bit of the header or of a section, padding and weights excepted."""
    spans = [(0, CHECKSUM), *tables(image)]
    place = rng.randrange(*rng.choice(spans))
    damaged = bytearray(image)
    damaged[place] ^= 1 << rng.randrange(8)
    return place, bytes(damaged)


def field(image: bytes, rng: random.Random) -> tuple[int, bytes]:
    """One aligned 32-bit field of the header or of a table."""
    spans = [(0, CHECKSUM), *tables(image)[2:]]
    first, last = rng.choice(spans)
    place = rng.randrange(first, last - 3, 4)
    (old,) = struct.unpack_from("<I", image, place)
    values = [0, 1, 2, 5, 64, old + 1, old - 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
    damaged = bytearray(image)
    value = rng.choice([value for value in values if value != old])
    struct.pack_into("<I", damaged, place, value % 2**32)
    return place, bytes(damaged)


def survives(file: Path, image: bytes) -> bool:
    """True when nothing was wrong enough to be refused."""
    try:
        model = cuvil.load(file, threads=2)
        feeds = {}
        for port in model.inputs:
            dims = [range_[0] for range_ in port.ranges]
            if any(not 0 <= dim < 1000 for dim in dims):
                return True
            feeds[port.name] = np.zeros(dims, port.dtype)
        for adapter in (None, *(a.name for a in model.adapters)):
            model.use(adapter)
            if not loops(image):
                model.run(feeds)
        model.close()
    except cuvil.CuvilError:
        return False
    return True


def loops(image: bytes) -> bool:
    """Whether some step jumps back: such a program is legal, but may never end."""
    steps, size = sections(image)[9]
    for number in range(size // 48):
        kind, target = struct.unpack_from("<II", image, steps + 48 * number)
        if kind in (BRANCH, JUMP) and target <= number:
            return True
    return False


if __name__ == "__main__":
    damage_and_run(*sys.argv[1:])
