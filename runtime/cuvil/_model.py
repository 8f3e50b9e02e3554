"""A loaded model: call it with arrays, get arrays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_void_p, sizeof
from typing import Any, NoReturn

import numpy as np

from . import _native
from ._error import CuvilError
from ._native import INT64_MAX, Library, Tensor, TensorInfo
from ._trace import Event, Profile


class Port:
    """An input or output: `name`, `dtype`, `dims` and `ranges`.

    `dims` holds ints, and for dynamic axes the symbol or expression as a string; `ranges` holds
    (lowest, highest) of each axis, highest None when unbounded. A bfloat16 port has the dtype of
    ml_dtypes where that is installed, else uint16: the raw bits.
    """

    __slots__ = ("dims", "dtype", "dtype_name", "dtype_number", "name", "ranges")

    def __init__(self, info: TensorInfo) -> None:
        rank = range(info.rank)
        self.name: str = info.name.decode(errors="replace")
        self.dtype_number: int = info.dtype
        self.dtype_name = _native.DTYPES[info.dtype]
        self.dtype: np.dtype[Any] = _dtype(self.dtype_name)
        self.dims: tuple[int | str, ...] = tuple(
            info.dims[i] if info.symbols[i] is None else info.symbols[i].decode(errors="replace")
            for i in rank
        )
        self.ranges: tuple[tuple[int, int | None], ...] = tuple(
            (info.lo[i], None if info.hi[i] == INT64_MAX else info.hi[i]) for i in rank
        )

    def __repr__(self) -> str:
        dims = []
        for dim, (low, high) in zip(self.dims, self.ranges, strict=True):
            bounds = f"={low}..{'' if high is None else high}"
            dims.append(str(dim) + (bounds if isinstance(dim, str) and dim.isidentifier() else ""))
        return f"{self.name}: {self.dtype_name}[{', '.join(dims)}]"


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            name = "uint16"
        else:
            dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return dtype
    return np.dtype(name)


class Outputs(tuple[np.ndarray, ...]):
    """Several results in the model's order; `outputs["name"]` and `outputs.name` work too."""

    names: tuple[str, ...]

    def __new__(cls, values: Mapping[str, np.ndarray]) -> Outputs:
        self = super().__new__(cls, values.values())
        self.names = tuple(values)
        return self

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> np.ndarray:
        if name == "names" or name not in self.names:
            raise AttributeError(name)
        value: np.ndarray = self[self.names.index(name)]
        return value

    def __repr__(self) -> str:
        return f"Outputs({', '.join(f'{n}={v!r}' for n, v in zip(self.names, self, strict=True))})"


class Context:
    """Mutable state of one run at a time, with the argument structures it reuses."""

    def __init__(
        self, library: Library, model: c_void_p, threads: int, ports: tuple[Port, ...]
    ) -> None:
        self.handle = c_void_p()
        options = _native.Options(sizeof(_native.Options), threads)
        library.check(library.context_create(model, byref(options), byref(self.handle)))
        self.tensors = [Tensor(dtype=port.dtype_number, rank=len(port.dims)) for port in ports]

    def tensor(self, number: int, array: np.ndarray) -> Any:
        tensor = self.tensors[number]
        tensor.data = array.__array_interface__["data"][0]
        tensor.rank = array.ndim
        if array.ndim <= _native.MAX_RANK:  # beyond, the library refuses the rank
            tensor.dims[: array.ndim] = array.shape
        return byref(tensor)


class Model:
    """A package, ready to run. Several threads may call one model: each call has its own context.

    `threads`: how many threads one call uses; None means all CPUs that the process may use.
    Contexts are kept for later calls: memory grows to that of the most calls ever made at once.
    """

    def __init__(
        self,
        library: Library,
        metadata: dict[str, Any],
        *,
        threads: int | None = None,
        level: str | None = None,
    ) -> None:
        self.metadata = metadata
        self.threads = threads or 0
        self._library = library
        self._handle = library.open_model(level)
        self._lock = threading.Lock()
        self._free: list[Context] = []
        self._all: list[Context] = []
        self._close = weakref.finalize(self, _release, library, self._handle, self._all)
        self.inputs = self._ports(library.input_count, library.input_info)
        self.outputs = self._ports(library.output_count, library.output_info)
        self.level: str = library.level_name(self._handle).decode(errors="replace")
        with self._context():  # a thread count that cannot be had fails here, not in the first call
            pass

    def _ports(self, count: Any, describe: Any) -> tuple[Port, ...]:
        ports, info = [], TensorInfo()
        for i in range(count(self._handle)):
            self._library.check(describe(self._handle, i, byref(info)))
            ports.append(Port(info))
        return tuple(ports)

    def __repr__(self) -> str:
        ports = [f"  in  {port!r}" for port in self.inputs] + [f"  out {p!r}" for p in self.outputs]
        return "\n".join([f"<cuvil.Model {self._library.place} ({self.level})>", *ports])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inputs in order, or by name. Returns the output; several come as an `Outputs` tuple."""
        if len(args) > len(self.inputs):
            self._fail("CUV604", f"{len(args)} inputs given, the model has {len(self.inputs)}")
        feeds = {port.name: value for port, value in zip(self.inputs, args, strict=False)}
        twice = sorted(feeds.keys() & kwargs.keys())
        if twice:
            self._fail("CUV604", f"input `{twice[0]}` is given by place and by name")
        values = self.run(feeds | kwargs)
        return next(iter(values.values())) if len(values) == 1 else Outputs(values)

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name. `out`: arrays to write some or all outputs to instead of new ones.

        An input may be a NumPy array or anything with `__dlpack__` or `__array__`; its memory is
        used in place, unless it is strided or misaligned: then it is copied. Its dtype must be
        exact.
        """
        with self._context() as context:
            return self._run(context, feeds, out or {})

    def trace(self, feeds: Mapping[str, Any]) -> list[Event]:
        """Run once and return what each step took."""
        events: list[Event] = []

        def record(pointer: Any, _: Any) -> None:
            e = pointer.contents
            kernel, layer = e.kernel.decode(), e.layer.decode()
            events.append(Event(e.step, kernel, layer, e.threads, e.begin_ns, e.end_ns, e.cost))

        probe = _native.PROBE(record)
        with self._context() as context:
            self._library.check(self._library.set_probe(context.handle, probe, None))
            try:
                self._run(context, feeds, {})
            finally:
                self._library.set_probe(context.handle, _native.PROBE(), None)
        return events

    def profile(self, feeds: Mapping[str, Any], runs: int = 10) -> Profile:
        """Median time of each step over `runs` runs, after one to warm up."""
        self.run(feeds)
        return Profile.of([self.trace(feeds) for _ in range(runs)])

    def close(self) -> None:
        """Free memory and threads, unload the library. Else done when the model is collected."""
        with self._lock:
            if self._close.alive and len(self._free) != len(self._all):
                self._fail("CUV610", "the model is closed while another thread runs it")
            self._free.clear()
            self._close()

    @contextmanager
    def _context(self) -> Iterator[Context]:
        with self._lock:
            if not self._close.alive:
                self._fail("CUV610", "the model is closed")
            if self._free:
                context = self._free.pop()
            else:
                ports = self.inputs + self.outputs
                context = Context(self._library, self._handle, self.threads, ports)
                self._all.append(context)
        try:
            yield context
        finally:
            with self._lock:
                self._free.append(context)

    def _run(
        self, context: Context, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        library, handle = self._library, context.handle
        self._check_names(feeds, self.inputs, "input")
        self._check_names(out, self.outputs, "output")
        kept = []  # alive until the run is over
        for i, port in enumerate(self.inputs):
            if port.name not in feeds:
                self._fail("CUV604", f"input `{port.name}` is missing", f"input {port!r}")
            array = self._array(port, feeds[port.name])
            kept.append(array)
            self._check(library.set_input(handle, i, context.tensor(i, array)), f"input {port!r}")
        self._check(library.infer_shapes(handle))
        results = {}
        for i, port in enumerate(self.outputs):
            array = self._target(context, i, out)
            number = len(self.inputs) + i
            self._check(
                library.set_output(handle, i, context.tensor(number, array)), f"output {port!r}"
            )
            results[port.name] = array
        self._check(library.run(handle))
        return results

    def _target(self, context: Context, i: int, out: Mapping[str, np.ndarray]) -> np.ndarray:
        """The caller's array for output i, or a new one."""
        port = self.outputs[i]
        array = out.get(port.name)
        if array is None:
            tensor = context.tensors[len(self.inputs) + i]
            self._check(self._library.get_output(context.handle, i, byref(tensor)))
            return np.empty(tensor.dims[: tensor.rank], port.dtype)
        if not isinstance(array, np.ndarray):
            self._fail("CUV604", f"output `{port.name}`: {type(array).__name__} is no NumPy array")
        self._check_dtype(port, array, "output")
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            self._fail("CUV607", f"output `{port.name}` must be C-contiguous, aligned and writable")
        return array

    def _array(self, port: Port, value: Any) -> np.ndarray:
        array = value if isinstance(value, np.ndarray) else self._convert(port, value)
        self._check_dtype(port, array, "input")
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            array = np.array(array, order="C")
        return array

    def _convert(self, port: Port, value: Any) -> np.ndarray:
        kind = type(value).__name__
        try:
            if hasattr(value, "__dlpack__"):
                return np.from_dlpack(value)
            if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
                return np.asarray(value)
        except Exception as error:
            raise CuvilError(
                "CUV604",
                f"input `{port.name}`: {kind} does not become an array: {error}",
                f"{self._library.place}: input {port!r}",
                "give a plain tensor in host memory (with torch: `x.detach().cpu()`)",
            ) from error
        self._fail(
            "CUV604",
            f"input `{port.name}` is a {kind}, not an array",
            f"input {port!r}",
            f"np.asarray(value, np.{port.dtype})",
        )

    def _check_dtype(self, port: Port, array: np.ndarray, role: str) -> None:
        dtype = array.dtype
        if dtype == port.dtype or (port.dtype_name == "bfloat16" and dtype == np.uint16):
            return
        order = "" if dtype.isnative else "byte-swapped "
        self._fail(
            "CUV605",
            f"{role} `{port.name}` is {order}{dtype.name}, the model declares {port.dtype_name}",
            f"{role} {port!r}",
            f"`{port.name}.astype(np.{port.dtype})` converts" if role == "input" else "",
        )

    def _check_names(self, given: Mapping[str, Any], ports: tuple[Port, ...], role: str) -> None:
        names = [port.name for port in ports]
        for name in given:
            if name not in names:
                listed = ", ".join(f"`{name}`" for name in names)
                self._fail("CUV604", f"the model has no {role} `{name}`; it has {listed}")

    def _check(self, status: int, place: str = "") -> None:
        if status:
            message = self._library.last_error().decode(errors="replace")
            self._fail(f"CUV{status}", message, place)

    def _fail(self, code: str, message: str, place: str = "", help: str = "") -> NoReturn:
        where = self._library.place
        raise CuvilError(code, message, f"{where}: {place}" if place else where, help)


def _release(library: Library, model: c_void_p, contexts: list[Context]) -> None:
    for context in contexts:
        library.context_destroy(context.handle)
    library.close(model)
    library.unload()
