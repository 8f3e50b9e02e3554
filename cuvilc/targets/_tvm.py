"""Imports the parts of TVM that a build needs, in a sixth of the time: without PyTorch, which TVM
loads where it is installed (1.1 s), without Relax and the distributed runtime (0.5 s), without its
code generators for GPUs (0.3 s).

A build imports this before anything else that needs TVM. Whoever uses Relax in the same process
still gets it, and the code generators with it, when they ask for it; `tvm.backend.load("cuda")`
loads one of these alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

_ABSENT = ("torch", "tvm.runtime.disco")  # TVM does without either where it is not installed
_LATER = "tvm.relax"
_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"  # "0": TVM loads no code generators of its own accord


def _import_tvm() -> None:
    hidden = [name for name in _ABSENT if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    later = _LATER not in sys.modules
    if later:
        sys.modules[_LATER] = ModuleType(_LATER)
    chosen = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        tvm = importlib.import_module("tvm")
    finally:
        if chosen is None:
            del os.environ[_AUTOLOAD]
        else:
            os.environ[_AUTOLOAD] = chosen
        for name in hidden:
            del sys.modules[name]
        if later:
            del sys.modules[_LATER]
    if later:
        vars(tvm).pop("relax", None)
        vars(tvm)["__getattr__"] = _load_relax  # PEP 562: called for what the module lacks


def _load_relax(name: str) -> ModuleType:
    if name == "relax":
        loader: Any = importlib.import_module("tvm.backend._autoload_backends")
        loader._AUTO_LOAD_DONE = False
        loader._autoload_backends()  # as the environment has it now
        return importlib.import_module(_LATER)
    raise AttributeError(f"module 'tvm' has no attribute {name!r}")


if "tvm" not in sys.modules:
    _import_tvm()
