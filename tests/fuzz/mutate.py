"""Mutations of a model: of any field of its protobuf, of what the graph's rules rest on, of bytes.

Each takes the random generator and a ModelProto and changes it in place, or returns bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

Mutation = Callable[[Random, onnx.ModelProto], "bytes | None"]
INTEGERS = (0, 1, -1, 2, 3, 7, 127, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
REALS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", " ", "x", "y", "\0", "nul\0l", "é", "../../x", "a" * 5000, "%s%n", "-1", "batch", "🙂")
PATHS = ("data.bin", "../data.bin", "/etc/passwd", "a/../../b", ".", "..", "", "link.bin", "\0",
         "x" * 4000, "sub/none.bin", "C:\\x", "//data.bin")  # fmt: skip


def messages(message: Any) -> Iterator[Any]:
    """The message and every message inside it. A stack, since models nest deeply."""
    left = [message]
    while left:
        found = left.pop()
        yield found
        for field, value in found.ListFields():
            if field.type == field.TYPE_MESSAGE:
                left.extend(value if _repeated(field) else [value])


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def any_field(random: Random, model: onnx.ModelProto) -> None:
    """Any field of any message: another value, another length, gone, or copied from elsewhere."""
    everything = list(messages(model))
    target = random.choice(everything)
    fields = [f for f, _ in target.ListFields()] or list(target.DESCRIPTOR.fields)
    if random.random() < 0.2:
        fields = list(target.DESCRIPTOR.fields)
    field = random.choice(fields)
    if _repeated(field):
        _repeated_field(random, everything, target, field)
    elif field.type == field.TYPE_MESSAGE:
        twins = [m for m in everything if field.message_type == m.DESCRIPTOR]
        if twins and random.random() < 0.7:
            source = type(twins[0])()
            source.CopyFrom(random.choice(twins))
            getattr(target, field.name).CopyFrom(source)
        else:
            target.ClearField(field.name)
    elif random.random() < 0.15:
        target.ClearField(field.name)
    else:
        setattr(target, field.name, _scalar(random, model, field))


def _repeated_field(random: Random, everything: list[Any], target: Any, field: Any) -> None:
    values = getattr(target, field.name)
    kind = random.randrange(5)
    if field.type == field.TYPE_MESSAGE:
        twins = [m for m in everything if field.message_type == m.DESCRIPTOR]
        if kind < 2 and len(values):
            del values[random.randrange(len(values))]
        elif kind == 2 and twins:
            source = type(twins[0])()
            source.CopyFrom(random.choice(twins))
            values.add().CopyFrom(source)
        elif len(values) > 1:
            a, b = random.sample(range(len(values)), 2)
            one = type(values[a])()
            one.CopyFrom(values[a])
            values[a].CopyFrom(values[b])
            values[b].CopyFrom(one)
    elif kind == 0 and len(values):
        del values[random.randrange(len(values))]
    elif kind == 1 or not len(values):
        values.append(_scalar(random, everything[0], field))
    elif kind == 2:
        del values[:]
    else:
        values[random.randrange(len(values))] = _scalar(random, everything[0], field)


def _scalar(random: Random, model: onnx.ModelProto, field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        names = [o for n in model.graph.node for o in (*n.input, *n.output)] if model else []
        return random.choice([*TEXTS, *names])
    if field.type == field.TYPE_BYTES:
        return random.choice((b"", b"\xff\xfe", bytes(random.randrange(1, 64)), b"nearest"))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return random.choice(REALS)
    if field.type == field.TYPE_ENUM:
        return random.choice([v.number for v in field.enum_type.values])
    value = random.choice((*INTEGERS, random.randrange(-9, 99)))
    if field.type == field.TYPE_UINT64:
        return value % 2**64
    return value if field.type != field.TYPE_INT32 else max(min(value, 2**31 - 1), -(2**31))


def _graphs(model: onnx.ModelProto) -> list[Any]:
    return [m for m in messages(model) if m.DESCRIPTOR.name == "GraphProto" and len(m.node)]


def dangling_name(random: Random, model: onnx.ModelProto) -> None:
    for graph in _graphs(model)[:1]:
        node = random.choice(graph.node)
        if len(node.input):
            node.input[random.randrange(len(node.input))] = "nobody makes this"


def cycle(random: Random, model: onnx.ModelProto) -> None:
    for graph in random.sample(_graphs(model), min(1, len(_graphs(model)))):
        early, late = random.choice(graph.node), random.choice(graph.node)
        if len(early.input) and len(late.output):
            early.input[random.randrange(len(early.input))] = random.choice(late.output)


def same_name_twice(random: Random, model: onnx.ModelProto) -> None:
    for graph in _graphs(model)[:1]:
        names = [i.name for i in graph.input] + [t.name for t in graph.initializer]
        names += [o for n in graph.node for o in n.output]
        node = random.choice(graph.node)
        if len(node.output) and names:
            node.output[random.randrange(len(node.output))] = random.choice(names)


def huge_sizes(random: Random, model: onnx.ModelProto) -> None:
    """Sizes that overflow, alone or multiplied, of a weight or of a declared shape."""
    shapes = [m for m in messages(model) if m.DESCRIPTOR.name in ("TensorProto", "Dimension")]
    if not shapes:
        return
    target = random.choice(shapes)
    size = random.choice((2**20, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -1, 0))
    if target.DESCRIPTOR.name == "Dimension":
        target.dim_value = size
    elif len(target.dims):
        target.dims[random.randrange(len(target.dims))] = size
    else:
        target.dims.extend([size, size])


def contents(random: Random, model: onnx.ModelProto) -> None:
    """Other numbers in a small constant: axes, shapes, repeats, pads, indices, limits."""
    tensors = [m for m in messages(model) if m.DESCRIPTOR.name == "TensorProto"]
    random.shuffle(tensors)
    for tensor in tensors:
        try:
            array = np.array(numpy_helper.to_array(tensor))
        except Exception:  # it was damaged before
            continue
        if array.size == 0 or array.size > 64 or array.dtype.kind not in "iuf":
            continue
        flat = array.reshape(-1)
        value = random.choice(REALS if array.dtype.kind == "f" else INTEGERS)
        with np.errstate(all="ignore"):
            flat[random.randrange(flat.size)] = np.array(value).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return


def constant_input(random: Random, model: onnx.ModelProto) -> None:
    """An input becomes a constant with numbers that nobody foresaw."""
    if not len(model.graph.input):
        return
    info = random.choice(model.graph.input)
    shape = [min(max(d.dim_value, 0), 8) for d in info.type.tensor_type.shape.dim]
    try:
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        values = [random.choice(INTEGERS) for _ in range(int(np.prod(shape)))]
        with np.errstate(all="ignore"):
            array = np.array(values, np.float64).astype(dtype).reshape(shape)
        tensor = numpy_helper.from_array(array, info.name)
    except Exception:  # strings and the like
        return
    model.graph.input.remove(info)
    model.graph.initializer.append(tensor)


def external_data(random: Random, model: onnx.ModelProto) -> None:
    tensors = [m for m in messages(model) if m.DESCRIPTOR.name == "TensorProto"]
    if not tensors:
        return
    tensor = random.choice(tensors)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    numbers = ("0", "4", "-4", "x", "", str(2**63), "9" * 30, "1e3", "0x10", " 8", "٣")
    for key, values in (("location", PATHS), ("offset", numbers), ("length", numbers)):
        if random.random() < 0.8:
            tensor.external_data.add(key=key, value=random.choice(values))


def other_operator(random: Random, model: onnx.ModelProto) -> None:
    """A node of another operator with the same operands."""
    for graph in random.sample(_graphs(model), min(1, len(_graphs(model)))):
        schema = random.choice(_schemas())
        node = random.choice(graph.node)
        node.op_type, node.domain = schema.name, schema.domain


def operands(random: Random, model: onnx.ModelProto) -> None:
    """Too few operands, too many, in another order, left out, or more results."""
    for graph in random.sample(_graphs(model), min(1, len(_graphs(model)))):
        node = random.choice(graph.node)
        names = [o for n in graph.node for o in n.output] + [i.name for i in graph.input] + [""]
        kind = random.randrange(4)
        if kind == 0 and len(node.input):
            del node.input[random.randrange(len(node.input)) :]
        elif kind == 1:
            node.input.extend(random.choice(names) for _ in range(random.randrange(1, 9)))
        elif kind == 2 and len(node.input):
            node.input[random.randrange(len(node.input))] = random.choice(names)
        else:
            node.output.append(f"more{len(node.output)}")


def attribute(random: Random, model: onnx.ModelProto) -> None:
    """An attribute that the operator has, of another type, length or value."""
    for graph in random.sample(_graphs(model), min(1, len(_graphs(model)))):
        node = random.choice(graph.node)
        found = [s for s in _schemas() if s.name == node.op_type and s.domain == node.domain]
        names = [*found[-1].attributes] if found else []
        name = random.choice([*names, "axis", "unknown"])
        value = random.choice((
            random.choice(INTEGERS), random.choice(REALS), random.choice(TEXTS), [], [1.5],
            [random.choice(INTEGERS) for _ in range(random.randrange(1, 6))], [2] * 500,
        ))  # fmt: skip
        for a in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(a)
        kinds = {"attr_type": onnx.AttributeProto.INTS} if value == [] else {}
        node.attribute.append(helper.make_attribute(name, value, **kinds))


_SCHEMAS: list[Any] = []


def _schemas() -> list[Any]:
    if not _SCHEMAS:
        _SCHEMAS.extend(defs.get_all_schemas())
    return _SCHEMAS


def flipped_bytes(random: Random, model: onnx.ModelProto) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(random.randrange(1, 9)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)


def cut(random: Random, model: onnx.ModelProto) -> bytes:
    data = model.SerializeToString()
    return data[: random.randrange(len(data))]


def spliced(random: Random, model: onnx.ModelProto) -> bytes:
    """A stretch of bytes taken out, doubled or put elsewhere."""
    data = model.SerializeToString()
    a, b, c = sorted(random.randrange(len(data) + 1) for _ in range(3))
    return random.choice(
        (data[:a] + data[b:], data[:b] + data[a:], data[:a] + data[b:c] + data[a:])
    )


MUTATIONS: tuple[Mutation, ...] = (
    any_field, any_field, any_field, any_field, dangling_name, cycle, same_name_twice, huge_sizes,
    contents, contents, constant_input, external_data, other_operator, operands, operands,
    attribute, attribute, flipped_bytes, cut, spliced,
)  # fmt: skip


def mutated(random: Random, model: onnx.ModelProto) -> bytes:
    """The model's bytes after one to three mutations."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        found = random.choice(MUTATIONS)(random, model)
        if found is not None:
            return found
    return model.SerializeToString()
