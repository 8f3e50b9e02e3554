"""The same cases run by onnxruntime, compared the same way: the column beside cuvilc's.

Its CPU provider with every optimisation that is on by default. Values pass as OrtValues where NumPy
has no dtype for them (bfloat16, float8, 4 and 2 bits): its own conversion would refuse them, though
its kernels may not.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.conformance.cases import onnx_cases

_T = onnx.TensorProto
_BITS = {
    _T.BFLOAT16: 16, _T.FLOAT8E4M3FN: 8, _T.FLOAT8E4M3FNUZ: 8, _T.FLOAT8E5M2: 8,
    _T.FLOAT8E5M2FNUZ: 8, _T.FLOAT8E8M0: 8, _T.INT4: 4, _T.UINT4: 4, _T.FLOAT4E2M1: 4, _T.INT2: 2,
    _T.UINT2: 2,
}  # fmt: skip


def run_case(case: Any) -> Any:
    """The outcome of a case. What onnxruntime will not load or run is a refusal."""
    ort.set_default_logger_severity(4)
    try:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for inputs, wanted in case.data:
            found = onnx_cases.tensors(_run(session, case.model, inputs))
            if wrong := onnx_cases.difference(case, found, wanted):
                return case.outcome("failed", wrong)
    except Exception as error:
        return case.outcome("refused", " ".join(str(error).split()))
    return case.outcome("passed")


def _run(session: Any, model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    names = [o.name for o in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()}
    feeds = {k: v for k, v in inputs.items() if k in wanted}
    elements = {
        i.name: i.type.tensor_type.elem_type for i in (*model.graph.input, *model.graph.output)
    }
    if not any(elements[n] in _BITS for n in (*names, *feeds)):
        return dict(zip(names, session.run(names, feeds), strict=True))
    outputs = session.run_with_ort_values(
        names, {k: _ort_value(v, elements[k]) for k, v in feeds.items()}
    )
    return {n: _array(v, elements[n]) for n, v in zip(names, outputs, strict=True)}


def _ort_value(value: Any, element: int) -> Any:
    if not isinstance(value, np.ndarray):  # its binding makes OrtValues of tensors alone
        raise TypeError(f"no OrtValue of a {type(value).__name__}")
    if element not in _BITS:
        return ort.OrtValue.ortvalue_from_numpy(value)
    raw = onnx.numpy_helper.from_array(value).raw_data  # packed as onnx packs them
    bits = np.zeros(value.shape, np.uint16 if _BITS[element] == 16 else np.uint8)
    bits.reshape(-1).view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, element)


def _array(value: Any, element: int) -> Any:
    if element not in _BITS:
        return value.numpy()
    shape = value.shape()
    count = math.ceil(math.prod(shape) * _BITS[element] / 8)
    raw = bytes((ctypes.c_uint8 * count).from_address(value.data_ptr())) if count else b""
    tensor = onnx.TensorProto(data_type=element, dims=shape, raw_data=raw)
    return onnx.numpy_helper.to_array(tensor)
