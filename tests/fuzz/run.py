"""Draws hostile models by seed, builds each, keeps those that end in another way than they may."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.fuzz.bombs import BOMBS
from tests.fuzz.child import GOOD, ROOT, Child
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import seed_model

KEPT = ROOT / "build" / "fuzz"
COMPILED = 8  # of so many models one goes through the whole compiler, the others to the plan


@dataclass
class Finding:
    """A model that ended as none may."""

    name: str
    kind: str
    details: str
    path: Path


def model_bytes(seed: int) -> bytes:
    """The hostile model of this number; the same on every machine with the same onnx."""
    random = Random(seed)
    return mutated(random, seed_model(random))


def try_model(child: Child, name: str, data: bytes, target: str) -> Finding | None:
    """Build the model beside files that external data may name; None if it ended well."""
    with TemporaryDirectory(prefix="cuvil-fuzz-") as place:
        folder = Path(place) / "model"
        folder.mkdir()
        (Path(place) / "data.bin").write_bytes(bytes(64))
        (folder / "data.bin").write_bytes(bytes(64))
        (folder / "link.bin").symlink_to(Path(place) / "data.bin")
        path = folder / "model.onnx"
        path.write_bytes(data)
        kind, details = child.run(path, target)
        if kind in GOOD:
            return None
        KEPT.mkdir(parents=True, exist_ok=True)
        kept = KEPT / f"{name}.onnx"
        shutil.copyfile(path, kept)
        kept.with_suffix(".txt").write_text(f"{kind} ({target})\n{details}\n")
        return Finding(name, kind, details, kept)


def try_seed(child: Child, seed: int) -> Finding | None:
    target = "x86" if seed % COMPILED == 0 else "null"
    return try_model(child, f"seed-{seed}", model_bytes(seed), target)


def try_bomb(child: Child, name: str, target: str = "null") -> Finding | None:
    return try_model(child, f"bomb-{name}", BOMBS[name](), target)
