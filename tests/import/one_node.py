"""One ONNX node, imported, interpreted and compiled, against onnxruntime or onnx's reference."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from cuvilc.dialect.interpret import interpret
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from tests.dialect.ops.onnx_nodes import Node, expected, model_of
from tests.tolerances import mismatch

registry = import_module("cuvilc.import.registry")


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """float32 of the standard normal distribution."""
    return rng.normal(size=shape).astype(np.float32)


def saved(folder: Path, node: Node, constants: Sequence[int] = ()) -> Path:
    """The node's model as a file; the inputs numbered in `constants` are initializers."""
    proto = model_of(node)
    for i in constants:
        proto.graph.initializer.append(numpy_helper.from_array(node.inputs[i], f"x{i}"))
    kept = [v for v in proto.graph.input if int(v.name[1:]) not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    path = folder / "node.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def results(
    folder: Path, node: Node, constants: Sequence[int] = ()
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(what the interpreter makes of the imported node, what the package computes)."""
    path, package = saved(folder, node, constants), folder / "node.cuvil"
    feeds = {f"x{i}": a for i, a in enumerate(node.inputs) if a is not None and i not in constants}
    build(BuildRequest(path, package, target="x86", cpu="host", jobs=1, vectors=0))
    loaded = open_package(package, threads=1)
    try:
        run = loaded.run(feeds)
    finally:
        loaded.close()
    ours = interpret(registry.load(path), feeds)
    names = [f"y{i}" for i in range(node.outputs)]
    return [ours[n] for n in names], [run[n] for n in names]


def agree(
    folder: Path, node: Node, constants: Sequence[int] = (), wanted: Any = None,
    quantised: bool = False,
) -> None:  # fmt: skip
    """Assert that both are what onnxruntime (or onnx's reference, or `wanted`) has.

    quantised: integers were rounded from sums of floats, and may lie a step beside.
    """
    wanted = expected(node) if wanted is None else wanted
    for found in results(folder, node, constants):
        for a, b in zip(found, wanted, strict=True):
            wrong = mismatch(np.asarray(a), np.asarray(b), quantised)
            assert not wrong, wrong
