"""LLVM's own options, which belong to the process, while several threads compile.

TVM sets a target's `cl-opt` when it begins to generate code and takes them back when it ends,
whatever other threads are doing: their code would depend on luck, and packages on more than their
inputs. So one code generation stays begun, in a thread of its own, as long as anyone compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread, current_thread
from typing import Any

import tvm
import tvm_ffi

from cuvilc.targets.llvm import llvm_target, lower
from cuvilc.targets.tir import KernelBuilder

# Functions that TVM asks for the generator of a target's code, once the options are set.
_PREFIX = "tvm.codegen.llvm.target_"


@contextmanager
def held() -> Iterator[None]:
    """The options of `llvm_target` stay set, for all threads, until the block ends."""
    with _Keeper.lock:
        if not _Keeper.users:
            _Keeper.now = _Keeper()
        _Keeper.users += 1
    try:
        yield
    finally:
        with _Keeper.lock:
            _Keeper.users -= 1
            if not _Keeper.users and _Keeper.now is not None:
                _Keeper.now.end()
                _Keeper.now = None


class _Keeper:
    """A code generation that has begun."""

    lock = Lock()
    users = 0
    now: _Keeper | None = None

    def __init__(self) -> None:
        self._begun, self._ended = Event(), Event()
        self._thread = Thread(target=self._generate, name="llvm-options", daemon=True)
        names = tvm_ffi.registry.list_global_func_names()
        originals = {n: tvm.get_global_func(n) for n in names if n.startswith(_PREFIX)}
        for name, original in originals.items():
            tvm_ffi.register_global_func(name, self._waiting(original), override=True)
        try:
            self._thread.start()
            self._begun.wait()
        except BaseException:  # the user has interrupted it
            self._ended.set()
            raise
        finally:
            for name, original in originals.items():
                tvm_ffi.register_global_func(name, original, override=True)

    def _generate(self) -> None:
        try:
            lower(KernelBuilder("nothing").finish(), llvm_target({}), "ll")
        finally:
            self._begun.set()  # also where it failed, so that nobody waits in vain

    def _waiting(self, original: Any) -> Any:
        """The function, which in the keeper's thread returns only when the keeper ends."""

        def generator() -> Any:
            if current_thread() is self._thread:
                self._begun.set()
                self._ended.wait()
            return original()

        return generator

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
