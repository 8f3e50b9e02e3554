"""A loaded model: call it with arrays, get arrays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import addressof, byref, c_char, c_char_p, c_void_p, memmove, sizeof
from os import PathLike, fsencode
from typing import Any, NoReturn

import numpy as np

from . import _native
from ._adapters import Adapter, Pages, Tenant, get_pages, list_adapters, name_for, text
from ._error import CuvilError
from ._native import Library, Tensor, TensorInfo
from ._port import Outputs, Port
from ._trace import Event, Profile


class Context:
    """Mutable state of one run at a time, with the argument structures it reuses.

    `dims`: the sizes of each output for the inputs' present shapes, None for one that only a run
    can tell; None while the library was not asked.
    """

    def __init__(
        self, library: Library, model: c_void_p, threads: int, ports: tuple[Port, ...]
    ) -> None:
        self.handle = c_void_p()
        options = _native.Options(sizeof(_native.Options), threads)
        library.check(library.context_create(model, byref(options), byref(self.handle)))
        self.tensors = [Tensor(dtype=port.dtype_number, rank=len(port.dims)) for port in ports]
        self._arguments = [byref(tensor) for tensor in self.tensors]
        self._shapes: list[tuple[int, ...] | None] = [None] * len(ports)
        self.dims: list[list[int] | None] | None = None
        self.has_adapters = False

    def input(self, number: int, array: np.ndarray) -> Any:
        """The C argument for an input."""
        if array.shape != self._shapes[number]:
            self.dims = None
        return self.tensor(number, array)

    def tensor(self, number: int, array: np.ndarray) -> Any:
        """The C argument for an input or, counted after the inputs, an output."""
        tensor, shape = self.tensors[number], array.shape
        tensor.data = _address(array)
        if shape != self._shapes[number]:
            self._shapes[number] = shape
            tensor.rank = len(shape)
            if len(shape) <= _native.MAX_RANK:  # beyond, the library refuses the rank
                tensor.dims[: len(shape)] = shape
        return self._arguments[number]


_from_buffer: Any = c_char.from_buffer  # typeshed does not know arrays as buffers before 3.12


def _address(array: np.ndarray) -> int:
    """Of the array's first element. Most arrays tell a ctypes object four times as quickly."""
    try:
        return addressof(_from_buffer(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty, or a dtype buffers lack
        address: int = array.__array_interface__["data"][0]
        return address


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
        self._holders = 0  # calls about adapters
        self._close = weakref.finalize(self, _release, library, self._handle, self._all)
        self._close.atexit = False  # a daemon thread may still run it; the system frees all anyway
        self.inputs = self._ports("input", library.input_count, library.input_info)
        self.outputs = self._ports("output", library.output_count, library.output_info)
        self.level: str = library.level_name(self._handle).decode(errors="replace")
        self._give(self._take())  # a thread count that cannot be had fails here, not in a call

    def _ports(self, role: str, count: Any, describe: Any) -> tuple[Port, ...]:
        ports, info = [], TensorInfo()
        for i in range(count(self._handle)):
            self._library.check(describe(self._handle, i, byref(info)))
            ports.append(Port(info, role, self._library.place))
        return tuple(ports)

    def __repr__(self) -> str:
        ports = [f"  in  {port!r}" for port in self.inputs] + [f"  out {p!r}" for p in self.outputs]
        return "\n".join([f"<cuvil.Model {self._library.place} ({self.level})>", *ports])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inputs in order, or by name. Returns the output; several come as an `Outputs` tuple.

        `adapters=[…]`: as `run` has it, unless an input is called so.
        """
        if len(args) > len(self.inputs):
            self._fail("CUV604", f"{len(args)} inputs given, the model has {len(self.inputs)}")
        feeds = {port.name: value for port, value in zip(self.inputs, args, strict=False)}
        twice = sorted(feeds.keys() & kwargs.keys())
        if twice:
            self._fail("CUV604", f"input `{twice[0]}` is given by place and by name")
        chosen: dict[str, Any] = {}
        if "adapters" in kwargs and all(port.name != "adapters" for port in self.inputs):
            chosen["adapters"] = kwargs.pop("adapters")
        values = self.run(feeds | kwargs, **chosen)
        return next(iter(values.values())) if len(values) == 1 else Outputs(values)

    def run(
        self,
        feeds: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        adapters: Sequence[str | None] = (),
    ) -> dict[str, np.ndarray]:
        """Outputs by name. `out`: arrays to write some or all outputs to instead of new ones.
        `adapters`: of a package built with `--lora batch`, that of each part of the batch.

        An input may be a NumPy array or anything with `__dlpack__` or `__array__`; its memory is
        used in place, unless it is strided or misaligned: then it is copied. Its dtype must be
        exact.
        """
        return self._run_batch(feeds, out, None, adapters)

    def _run_batch(
        self, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray] | None,
        tenant: c_void_p | None, adapters: Sequence[str | None],
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """A run with adapters of a tenant; None: the model's own."""
        context = self._take()
        try:
            if adapters:
                self._choose(context, tenant, adapters)
            return self._run(context, feeds, out or {})
        finally:
            self._release(context)

    def _release(self, context: Context) -> None:
        """Give a context back, without the adapters of its run."""
        if context.has_adapters:
            self._choose(context, None, ())
        self._give(context)

    def _choose(
        self, context: Context, tenant: c_void_p | None, adapters: Sequence[str | None]
    ) -> None:
        """The adapters of the context's next runs; it holds them until there are none."""
        if isinstance(adapters, str):
            message = f'`adapters` has a name for each row: ["{adapters}"] * rows, not "{adapters}"'
            self._fail("CUV610", message)
        if not self._library.takes_batches:
            self._fail("CUV612", "the package was built before packages had batches of adapters")
        if adapters and self.lora_mode == "swap":
            message = "the package was built with --lora swap: one adapter at a time, for all rows"
            self._fail("CUV612", message, "model.use(NAME), then run without `adapters`")
        for name in adapters:
            if name is not None and not isinstance(name, str):
                kind = type(name).__name__
                self._fail("CUV610", f"an adapter is a name or None, not {name!r} ({kind})")
        names = [None if name is None else _c_string(name) for name in adapters]
        array = (c_char_p * len(names))(*names)
        self._check(self._library.set_adapters(context.handle, tenant, array, len(names)))
        context.has_adapters = bool(names)

    def tenant(self, name: str) -> Tenant:
        """Who has adapters apart from all others, in a package built with `--lora batch`."""
        if not self._library.takes_batches:
            self._fail("CUV612", "the package was built before packages had batches of adapters")
        _c_string(name)
        return Tenant(self, name)

    @property
    def pages(self) -> Pages:
        """What the adapters of a package built with `--lora batch` hold in memory."""
        if not self._library.takes_batches:
            self._fail("CUV612", "the package was built before packages had batches of adapters")
        with self._held() as handle:
            return get_pages(self._library, handle)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that the model has now: those of its package and those loaded since."""
        with self._held() as handle:
            return list_adapters(self._library, handle)

    def use(self, name: str | None) -> None:
        """Runs that begin from now on use this adapter; None: the model as it was built.

        The weights that the adapter changes are made anew from the package's own, so what was in
        use before leaves no trace. Runs that other threads have begun finish with what they began
        with. CuvilError CUV612: no such adapter.
        """
        if name is not None and self.lora_mode == "batch":
            message = "the package was built with --lora batch: each row has an adapter of its own"
            self._fail(
                "CUV612", message, "give them to a run: run(feeds, adapters=[NAME, None, …])"
            )
        self._adapt("use_adapter", name)

    def load_adapter(self, path: str | PathLike[str], name: str | None = None) -> str:
        """Add an adapter from a .cuvla file that `cuvilc adapter build` made for this package.

        name: what to call it; None: the name in the file, which `cuvilc adapter build` took from
        the adapter's folder or from its `--name`. Returns the name, for `use` or for the
        `adapters` of `run`. CuvilError CUV611: the file is damaged or was made for another
        package, or an adapter of that name is loaded already.
        """
        called = name_for(path) if name is None else name
        self._adapt("load_adapter", fsencode(path), called)
        return text(called)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter that is not in use, and give its memory back."""
        self._adapt("unload_adapter", name)

    def _adapt(
        self, function: str, *arguments: str | bytes | None, of: c_void_p | None = None
    ) -> None:
        """`of`: a tenant; None: the model."""
        texts = [None if a is None else _c_string(a) for a in arguments]
        with self._held() as handle:
            if not self._library.takes_adapters:
                self._fail("CUV612", "the package was built before packages took adapters")
            self._check(getattr(self._library, function)(of or handle, *texts))

    @contextmanager
    def _held(self) -> Iterator[c_void_p]:
        """The open model, which cannot be closed meanwhile."""
        with self._lock:
            if not self._close.alive:
                self._fail("CUV610", "the model is closed")
            self._holders += 1
        try:
            yield self._handle
        finally:
            with self._lock:
                self._holders -= 1

    @property
    def lora_mode(self) -> str:
        """What the package does with adapters: "swap" or "batch"; "" when it takes none."""
        mode: str = self.metadata.get("lora", {}).get("mode", "")
        return mode

    @property
    def place(self) -> str:
        """Where the package was loaded from, as errors tell it."""
        return self._library.place

    def check_feeds(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The inputs as arrays that `run` takes without a copy. CuvilError CUV604, CUV605."""
        self._check_names(feeds, self.inputs, "input")
        return {port.name: self._array(port, feeds) for port in self.inputs}

    def trace(
        self, feeds: Mapping[str, Any], *, adapters: Sequence[str | None] = ()
    ) -> list[Event]:
        """Run once and return what each step took. `adapters`: as for `run`."""
        events: list[Event] = []

        def record(pointer: Any, _: Any) -> None:
            e = pointer.contents
            kernel, layer = e.kernel.decode(), e.layer.decode()
            events.append(Event(e.step, kernel, layer, e.threads, e.begin_ns, e.end_ns, e.cost))

        probe = _native.PROBE(record)
        context = self._take()
        try:
            self._library.check(self._library.set_probe(context.handle, probe, None))
            if adapters:
                self._choose(context, None, adapters)
            self._run(context, feeds, {})
        finally:
            self._library.set_probe(context.handle, _native.PROBE(), None)
            self._release(context)
        return events

    def profile(
        self, feeds: Mapping[str, Any], runs: int = 10, *, adapters: Sequence[str | None] = ()
    ) -> Profile:
        """Median time of each step over `runs` runs, after one to warm up."""
        self.run(feeds, adapters=adapters)
        return Profile.of([self.trace(feeds, adapters=adapters) for _ in range(runs)])

    def close(self) -> None:
        """Free memory and threads, unload the library. Else done when the model is collected."""
        with self._lock:
            if self._close.alive and (len(self._free) != len(self._all) or self._holders):
                self._fail("CUV610", "the model is closed while another thread runs it")
            self._free.clear()
            for port in self.outputs:
                port.clear()
            self._close()

    def _take(self) -> Context:
        """A context that no other thread uses."""
        with self._lock:
            if not self._close.alive:
                self._fail("CUV610", "the model is closed")
            if self._free:
                return self._free.pop()
            ports = self.inputs + self.outputs
            context = Context(self._library, self._handle, self.threads, ports)
            self._all.append(context)
            return context

    def _give(self, context: Context) -> None:
        with self._lock:
            self._free.append(context)

    def _run(
        self, context: Context, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        library, handle = self._library, context.handle
        kept = []  # alive until the run is over
        for i, port in enumerate(self.inputs):
            array = self._array(port, feeds)
            kept.append(array)
            if status := library.set_input(handle, i, context.input(i, array)):
                context.dims = None
                port.fail(f"CUV{status}", self._message())
        if len(feeds) > len(kept):
            self._check_names(feeds, self.inputs, "input")
        dims = context.dims or self._infer(context)
        results: dict[str, np.ndarray] = {}
        late = []  # outputs that only the run gives memory
        for i, port in enumerate(self.outputs):
            sizes, tensor = dims[i], None
            if out and port.name in out:
                results[port.name] = target = port.target(out[port.name])
                tensor = context.tensor(len(kept) + i, target)
            elif sizes is not None:
                results[port.name] = target = port.empty(sizes)
                tensor = context.tensor(len(kept) + i, target)
            else:
                late.append(i)
            if status := library.set_output(handle, i, tensor):
                port.fail(f"CUV{status}", self._message())
        if out:
            self._check_names(out, self.outputs, "output")
        if status := library.run(handle):
            self._fail(f"CUV{status}", self._message())
        if late:
            for i in late:
                results[self.outputs[i].name] = self._copy(context, i)
            results = {port.name: results[port.name] for port in self.outputs}
        return results

    def _array(self, port: Port, feeds: Mapping[str, Any]) -> np.ndarray:
        """The array of an input."""
        if port.name not in feeds:
            self._check_names(feeds, self.inputs, "input")  # a misspelt name says more
            port.fail("CUV604", f"input `{port.name}` is missing")
        return port.array(feeds[port.name])

    def _infer(self, context: Context) -> list[list[int] | None]:
        """The outputs' sizes for the inputs that were set; None where only a run can tell them."""
        self._check(self._library.infer_shapes(context.handle))
        tensors = (self._output(context, i) for i in range(len(self.outputs)))
        sizes = (tensor.dims[: tensor.rank] for tensor in tensors)
        context.dims = [None if -1 in dims else dims for dims in sizes]
        return context.dims

    def _output(self, context: Context, i: int) -> Tensor:
        tensor = Tensor()
        self._library.check(self._library.get_output(context.handle, i, byref(tensor)))
        return tensor

    def _copy(self, context: Context, i: int) -> np.ndarray:
        """Output i as the run left it in the context, in an array of its own."""
        tensor = self._output(context, i)
        array = self.outputs[i].empty(tensor.dims[: tensor.rank])
        memmove(array.ctypes.data, tensor.data, array.nbytes)
        return array

    def _check_names(self, given: Mapping[str, Any], ports: tuple[Port, ...], role: str) -> None:
        names = [port.name for port in ports]
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            self._fail("CUV604", f'{role}s come by name, {{"{names[0]}": array}}, not as {kind}')
        for name in given:
            if name not in names:
                listed = ", ".join(f"`{name}`" for name in names)
                self._fail("CUV604", f"the model has no {role} `{name}`; it has {listed}")

    def _check(self, status: int) -> None:
        """Raise what the library says when the status is not 0."""
        if status:
            self._fail(f"CUV{status}", self._message())

    def _message(self) -> str:
        message: str = self._library.last_error().decode(errors="replace")
        return message

    def _fail(self, code: str, message: str, help: str = "") -> NoReturn:
        raise CuvilError(code, message, self._library.place, help)


def _c_string(text: str | bytes) -> bytes:
    """As C takes it. ValueError for a null character."""
    encoded = text.encode() if isinstance(text, str) else text
    if b"\0" in encoded:
        raise ValueError("embedded null character in a name or path")
    return encoded


def _release(library: Library, model: c_void_p, contexts: list[Context]) -> None:
    for context in contexts:
        library.context_destroy(context.handle)
    library.close(model)
    library.unload()
