"""Runs through a built-in function that the library itself provides (runtime/src/python.c)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Structure, addressof, c_void_p, py_object, sizeof
from typing import Any

import numpy as np

from ._native import Library
from ._port import Port

# What the library calls, in its order: all of CPython's stable ABI.
_FUNCTIONS = (
    *("PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem"),
    *("PyLong_FromLongLong", "PyLong_AsVoidPtr", "PyObject_Type"),
    *("PyDict_Size", "PyDict_GetItemWithError", "PyDict_SetItem", "PyDict_New", "PyObject_Call"),
    *("PyObject_GetBuffer", "PyBuffer_Release", "PyErr_Occurred", "PyErr_Clear"),
    *("PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "Py_DecRef"),
)
_VIEW_BYTES = 80  # of a Py_buffer
_METH_FASTCALL = 0x80  # a built-in function of an array of arguments

Feeds = Mapping[str, Any]
Out = Mapping[str, np.ndarray] | None
Quick = Callable[[Feeds, Out], dict[str, np.ndarray] | int | None]


def never(feeds: Feeds, out: Out) -> None:
    """A quick run that leaves everything to the loader's own code."""


class _Call(Structure):
    """`python_call` of python.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("context", "dict_type", "array_type", "none")),
        *((name, POINTER(py_object)) for name in ("inputs", "outputs", "makers")),
        ("views", c_void_p),
    )


class _Method(Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _functions() -> ctypes.Array[c_void_p] | None:
    """Their addresses; None when this Python is not CPython with the GIL, which keeps the arrays of
    a dict alive while the library looks at them.
    """
    python = getattr(ctypes, "pythonapi", None)
    if python is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    found = [ctypes.cast(getattr(python, name), c_void_p) for name in _FUNCTIONS]
    return (c_void_p * len(found))(*found)


_TABLE = _functions()


def make(
    library: Library, context: c_void_p, inputs: Sequence[Port], outputs: Sequence[Port]
) -> Quick:
    """A run of the context, as `Context.run`.

    It answers None where it leaves the run to others: when an input is no C-contiguous array of its
    dtype, say, or the sizes do not fit. An int is the status of a run that failed.
    """
    table = _TABLE
    if table is None or not library.runs_quickly:
        return never
    if library.python_bind(addressof(table), sizeof(table)):
        return never
    for port in outputs:
        try:
            memoryview(np.empty(0, port.dtype))  # type: ignore[arg-type]  # before 3.12
        except (ValueError, BufferError):  # a dtype that buffers do not have, such as bfloat16
            return never
    objects: tuple[Sequence[Any], ...] = (
        [port.name for port in inputs],
        [port.name for port in outputs],
        [port.empty for port in outputs],
    )
    arrays = [(py_object * len(row))(*row) for row in objects]
    views = ctypes.create_string_buffer(_VIEW_BYTES * len(inputs))
    call = _Call(context.value, id(dict), id(np.ndarray), id(None), *arrays, addressof(views))
    function = ctypes.cast(library.python_run, c_void_p)
    method = _Method(b"run", function, _METH_FASTCALL, None)
    # CPython holds `self` until it has let go of the method that it lies in.
    state = addressof(call), call, views, method
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = py_object, (c_void_p, py_object, c_void_p)
    run: Quick = create(addressof(method), state, None)
    return run
