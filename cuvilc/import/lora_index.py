"""Every weight of an imported program, and in which role which module reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.types import FLOATS

from .lora_names import split_parameter

Axes = tuple[int, ...]  # for each axis of a value: the weight's axis that it is; -1 unknown
_WEIGHT_AND_BIAS = ("ai.layer_norm", "ai.rms_norm", "ai.group_norm", "ai.instance_norm",
                    "ai.batch_norm")  # fmt: skip
PACKED = "packed"


@dataclass(frozen=True)
class Reader:
    """One use of a weight, seen from the operation that computes with it.

    use: the operation and operand that read the weight itself; `consumer` is what comes after
    transposes, reshapes and casts. role: "weight", "bias", "" unknown, "packed" for the bytes of an
    ai.matmul_nbits. kind: as Site's. axis: of the weight that holds the outputs; -1 unknown.
    label: the model's node. scope: its module. names: of the weight in that node.
    """

    use: ir.Use
    consumer: ir.Operation
    role: str
    kind: str
    axis: int
    label: str
    scope: str
    names: tuple[str, ...]

    @property
    def paths(self) -> Iterator[tuple[str, str, str]]:
        """(name, module, parameter) of the names that are paths."""
        for name in self.names:
            found = split_parameter(name)
            if found:
                yield (name, *found)


@dataclass(frozen=True)
class Weight:
    """A constant of the program, or the floats of a quantised one, with its names in the model."""

    value: ir.Value
    key: str
    shape: tuple[int, ...]
    quantised: bool
    readers: tuple[Reader, ...]

    def __str__(self) -> str:
        return f"`{self.key}` {list(self.shape)}"


@dataclass
class Index:
    """All weights of a program."""

    program: ir.Program
    weights: list[Weight] = field(default_factory=list)

    def array(self, weight: Weight) -> np.ndarray | None:
        """The numbers; None for a quantised weight."""
        packed = any(r.role == PACKED for r in weight.readers)
        stored = weight.quantised or packed
        return None if stored else self.program.constant_array(weight.value)

    def named(self) -> dict[str, dict[str, set[str]]]:
        """Keys of weights by the module and the parameter that a name of theirs is of."""
        found: dict[str, dict[str, set[str]]] = {}
        for weight in self.weights:
            for reader in weight.readers:
                for _, path, parameter in reader.paths:
                    found.setdefault(path, {}).setdefault(parameter, set()).add(weight.key)
        return found


def index(program: ir.Program) -> Index:
    """Look through main. To be called in `with program`."""
    found = Index(program)
    names = _names(program)
    for operation in ir.walk(ir.body(program.function("main"))):
        stored = _stored(operation)
        if stored is None:
            continue
        key, value = stored
        sizes = ir.type_of(value).shape
        shape = tuple(d for d in sizes if isinstance(d, int))
        readers = tuple(_readers(program, value, key, names.get(key, ())))
        quantised = operation.name == "ai.dequantize_linear"
        if readers and len(shape) == len(sizes):
            found.weights.append(Weight(value, key, shape, quantised, readers))
    return found


def _names(program: ir.Program) -> dict[str, tuple[str, ...]]:
    """All names of each constant, its key first."""
    found: dict[str, dict[str, None]] = {}
    for reads in program.reads.values():
        for name, key in reads.items():
            found.setdefault(key, {key: None})[name] = None
    return {key: tuple(names) for key, names in found.items()}


def _stored(operation: ir.Operation) -> tuple[str, ir.Value] | None:
    """(key, value) of an operation that is a weight."""
    if operation.name == "ai.constant":
        key, value = str(ir.attrs(operation)["key"]), operation.results[0]
        packed = any(o.name == "ai.matmul_nbits" for o in ir.users(value))
        return (key, value) if packed or ir.type_of(value).dtype in FLOATS else None
    if operation.name == "ai.full":
        value = operation.results[0]
        one = ir.type_of(value).rank > 0 and ir.type_of(value).dtype in FLOATS
        return (ir.source_name(operation), value) if one else None
    if operation.name == "ai.dequantize_linear":
        source = ir.defining(operation.operands[0])
        while source is not None and source.name in ("ai.transpose", "ai.reshape"):
            source = ir.defining(source.operands[0])
        if source is not None and source.name == "ai.constant":
            return str(ir.attrs(source)["key"]), operation.results[0]
    return None


def _readers(
    program: ir.Program, value: ir.Value, key: str, names: tuple[str, ...]
) -> Iterator[Reader]:
    rank = ir.type_of(value).rank
    for operation, operand in ir.uses(value):
        for consumer, i, axes in _consumers(operation, operand, tuple(range(rank))):
            role, kind, axis = _role(consumer, i, axes)
            label = ir.source_name(consumer)
            direct = ir.source_name(operation)
            here = [n for at in dict.fromkeys((direct, label))
                    for n, k in program.reads.get(at, {}).items() if k == key]  # fmt: skip
            yield Reader(
                (operation, operand), consumer, role, kind, axis, label,
                program.scopes.get(label, ""), tuple(dict.fromkeys(here)) or names or (key,),
            )  # fmt: skip


def _consumers(
    operation: ir.Operation, operand: int, axes: Axes
) -> Iterator[tuple[ir.Operation, int, Axes]]:
    """Where a weight arrives through operations that only arrange or convert it."""
    if operand == 0 and operation.name in ("ai.transpose", "ai.reshape", "ai.cast"):
        after = _arranged(operation, axes)
        for reader, i in ir.uses(operation.results[0]):
            yield from _consumers(reader, i, after)
    else:
        yield operation, operand, axes


def _arranged(operation: ir.Operation, axes: Axes) -> Axes:
    if operation.name == "ai.transpose":
        return tuple(axes[i] for i in ir.attrs(operation)["perm"])
    if operation.name == "ai.cast":
        return axes
    before = ir.type_of(operation.operands[0]).shape
    after = ir.type_of(operation.results[0]).shape
    kept = [(axis, d) for axis, d in zip(axes, before, strict=True) if d != 1]
    if [d for _, d in kept] != [d for d in after if d != 1]:
        return (-1,) * len(after)
    left = iter(kept)
    return tuple(-1 if d == 1 else next(left)[0] for d in after)


def _role(operation: ir.Operation, operand: int, axes: Axes) -> tuple[str, str, int]:
    """(role, kind, axis of the outputs) of an operand."""
    match operation.name, operand:
        case ("ai.matmul", 0 | 1) if len(axes) > 1:
            flag = "transpose_b" if operand else "transpose_a"
            last = bool(operand) != bool(ir.attrs(operation)[flag])
            return "weight", "linear", axes[-1 if last else -2]
        case ("ai.conv", 1):
            return "weight", "convolution", axes[0]
        case ("ai.conv_transpose", 1):
            return "weight", "", axes[1]
        case ("ai.conv" | "ai.conv_transpose", 2):
            return "bias", "", axes[0]
        case ("ai.gather", 0) if len(axes) == 2 and ir.attrs(operation)["axis"] == 0:
            return "weight", "embedding", axes[1]
        case ("ai.matmul_nbits", 1):
            return PACKED, "linear", 0
        case (name, 1 | 2) if name in _WEIGHT_AND_BIAS:
            return ("weight" if operand == 1 else "bias"), "", axes[0]
        case ("ai.elemwise_add", _):
            return "bias", "", next((a for a in reversed(axes) if a >= 0), -1)
        case ("ai.elemwise_mul", _):
            return "weight", "", next((a for a in reversed(axes) if a >= 0), -1)
    return "", "", -1
