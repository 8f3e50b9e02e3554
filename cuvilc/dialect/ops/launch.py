"""The launch level: named kernels on planned buffers.

Values stay tensors; `places` says where each result lies: ("arena", offset in bytes) or ("output",
number). A place is a Dim, since sizes may be known at run time only. Kernels are the module's other
functions.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError, Tensor, Tensors, op


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


@op("ai.cpu.launch", results=-1, pure=False, traits=("free-types",))
class CpuLaunch:
    """Run `kernel` on the CPU; result i is written to places[i]."""

    inputs: Tensors
    kernel: str
    symbols: tuple
    places: tuple

    def shape(inputs, *, kernel, symbols, places):
        raise ShapeError("types of a launch come from its kernel")

    interpret = _interpret_launch


@op("ai.gpu.launch", results=-1, pure=False, traits=("free-types",))
class GpuLaunch:
    """Run `kernel` on a GPU; result i is written to places[i]."""

    inputs: Tensors
    kernel: str
    symbols: tuple
    places: tuple

    def shape(inputs, *, kernel, symbols, places):
        raise ShapeError("types of a launch come from its kernel")

    interpret = _interpret_launch


@op("ai.npu.launch", results=-1, pure=False, traits=("free-types",))
class NpuLaunch:
    """Run `kernel` on an NPU; result i is written to places[i]."""

    inputs: Tensors
    kernel: str
    symbols: tuple
    places: tuple

    def shape(inputs, *, kernel, symbols, places):
        raise ShapeError("types of a launch come from its kernel")

    interpret = _interpret_launch


@op("ai.copy", pure=False)
class Copy:
    """x in another buffer: an output that is an input, weight or other output; a branch's."""

    x: Tensor
    place: tuple

    def shape(x, *, place):
        return x

    def reference(x, *, place):
        return x
