"""The launch level: named kernels on planned buffers.

Values stay tensors; `places` says where each result lies: ("arena", offset in bytes) or ("output",
number). A place is a Dim, since sizes may be known at run time only. Kernels are the module's other
functions.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.op import OpDef, ShapeError, Tensor, Tensors, op


def _interpret_launch(interpreter: Any, operation: Any, operands: Any) -> Any:
    kernel = interpreter.program.function(ir.attrs(operation)["kernel"])
    sizes = interpreter.concrete(ir.attrs(operation)["symbols"])
    names = ir.attrs(kernel)["symbols"]
    outer = interpreter.sizes
    interpreter.sizes = dict(zip(names, sizes, strict=True))
    results = interpreter.call(kernel, operands)
    interpreter.sizes = outer
    return results


@op("ai.launch", results=-1, traits=("free-types",))
class Launch:
    """Call `kernel` with tensors, memory not planned yet. `symbols`: sizes for the kernel's own."""

    inputs: Tensors
    kernel: str
    symbols: tuple

    def shape(inputs, *, kernel, symbols):
        raise ShapeError("types of a launch come from its kernel")

    interpret = _interpret_launch


def _placed(machine: str, where: str) -> OpDef:
    """Declare `ai.{machine}.launch`."""

    class PlacedLaunch:
        inputs: Tensors
        kernel: str
        symbols: tuple
        places: tuple

        def shape(inputs, *, kernel, symbols, places):
            raise ShapeError("types of a launch come from its kernel")

        interpret = _interpret_launch

    PlacedLaunch.__doc__ = f"Run `kernel` on {where}; result i is written to places[i]."
    declare = op(f"ai.{machine}.launch", results=-1, pure=False, traits=("free-types",))
    return declare(PlacedLaunch)


CpuLaunch = _placed("cpu", "the CPU")
GpuLaunch = _placed("gpu", "a GPU")
NpuLaunch = _placed("npu", "an NPU")


@op("ai.copy", pure=False)
class Copy:
    """x in another buffer: an output that is an input, weight or other output; a branch's."""

    x: Tensor
    place: tuple

    def shape(x, *, place):
        return x

    def reference(x, *, place):
        return x
