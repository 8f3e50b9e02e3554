"""Load and run models that cuvilc compiled. Needs NumPy alone.

model = cuvil.load("resnet18.cuvil")
scores = model(image)                      # NumPy array, or anything with __dlpack__
result = model.run({"image": image})       # names in, names out
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ._adapters import Adapter, Pages, Tenant
from ._batch import Batcher, Request, batch_axis, can_batch
from ._error import CuvilError
from ._model import Model
from ._package import load
from ._port import Outputs, Port
from ._trace import Event, Profile

__version__ = "0.1.0"
__all__ = [
    "Adapter",
    "Batcher",
    "CuvilError",
    "Event",
    "Model",
    "Outputs",
    "Pages",
    "Port",
    "Profile",
    "Request",
    "Tenant",
    "batch_axis",
    "can_batch",
    "include_dir",
    "load",
    "source_dir",
]

_COMPILER = ("accelerate", "compile", "mlir")  # defined by cuvilc.api, imported when first used


def include_dir() -> Path:
    """The folder of cuvil.h, cuvil_dl.h and cuvil.hpp."""
    return _beside("include")


def source_dir() -> Path:
    """The folder of the runtime's C sources, which the compiler links into every model.so."""
    return _beside("src")


def _beside(name: str) -> Path:
    here = Path(__file__).resolve().parent
    packaged = here / "csrc" / name  # of a wheel; a source tree has them beside this folder
    return packaged if packaged.is_dir() else here.parent / name


def __getattr__(name: str) -> Any:
    if name not in _COMPILER:
        raise AttributeError(f"module 'cuvil' has no attribute {name!r}")
    if find_spec("cuvilc") is None or find_spec("cuvilc.api") is None:
        raise AttributeError(f"cuvil.{name} needs the compiler: pip install cuvilc")
    return getattr(import_module("cuvilc.api"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "compile"])
