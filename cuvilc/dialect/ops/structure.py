"""What holds a program together: constants, sizes as values, fusion regions, conditionals."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError, Tensor, Tensors, op, sample
from cuvilc.dialect.types import DTYPES, TensorType


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


@op("ai.if", regions=2, results=-1)
class If:
    """Run the first region if `condition` (one bool) is true, else the second; both yield results.

    Regions see the values around them. Sizes may differ between the branches only by name.
    """

    condition: Tensor

    def shape(condition):
        raise ShapeError("types of an if come from its regions")

    def interpret(interpreter, operation, operands):
        taken = 0 if bool(np.asarray(operands[0]).reshape(())) else 1
        return interpreter.run_block(ir.body(operation, taken))


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
            layer = ir.source_name(operation)
            place = f"layer `{layer}`: " if layer else ""
            raise SizeError(f"{place}{attrs['message']}, for {sizes}")
        return []
