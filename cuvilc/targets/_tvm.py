"""Imports the parts of TVM that a build needs, in a third of the time: without PyTorch, which TVM
loads where it is installed (1.1 s), without Relax and the distributed runtime (0.5 s).

A build imports this before anything else that needs TVM. Whoever uses Relax in the same process
still gets it, when they ask for it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_ABSENT = ("torch", "tvm.runtime.disco")  # TVM does without either where it is not installed
_LATER = "tvm.relax"


def _import_tvm() -> None:
    hidden = [name for name in _ABSENT if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError
    later = _LATER not in sys.modules
    if later:
        sys.modules[_LATER] = ModuleType(_LATER)
    try:
        tvm = importlib.import_module("tvm")
    finally:
        for name in hidden:
            del sys.modules[name]
        if later:
            del sys.modules[_LATER]
    if later:
        vars(tvm).pop("relax", None)
        vars(tvm)["__getattr__"] = _load_relax  # PEP 562: called for what the module lacks


def _load_relax(name: str) -> ModuleType:
    if name == "relax":
        return importlib.import_module(_LATER)
    raise AttributeError(f"module 'tvm' has no attribute {name!r}")


if "tvm" not in sys.modules:
    _import_tvm()
