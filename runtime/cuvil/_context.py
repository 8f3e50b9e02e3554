"""One run at a time: arrays in, arrays out, with the C structures that every run uses again."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import addressof, byref, c_char, c_int32, c_void_p, memmove, sizeof
from typing import Any

import numpy as np

from . import _native, _quick
from ._native import Library, Tensor
from ._port import Port, check_names, input_arrays

_from_buffer: Any = c_char.from_buffer  # typeshed does not know arrays as buffers before 3.12


class _Argument:
    """The C arguments of an input or output: its number, and the tensor that describes an array."""

    __slots__ = ("_shape", "_tensor", "number", "port", "reference")

    def __init__(self, port: Port, number: int) -> None:
        self.port = port
        self.number = c_int32(number)
        self._tensor = Tensor(dtype=port.dtype_number, rank=len(port.dims))
        self.reference = byref(self._tensor)
        self._shape: tuple[int, ...] | None = None

    def describe(self, array: np.ndarray) -> bool:
        """Point the tensor at the array; whether its shape is another than the last one's."""
        tensor, shape = self._tensor, array.shape
        try:  # most arrays tell a ctypes object their address four times as quickly
            tensor.data = addressof(_from_buffer(array))
        except (TypeError, ValueError, BufferError):  # read-only, empty, or no dtype of buffers
            tensor.data = array.__array_interface__["data"][0]
        if shape == self._shape:
            return False
        self._shape = None  # Ctrl-C may come in between
        tensor.rank = len(shape)
        if len(shape) <= _native.MAX_RANK:  # beyond, the library refuses the rank
            tensor.dims[: len(shape)] = shape
        self._shape = shape
        return True


class Context:
    """Mutable state of one run at a time.

    `has_adapters`: whether its next run has adapters of its own.
    """

    def __init__(
        self,
        library: Library,
        model: c_void_p,
        threads: int,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
    ) -> None:
        self.handle = c_void_p()
        options = _native.Options(sizeof(_native.Options), threads)
        library.check(library.context_create(model, byref(options), byref(self.handle)))
        self.has_adapters = False
        self._library = library
        self._ports = inputs, outputs
        self._inputs = [_Argument(port, i) for i, port in enumerate(inputs)]
        self._outputs = [_Argument(port, i) for i, port in enumerate(outputs)]
        # Of each output for the inputs' present shapes; None: only a run can tell it.
        self._sizes: list[tuple[int, ...] | None] | None = None
        try:
            self._quick = _quick.make(library, self.handle, inputs, outputs)
        except BaseException:  # Ctrl-C, say
            library.context_destroy(self.handle)
            raise

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        """As `Model.run`."""
        library, handle = self._library, self.handle
        done = self._quick(feeds, out)
        if done is not None:
            if not isinstance(done, int):
                return done
            library.check(done)
        if out is not None:
            check_names(self._ports[1], out, "output", library.place)
        arrays = input_arrays(self._ports[0], feeds, library.place)  # alive until the run is over
        known, self._sizes = self._sizes, None  # which a run that ends early leaves unknown
        for i, argument in enumerate(self._inputs):
            if argument.describe(arrays[i]):
                known = None
            if status := library.set_input(handle, argument.number, argument.reference):
                help = argument.port.reshaping(arrays[i].shape)
                argument.port.fail(f"CUV{status}", library.message(), help)
        results: dict[str, np.ndarray] = {}
        late = []  # outputs that only the run gives memory
        self._sizes = known = known or self._infer()
        for i, argument in enumerate(self._outputs):
            port, sizes = argument.port, known[i]
            reference: Any = argument.reference
            if out and port.name in out:
                results[port.name] = target = port.target(out[port.name])
                argument.describe(target)
            elif sizes is not None:
                results[port.name] = target = port.empty(sizes)
                argument.describe(target)
            else:
                late.append(argument)
                reference = None
            if status := library.set_output(handle, argument.number, reference):
                port.fail(f"CUV{status}", library.message())
        library.check(library.run(handle))
        if late:
            for argument in late:
                results[argument.port.name] = self._copy(argument)
            results = {a.port.name: results[a.port.name] for a in self._outputs}
        return results

    def _infer(self) -> list[tuple[int, ...] | None]:
        """The outputs' sizes for the inputs that were set; None where only a run can tell them."""
        self._library.check(self._library.infer_shapes(self.handle))
        tensors = [self._get(argument) for argument in self._outputs]
        found = [tuple(tensor.dims[: tensor.rank]) for tensor in tensors]
        return [None if -1 in dims else dims for dims in found]

    def _get(self, argument: _Argument) -> Tensor:
        tensor = Tensor()
        self._library.check(self._library.get_output(self.handle, argument.number, byref(tensor)))
        return tensor

    def _copy(self, argument: _Argument) -> np.ndarray:
        """An output as the run left it in the context, in an array of its own."""
        tensor = self._get(argument)
        array = argument.port.empty(tuple(tensor.dims[: tensor.rank]))
        memmove(array.ctypes.data, tensor.data, array.nbytes)
        return array
