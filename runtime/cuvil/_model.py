"""A loaded model: call it with arrays, get arrays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_void_p
from os import PathLike, fsencode
from typing import Any, NoReturn

import numpy as np

from . import _native
from ._adapters import Adapter, Pages, Tenant, get_pages, list_adapters, name_for, text
from ._context import Context
from ._error import CuvilError
from ._native import Library, TensorInfo
from ._port import Outputs, Port, input_arrays
from ._trace import Event, Profile


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
        self._close = weakref.finalize(self, _release, library, self._handle, self._free, self._all)
        self._close.atexit = False  # a daemon thread may still run it; the system frees all anyway
        self.inputs = self._ports("input", library.input_count, library.input_info)
        self.outputs = self._ports("output", library.output_count, library.output_info)
        self._names = tuple(port.name for port in self.inputs)
        self.level: str = library.level_name(self._handle).decode(errors="replace")
        # A thread count that cannot be had fails here, not in a call.
        self._free.append(self._make())

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
        feeds = dict(zip(self._names, args, strict=False))
        chosen: Sequence[str | None] = ()
        if kwargs:
            if twice := sorted(feeds.keys() & kwargs.keys()):
                self._fail("CUV604", f"input `{twice[0]}` is given by place and by name")
            if "adapters" in kwargs and all(port.name != "adapters" for port in self.inputs):
                chosen = kwargs.pop("adapters")
            feeds |= kwargs
        values = self.run(feeds, adapters=chosen)
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
            return context.run(feeds, out)
        finally:
            self._release(context)

    def _release(self, context: Context) -> None:
        """Give a context back, without the adapters of its run."""
        if context.has_adapters:
            self._choose(context, None, ())
        self._free.append(context)

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
        self._library.check(self._library.set_adapters(context.handle, tenant, array, len(names)))
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
            self._library.check(getattr(self._library, function)(of or handle, *texts))

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
        arrays = input_arrays(self.inputs, feeds, self.place)
        return {port.name: array for port, array in zip(self.inputs, arrays, strict=True)}

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
            context.run(feeds, None)
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
            mine = []  # no run begins with one of these
            with suppress(IndexError):  # another thread may take the last one
                while True:
                    mine.append(self._free.pop())
            if self._close.alive and (len(mine) != len(self._all) or self._holders):
                self._free.extend(mine)
                self._fail("CUV610", "the model is closed while another thread runs it")
            for port in self.outputs:
                port.clear()
            self._close()

    def _take(self) -> Context:
        """A context that no other thread uses."""
        try:
            return self._free.pop()  # atomic, as is `append`
        except IndexError:
            return self._make()

    def _make(self) -> Context:
        """One more context."""
        with self._lock:
            if not self._close.alive:
                self._fail("CUV610", "the model is closed")
            with suppress(IndexError):  # a close that failed has given them back
                return self._free.pop()
            context = Context(self._library, self._handle, self.threads, self.inputs, self.outputs)
            self._all.append(context)
            return context

    def _fail(self, code: str, message: str, help: str = "") -> NoReturn:
        raise CuvilError(code, message, self._library.place, help)


def _c_string(text: str | bytes) -> bytes:
    """As C takes it. ValueError for a null character."""
    encoded = text.encode() if isinstance(text, str) else text
    if b"\0" in encoded:
        raise ValueError("embedded null character in a name or path")
    return encoded


def _release(
    library: Library, model: c_void_p, free: list[Context], contexts: list[Context]
) -> None:
    free.clear()  # the finalizer of another object in a cycle with the model may yet call it
    for context in contexts:
        library.context_destroy(context.handle)
    library.close(model)
    library.unload()
