"""What a model's nodes say of the modules they came from: `Program.scopes` and `Program.reads`.

PyTorch's exporters leave the path of the module that a node came from: the TorchScript one in the
node's name (`/model/layers.0/q_proj/MatMul`), the dynamo one in the node's metadata. Names of
weights may be lost or shared where paths are not, and the other way round, so both are kept.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from cuvilc.dialect import ir

from .onnx_values import Val

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_NAMESPACE = "namespace"
_ARRANGES = ("Transpose", "Cast", "Reshape", "Squeeze", "Unsqueeze")
_RULE = "pkg.onnxscript.rewriter.rule_name"


class Origins:
    """Collects, while one model is imported, where its nodes come from."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.outer: list[str] = []  # paths of the nodes whose definitions are being imported
        self.arranged: dict[str, str] = {}  # result of a transpose of a weight -> its name

    @contextmanager
    def inside(self, proto: Any) -> Iterator[None]:
        """Within, the nodes of a node's definition are imported: they are of its module."""
        self.outer.append(self.outer[-1] if self.outer else module_path(proto))
        try:
            yield
        finally:
            self.outer.pop()

    def note(self, label: str, proto: Any, inputs: Sequence[Any]) -> None:
        """A node was imported under `label`: keep its path, and the names of its weights."""
        path = self.outer[-1] if self.outer else module_path(proto)
        if self.program.scopes.setdefault(label, path) != path:
            self.program.scopes[label] = ""  # two nodes of one name: neither is known
        if self.outer:
            return
        first = inputs[0] if inputs else None
        if proto.op_type in _ARRANGES and isinstance(first, Val) and first.array is not None:
            source = self.arranged.get(proto.input[0], proto.input[0])
            self.arranged.update(dict.fromkeys(proto.output[:1], source))
        unpacked = proto.input[1:2] if proto.op_type == "MatMulNBits" else ()
        for name, val in zip(proto.input, inputs, strict=True):
            # The importer makes a constant of its own of MatMulNBits' bytes.
            key = f"{label}.constant" if name in unpacked else _key(val)
            if key:
                # Of small weights the importer computes the transpose, whose name says nothing.
                source = name if "." in name else self.arranged.get(name, name)
                self.program.reads.setdefault(label, {})[source] = key


def _key(val: Any) -> str:
    """The name by which the program knows a constant; "" for what is none."""
    if not isinstance(val, Val) or val.ssa is None:
        return ""
    owner = ir.defining(val.ssa)
    if owner is None or owner.name not in ir.CONSTANTS:
        return ""
    return str(ir.attrs(owner)["key"]) if owner.name == "ai.constant" else val.key


def module_path(proto: Any) -> str:
    """The dotted path of the module that a node was exported from; "" where nothing says it.

    A node into whose weights an optimiser multiplied a normalisation is of no module any more: its
    path says which rule did it, `bn (FuseBatchNormIntoConv)`, and is no module's.
    """
    metadata = {p.key: p.value for p in getattr(proto, "metadata_props", ())}
    rule = metadata.pop(_RULE, "")
    if rule.startswith("FuseBatchNorm"):
        return f"{_exported_path(metadata, proto)} ({rule})"
    return _exported_path(metadata, proto)


def _exported_path(metadata: dict[str, str], proto: Any) -> str:
    if _SCOPES in metadata:
        return _by_scopes(metadata[_SCOPES], metadata.get(_CLASSES, ""))
    if _NAMESPACE in metadata:
        return _by_namespace(metadata[_NAMESPACE])
    return path_of_name(proto.name)


def _by_scopes(text: str, classes: str) -> str:
    """`['', 'm', 'm.layers.0', 'linear']` of classes `[…, 'aten.linear.default']`: m.layers.0."""
    scopes, kinds = _strings(text), _strings(classes)
    if len(kinds) == len(scopes):
        paths = [s for s, kind in zip(scopes, kinds, strict=True) if not _is_function(kind)]
    else:
        paths = list(scopes[:-1])
    return paths[-1] if paths else ""


def _is_function(kind: str) -> bool:
    """Whether a class of the hierarchy is an operator, not a module."""
    return kind.startswith(("aten.", "prim", "higher_order", "<built-in", "quantized_"))


# A list as nearly all are; Python's own parser takes 20 times as long for it.
_PLAIN = re.compile(r"\['[^'\\\n]*'(?:, '[^'\\\n]*')*\]")


@lru_cache(maxsize=256)
def _strings(text: str) -> tuple[str, ...]:
    """A Python list of strings, as the exporter writes it; nothing for any other text. Neighbours
    among the nodes have many of them in common.
    """
    if len(text) > 1 << 16:
        return ()
    if _PLAIN.fullmatch(text):
        return tuple(text[2:-2].split("', '"))
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(str(s) for s in found) if isinstance(found, list) else ()


def _by_namespace(text: str) -> str:
    """`: Model/m.layers.0: torch.nn.Linear/linear: aten.linear.default`: m.layers.0."""
    parts = [part.partition(": ") for part in text.split("/")]
    paths = [path for path, _, kind in parts if not _is_function(kind)]
    return paths[-1] if paths else ""


def path_of_name(name: str) -> str:
    """`/model/layers.0/q_proj/MatMul`: model.layers.0.q_proj. "" for a name that is no path.

    A Sequential's children repeat its name (`/seq/seq.0/Gemm` is seq.0), and onnxruntime's
    optimiser appends what it did (`…/MatMul/MatMulAddFusion`).
    """
    if not name.startswith("/"):
        return ""
    parts, changed = name[1:].split("/"), ""
    while parts and (not parts[-1] or parts[-1].endswith("Fusion")):
        last = parts.pop()
        changed = f" ({last})" if "Bn" in last else changed
    path: list[str] = []
    for part in parts[:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path) + changed
