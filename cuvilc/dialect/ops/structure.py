"""What holds a program together: constants, sizes as values, fusion regions, conditionals."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError, Tensor, Tensors, op, sample
from cuvilc.dialect.ops._rules import need
from cuvilc.dialect.types import DTYPES, TensorType, numpy_dtype

MOST = 1 << 62  # computed sizes saturate here, so that adding an axis to them cannot overflow


@op("ai.constant")
class Constant:
    """A weight, held beside the IR under `key`; `fingerprint` tells different contents apart.

    The side table holds it row-major; `layout` says how the package will hold it.
    """

    key: str
    fingerprint: str
    shape: tuple
    dtype: str
    layout: str = ""

    def shape(*, key, fingerprint, shape, dtype, layout):
        return TensorType(shape, dtype, layout)

    def interpret(interpreter, operation, operands):
        return [interpreter.program.weights[ir.attrs(operation)["key"]]]


@op("ai.parameter")
class Parameter:
    """A weight that an adapter may exchange while the package is loaded; else as `ai.constant`.

    No pass reads its values: what it becomes must not be computed into anything else. `parts` names
    the parameters that it holds: (module, parameter, kind, start, size), each a part of `out_axis`.
    `kernel`: the one that merges a low-rank change into it. `batched`: its values stay, every row
    of a batch has changes of its own, which are in the table of that number (batch-adapters).
    `biases`: (module, key among the weights) of what is added to a batched one's products anyway.
    """

    key: str
    fingerprint: str
    shape: tuple
    dtype: str
    out_axis: int
    parts: tuple
    layout: str = ""
    kernel: str = ""
    batched: bool = False
    table: int = 0
    biases: tuple = ()

    def shape(
        *, key, fingerprint, shape, dtype, out_axis, parts, layout, kernel, batched, table, biases
    ):
        need(0 <= out_axis < max(len(shape), 1), f"out_axis {out_axis} of {len(shape)} axes")
        return TensorType(shape, dtype, layout)

    def interpret(interpreter, operation, operands):
        return [interpreter.program.weights[ir.attrs(operation)["key"]]]


@op("ai.full", traits=("injective",))
class Full:
    """A tensor of one repeated value; kernels take it as an immediate."""

    value: float
    shape: tuple
    dtype: str

    def shape(*, value, shape, dtype):
        if dtype not in DTYPES:
            raise ShapeError(f"unknown dtype {dtype!r}")
        return TensorType(shape, dtype)

    def reference(*, value, shape, dtype):
        return np.full(shape, value)

    def element(k, i, *, value, shape, dtype):
        return k.const(value, dtype)


@op("ai.dim_values")
class DimValues:
    """The sizes `values` as a one-dimensional int64 tensor: a model computes with its shapes."""

    values: tuple

    def shape(*, values):
        return TensorType((len(values),), "int64")

    def reference(*, values):
        return np.array(values, np.int64)


@op("ai.relayout", traits=("injective",))
class Relayout:
    """The same tensor in another memory layout."""

    x: Tensor
    layout: str

    def shape(x, *, layout):
        if layout and x.rank < 3:
            raise ShapeError(
                f"layout {layout!r} needs a channel axis and spatial axes, {x} has none"
            )
        return x.with_(layout=layout)

    def reference(x, *, layout):
        return x

    def element(k, i, x, *, layout):
        return x[i]

    samples = (sample("float32[2,20,3,5]", layout="NCHW16c"),)


@op("ai.fusion", regions=1, results=-1)
class Fusion:
    """Operations that become one kernel. Uses values from around it; its yield gives the results.

    `kind` names the schedule family that the fusing rule aims at, `rule` the rule itself.
    """

    kind: str
    rule: str

    def shape(*, kind, rule):
        raise ShapeError("types of a fusion come from its region")

    def interpret(interpreter, operation, operands):
        return interpreter.run_block(ir.body(operation))


@op("ai.if", pure=False, regions=2, results=-1)
class If:
    """Run the first region if `condition` (one bool) is true, else the second; both yield results.

    Regions see the values around them. Where the branches' results differ in a size, `sizes` names
    it: (symbol, size in the first region, size in the second); the symbol is bound by the branch
    that ran.
    """

    condition: Tensor
    sizes: tuple = ()

    def shape(condition, *, sizes):
        raise ShapeError("types of an if come from its regions")

    def interpret(interpreter, operation, operands):
        taken = 0 if bool(np.asarray(operands[0]).reshape(())) else 1
        results = interpreter.run_block(ir.body(operation, taken))
        for name, *each in ir.attrs(operation)["sizes"]:
            interpreter.sizes[name] = interpreter.concrete(each[taken])
        return results


@op("ai.loop", pure=False, regions=1, results=-1)
class Loop:
    """Run the region again and again, as ONNX's Loop does: a counter, values carried along, rows.

    values: [condition,] the carried values' beginnings. `trip` bounds the rounds; -1: no bound.
    With `conditional` the first operand and the first value that the region yields are one bool,
    which must be true for the next round to run. The region takes the carried values and yields
    [condition,] as many next ones, then rows. Results: the carried values after the last round,
    then the rows of all rounds stacked along a new first axis.

    Sizes that the rounds decide are symbols. `counter`: the number of this round, from 0; bound
    in the region. `carried_sizes`: (symbol, index of a carried value, axis): bound in the region
    to what that axis is in this round. `row_sizes`: (symbol, size in terms of the region): what
    a row has there, 0 before the first round. `final_sizes`: (symbol, size in terms of the symbols
    above): bound around after the last round, when `counter` is the number of rounds.
    """

    values: Tensors
    trip: Any
    conditional: bool
    counter: str
    carried_sizes: tuple = ()
    row_sizes: tuple = ()
    final_sizes: tuple = ()

    def shape(values, **_):
        raise ShapeError("types of a loop come from its region")

    def interpret(interpreter, operation, operands):
        return run_loop(interpreter, operation, list(operands))


def run_loop(interpreter: Any, operation: Any, values: list[Any]) -> list[Any]:
    """What `ai.loop` means. At the launch level carried values lie where they were planned."""
    attrs, block, sizes = ir.attrs(operation), ir.body(operation), interpreter.sizes
    trip, places = interpreter.concrete(attrs["trip"]), interpreter.places(operation)
    going = not attrs["conditional"] or bool(np.asarray(values.pop(0)).reshape(()))
    rows: list[list[Any]] = [[] for _ in operation.results[len(values) :]]
    sizes |= {name: 0 for name, _ in attrs["row_sizes"]}
    done = 0
    while True:
        sizes |= {name: values[i].shape[axis] for name, i, axis in attrs["carried_sizes"]}
        sizes[attrs["counter"]] = done
        if not going or 0 <= trip <= done:
            break
        interpreter.count_round()
        carried = zip(block.arguments, values, places[: len(values)], strict=True)
        interpreter.values |= {a: interpreter.put(v, place) for a, v, place in carried}
        results = [np.array(r) for r in interpreter.run_block(block)]
        going = not attrs["conditional"] or bool(results.pop(0).reshape(()))
        values = results[: len(values)]
        for row, result in zip(rows, results[len(values) :], strict=True):
            row.append(result)
        sizes |= {name: interpreter.concrete(d) for name, d in attrs["row_sizes"]}
        done += 1
    sizes |= {name: interpreter.concrete(d) for name, d in attrs["final_sizes"]}
    types = [ir.type_of(r) for r in operation.results[len(values) :]]
    empty = [np.zeros(interpreter.concrete(t.shape), numpy_dtype(t.dtype)) for t in types]
    return values + [np.stack(r) if r else e for r, e in zip(rows, empty, strict=True)]


@op("ai.bind_size", pure=False, results=0)
class BindSize:
    """Element `index` of `values`, an int64 tensor that the model computes, is the size `symbol`.

    From here to the end of the block, also in blocks within, types and attributes may use it.
    Beyond ±2^62 it saturates; outside the symbol's range the run is refused.
    """

    values: Tensor
    symbol: str
    index: int = 0

    def shape(values, *, symbol, index):
        if values.dtype != "int64" or values.rank > 1 or values.layout:
            raise ShapeError(f"sizes are read from an int64 vector or scalar, not {values}")
        return ()

    def interpret(interpreter, operation, operands):
        attrs = ir.attrs(operation)
        name, found = attrs["symbol"], int(np.asarray(operands[0]).reshape(-1)[attrs["index"]])
        lo, hi = interpreter.program.ranges.get(name, (-MOST, None))
        value = interpreter.sizes[name] = max(min(found, MOST), -MOST)
        if value < lo or (hi is not None and value > hi):
            demanded = f"must be {lo}..{'' if hi is None else hi}"
            raise SizeError(_at(operation) + f"the computed size `{name}` is {value}, {demanded}")
        return []


@op("ai.yield", results=0, traits=("terminator",))
class Yield:
    """Ends a region and gives its values."""

    values: Tensors

    def shape(values):
        return ()


class SizeError(ValueError):
    """The sizes of this run do not fit the program; the message says which."""


@op("ai.require", pure=False, results=0)
class Require:
    """Refuse the run unless `condition`, made of sizes, is 1; `message` says what it means.

    Stands at the head of its block, so that nothing of the block runs on sizes that do not fit.
    """

    condition: Any
    message: str

    def shape(*, condition, message):
        return ()

    def interpret(interpreter, operation, operands):
        attrs = ir.attrs(operation)
        if interpreter.concrete(attrs["condition"]) == 0:
            sizes = ", ".join(f"{name} = {n}" for name, n in interpreter.sizes.items())
            raise SizeError(f"{_at(operation)}{attrs['message']}, for {sizes}")
        return []


def _at(operation: Any) -> str:
    layer = ir.source_name(operation)
    return f"layer `{layer}`: " if layer else ""


def defined_sizes(operation: Any) -> tuple[str, ...]:
    """The symbols that the operation binds for what follows it in its block."""
    if operation.name not in ("ai.bind_size", "ai.if", "ai.loop"):
        return ()
    attrs = ir.attrs(operation)
    if operation.name == "ai.bind_size":
        return (attrs["symbol"],)
    groups = ("row_sizes", "final_sizes") if operation.name == "ai.loop" else ("sizes",)
    return tuple(entry[0] for group in groups for entry in attrs[group])


def region_sizes(operation: Any) -> tuple[str, ...]:
    """The symbols that an `ai.loop` binds for its region, in the order in which they are bound."""
    if operation.name != "ai.loop":
        return ()
    attrs = ir.attrs(operation)
    return (*(entry[0] for entry in attrs["carried_sizes"]), attrs["counter"])


def computed_sizes(block: Any) -> list[str]:
    """Every symbol that operations under the block bind, in the order in which they run first."""
    found: list[str] = []
    for operation in ir.operations(block):
        attrs = ir.attrs(operation) if operation.name == "ai.loop" else {}
        found += [entry[0] for entry in attrs.get("row_sizes", ())]
        found += region_sizes(operation)
        for region in operation.regions:
            for inner in region.blocks:
                found += computed_sizes(inner)
        found += [name for name in defined_sizes(operation) if name not in found]
    return found
