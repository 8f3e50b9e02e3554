"""onnxruntime's inputs and outputs in the form that packages have: tensors alone.

A sequence `s` is one tensor for each element, `s.0`, `s.1`, …; a ZipMap's result, a list of maps,
is the tensor of its values, columns in the order of the node's labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def grouped(feeds: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, Any] | None:
    """`feeds` under the oracle's names; None when they do not cover each other.

    A name without feed is an optional input that is absent.
    """
    given: dict[str, Any] = {}
    used = 0
    for name in names:
        if name in feeds:
            given[name] = feeds[name]
            used += 1
            continue
        members: list[np.ndarray] = []
        while (member := f"{name}.{len(members)}") in feeds:
            members.append(feeds[member])
        if members:
            given[name] = members
            used += len(members)
    return given if used == len(feeds) else None


def flat(name: str, value: Any, labels: Mapping[str, list[Any]]) -> dict[str, np.ndarray]:
    """An output as tensors by name. `labels`: of each ZipMap, by its output."""
    if not isinstance(value, list):
        return {} if value is None else {name: value}
    if name in labels:
        rows = [[row[label] for label in labels[name]] for row in value]
        return {name: np.array(rows, np.float32).reshape(len(rows), len(labels[name]))}
    return {f"{name}.{i}": element for i, element in enumerate(value)}


def zip_labels(path: Path) -> dict[str, list[Any]]:
    """The labels of the model's ZipMap nodes, by the name of their output."""
    import onnx  # noqa: PLC0415

    graph = onnx.load(path, load_external_data=False).graph
    return {
        node.output[0]: [x.decode() if isinstance(x, bytes) else x for x in a.ints or a.strings]
        for node in graph.node
        for a in node.attribute
        if node.op_type == "ZipMap"
    }
