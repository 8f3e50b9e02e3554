"""Operators that ONNX defines by others: the definition for a node's operands."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import onnx

from cuvilc.dialect.types import numpy_dtype

from .onnx_node import Node
from .onnx_sequences import SequenceVal
from .onnx_values import Val


def without_missing(proto: Any, scope: Container[str]) -> Any:
    """The node with inputs that the caller left out spelled as missing."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    del copy.input[:]
    copy.input.extend(name if name in scope else "" for name in proto.input)
    return copy


def function_body(schema: Any, node: Node) -> Any:
    """The FunctionProto for these operands, or None."""
    if schema.has_function:
        version = max((v for v in schema.function_opset_versions if v <= node.opset), default=None)
        text = None if version is None else schema.get_function_with_opset_version(version)
        if text:
            body = onnx.FunctionProto()
            body.ParseFromString(text)
            return body
    versions = schema.context_dependent_function_opset_versions
    version = max((v for v in versions if v <= node.opset), default=None)
    if version is None:
        return None
    types = [type_proto(v).SerializeToString() for v in node.inputs]
    text = schema.get_context_dependent_function_with_opset_version(
        version, _resolved(node).SerializeToString(), types
    )
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body


def _resolved(node: Node) -> Any:
    """The node with references to a calling function's attributes replaced by their values."""
    copy = type(node.proto)()
    copy.CopyFrom(node.proto)
    for a in list(copy.attribute):
        if a.ref_attr_name:
            copy.attribute.remove(a)
            value = node.attributes.get(a.name)
            if value is not None and not isinstance(value, np.ndarray):
                copy.attribute.append(onnx.helper.make_attribute(a.name, value))
    return copy


def type_proto(val: Val | None) -> Any:
    """The value's type for onnx's function builders."""
    t = onnx.TypeProto()
    if isinstance(val, SequenceVal):
        first = val.parts[0] if val.parts else None
        t.sequence_type.elem_type.CopyFrom(type_proto(first if isinstance(first, Val) else None))
    elif val is not None:
        dtype = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(val.dtype))
        shape = [d if isinstance(d, int) else None for d in val.shape]
        t = onnx.helper.make_tensor_type_proto(dtype, shape)
    return t
