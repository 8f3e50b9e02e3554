"""The C API (cuvil.h) through ctypes."""

from __future__ import annotations

import _ctypes
import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from threading import Lock
from typing import Any

from ._error import CuvilError

API_VERSION = 1
MAX_RANK = 8
INT64_MAX = 2**63 - 1
# By cuvil_dtype.
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int),
        ("rank", c_int32),
        ("dims", c_int64 * MAX_RANK),
        ("strides", POINTER(c_int64)),
    )


class TensorInfo(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_int),
        ("rank", c_int32),
        ("dims", c_int64 * MAX_RANK),
        ("symbols", c_char_p * MAX_RANK),
        ("lo", c_int64 * MAX_RANK),
        ("hi", c_int64 * MAX_RANK),
    )


class Options(ctypes.Structure):
    _fields_ = (("struct_bytes", c_size_t), ("threads", c_int32))


class AdapterInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 128),
        ("source", ctypes.c_uint8 * 32),
        ("rank", c_int32),
        ("tensors", c_int32),
        ("bytes", ctypes.c_uint64),
        ("active", ctypes.c_bool),
    )


class PagesInfo(ctypes.Structure):
    _fields_ = (
        ("page_bytes", c_int64),
        ("pages", c_int64),
        ("shared", c_int64),
        ("adapters", c_int64),
        ("bytes", ctypes.c_uint64),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("kernel", c_char_p),
        ("layer", c_char_p),
        ("step", c_uint32),
        ("threads", c_uint32),
        ("begin_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
        ("cost", c_int64),
    )


PROBE = ctypes.CFUNCTYPE(None, POINTER(Event), c_void_p)

# Result and arguments; those in SLOW run long, and give up the GIL meanwhile.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuvil_open": (c_int, c_char_p, POINTER(c_void_p)),
    "cuvil_close": (None, c_void_p),
    "cuvil_last_error": (c_char_p,),
    "cuvil_metadata": (c_char_p,),
    "cuvil_api_version": (c_uint32,),
    "cuvil_level_name": (c_char_p, c_void_p),
    "cuvil_input_count": (c_int32, c_void_p),
    "cuvil_output_count": (c_int32, c_void_p),
    "cuvil_input_info": (c_int, c_void_p, c_int32, POINTER(TensorInfo)),
    "cuvil_output_info": (c_int, c_void_p, c_int32, POINTER(TensorInfo)),
    "cuvil_context_create": (c_int, c_void_p, POINTER(Options), POINTER(c_void_p)),
    "cuvil_context_destroy": (None, c_void_p),
    "cuvil_context_bytes": (c_size_t, c_void_p),
    "cuvil_model_bytes": (c_size_t, c_void_p),
    "cuvil_set_input": (c_int, c_void_p, c_int32, POINTER(Tensor)),
    "cuvil_set_output": (c_int, c_void_p, c_int32, POINTER(Tensor)),
    "cuvil_get_output": (c_int, c_void_p, c_int32, POINTER(Tensor)),
    "cuvil_infer_shapes": (c_int, c_void_p),
    "cuvil_run": (c_int, c_void_p),
    "cuvil_set_probe": (c_int, c_void_p, PROBE, c_void_p),
    "cuvil_adapter_count": (c_int32, c_void_p),
    "cuvil_get_adapter": (c_int, c_void_p, c_int32, POINTER(AdapterInfo)),
    "cuvil_use_adapter": (c_int, c_void_p, c_char_p),
    "cuvil_load_adapter": (c_int, c_void_p, c_char_p, c_char_p),
    "cuvil_unload_adapter": (c_int, c_void_p, c_char_p),
    "cuvil_get_tenant": (c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    "cuvil_tenant_load_adapter": (c_int, c_void_p, c_char_p, c_char_p),
    "cuvil_tenant_unload_adapter": (c_int, c_void_p, c_char_p),
    "cuvil_tenant_adapter_count": (c_int32, c_void_p),
    "cuvil_tenant_get_adapter": (c_int, c_void_p, c_int32, POINTER(AdapterInfo)),
    "cuvil_set_adapters": (c_int, c_void_p, c_void_p, POINTER(c_char_p), c_int32),
    "cuvil_get_pages": (c_int, c_void_p, POINTER(PagesInfo)),
    "cuvil_python_bind": (c_int, c_void_p, c_size_t),
    "cuvil_python_run": (None,),
}
SLOW = {
    "cuvil_open", "cuvil_run", "cuvil_context_create", "cuvil_context_destroy",
    "cuvil_adapter_count", "cuvil_get_adapter", "cuvil_use_adapter", "cuvil_load_adapter",
    "cuvil_unload_adapter", "cuvil_tenant_load_adapter", "cuvil_tenant_unload_adapter",
    "cuvil_get_tenant", "cuvil_tenant_adapter_count", "cuvil_tenant_get_adapter",
    "cuvil_set_adapters", "cuvil_get_pages",
}  # fmt: skip

# Called in every run, with arguments that a context made once: telling ctypes their types, it would
# convert them anew each time, which takes longer than the calls.
BARE = {"cuvil_set_input", "cuvil_set_output", "cuvil_run"}

# Packages built before these existed have none of them.
LATER = {
    name for name in SIGNATURES
    if any(word in name for word in ("_adapter", "_tenant", "_pages", "_model_bytes", "_python"))
}  # fmt: skip


class _Names:
    """Under which names files are loaded. The dynamic linker knows a library by its name as long as
    anybody uses it, also when another file lies there by then, such as a package that was built
    again; `/.` makes another name for the same place. A file that is loaded twice is mapped once,
    and has one name: else the linker would know it by a second one that is free here.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used: dict[str, tuple[tuple[int, ...], int]] = {}  # name: (file, libraries)

    def load(self, path: Path) -> tuple[str, ctypes.CDLL]:
        """The library and the name that it got. OSError when the linker refuses it."""
        name = self._take(path.resolve())
        try:
            return name, ctypes.CDLL(name)
        except BaseException:
            self.give(name)
            raise

    def _take(self, path: Path) -> str:
        status = path.stat()
        file = (status.st_dev, status.st_ino)  # not used again while the old file is mapped
        name, folder = str(path), str(path.parent)
        with self._lock:
            for known, (of, libraries) in self._used.items():
                if of == file:
                    self._used[known] = (file, libraries + 1)
                    return known
            while name in self._used:
                folder += "/."
                name = f"{folder}/{path.name}"
            self._used[name] = (file, 1)
        return name

    def give(self, name: str) -> None:
        """One library less under the name."""
        with self._lock:
            file, libraries = self._used.pop(name)
            if libraries > 1:
                self._used[name] = (file, libraries - 1)


_NAMES = _Names()


class Library:
    """A loaded model.so, its functions by their names without `cuvil_`."""

    def __init__(self, path: Path, place: str) -> None:
        self.place = place
        try:
            self._name, library = _NAMES.load(path)
            quick = ctypes.PyDLL(str(path), handle=library._handle)
            for name, (result, *arguments) in SIGNATURES.items():
                held = library if name in SLOW else quick
                if name in LATER and not hasattr(held, name):
                    continue
                function = getattr(held, name)
                function.restype = result
                if name not in BARE:
                    function.argtypes = arguments
                setattr(self, name.removeprefix("cuvil_"), function)
        except (OSError, UnicodeDecodeError) as error:  # its message may quote damaged bytes
            raise CuvilError("CUV601", f"the dynamic linker refuses it: {error}", place) from error
        except AttributeError as error:
            raise CuvilError(
                "CUV601", f"a library without the cuvil API: {error}", place
            ) from error
        self._handle = library._handle
        if self.api_version() != API_VERSION:
            raise CuvilError(
                "CUV602", f"C API {self.api_version()}, this loader knows {API_VERSION}", place
            )

    def __getattr__(self, name: str) -> Any:  # for type checkers: functions are set in __init__
        raise AttributeError(name)

    def check(self, status: int) -> None:
        """Raise what the library says when the status is not 0."""
        if status:
            raise CuvilError(f"CUV{status}", self.message(), self.place)

    def message(self) -> str:
        """Why this thread's last call failed."""
        message: bytes = self.last_error() or b""
        return message.decode(errors="replace")

    @property
    def takes_adapters(self) -> bool:
        """Whether the library knows adapters at all."""
        return "use_adapter" in self.__dict__

    @property
    def takes_batches(self) -> bool:
        """Whether the library knows batches of adapters."""
        return "set_adapters" in self.__dict__

    @property
    def runs_quickly(self) -> bool:
        """Whether the library knows runs from Python in one step."""
        return "python_run" in self.__dict__

    def open_model(self, level: str | None) -> c_void_p:
        """A cuvil_model. level: None for the best that this CPU runs."""
        model = c_void_p()
        self.check(self.open(level.encode() if level else None, byref(model)))
        return model

    def unload(self) -> None:
        """Unmap the file. Nothing of it may be in use."""
        _ctypes.dlclose(self._handle)
        _NAMES.give(self._name)
