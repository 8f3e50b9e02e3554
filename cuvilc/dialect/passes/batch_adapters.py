"""`--lora batch`: what computes with batched parameters becomes what has an adapter for each row.

What the operations read of the adapters comes in as inputs of `main` that the runtime sets itself
(`hidden_inputs` says how many, the last ones): the slot of each part of the batch, a line as long
as the greatest rank of the run, the pool, and a table for each parameter in their order.
"""

from __future__ import annotations

from typing import Any

from cuvilc.diagnostics import fail
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, mod, product, symbol
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.lora_codes import NO_PLACE
from cuvilc.dialect.op import current_types, write_attr
from cuvilc.dialect.ops.lora_batch import COLUMNS
from cuvilc.dialect.passes.batch_rows import turned
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType

NAME = "batch-adapters"
VERSION = 1

RANK, POOL = "lora_rank_", "lora_pool_"  # symbols
SLOTS = 4096  # adapters at once, and the slot of none
# Of an operand of the result's shape these keep the axes where they are.
_PASSING = frozenset(
    f"ai.{name}"
    for name in (
        "elemwise_add", "elemwise_mul", "elemwise_sub", "relu", "gelu", "silu", "layer_norm",
        "rms_norm", "tanh", "cast", "lora_add", "lora_gather",
    )
)  # fmt: skip


def run(program: Program, context: PassContext) -> None:
    """After it, all results of batched parameters are `ai.lora_…`'s. CUV743."""
    with program:
        main = program.function("main")
        operations = list(ir.walk(ir.body(main)))
        weights = [o for o in operations if o.name == "ai.parameter" and ir.attrs(o)["batched"]]
        if not weights or "hidden_inputs" in main.attributes:
            return
        for weight in weights:
            for reader, place in ir.uses(weight.results[0]):
                _straighten(reader, place)
        hidden = _Hidden(program, main, weights)
        for number, weight in enumerate(weights):
            weight.attributes["table"] = write_attr(number)
            _, parameter, kind, *_ = ir.attrs(weight)["parts"][0]
            adapt = _add if parameter == "bias" else _gather if kind == "embedding" else _multiply
            for use in list(weight.results[0].uses):
                adapt(program, use.owner.operation, use.operand_number, hidden, number)
                context.apply(NAME)


class _Hidden:
    """The inputs of `main` that the runtime sets."""

    def __init__(self, program: Program, main: Operation, weights: list[Operation]) -> None:
        block, attrs = ir.body(main), ir.attrs(main)
        shape = ir.type_of(block.arguments[0]).shape if len(block.arguments) else ()
        if not shape:
            raise _no_place(program, "the first input has no axis that could be the batch")
        self.batch: Dim = shape[0]
        self.turned = turned(program, block, self.batch)
        types = {
            "lora slots": TensorType((self.batch,), "int64"),
            "lora rank": TensorType((symbol(RANK),), "uint8"),
            "lora pool": TensorType((symbol(POOL),), "float32"),
        }
        for i, weight in enumerate(weights):
            changes = len(ir.attrs(weight)["parts"])
            types[f"lora table {i}"] = TensorType((changes, SLOTS, COLUMNS), "int64")
        made = [
            block.add_argument(current_types().to_mlir(t), main.location) for t in types.values()
        ]
        self.slots, _, self.pool, *self.tables = made
        main.attributes["input_names"] = write_attr((*attrs["input_names"], *types))
        main.attributes["hidden_inputs"] = write_attr(len(types))
        program.ranges[RANK] = (0, None)
        program.ranges[POOL] = (0, None)
        ir.retype_function(main)


def _straighten(use: Operation, place: int) -> None:
    """A product of a transposed operand with a weight reads its transpose: rows have adapters."""
    if use.name != "ai.matmul" or place != 1 or not ir.attrs(use)["transpose_a"]:
        return
    x, w = use.operands
    axes = range(ir.type_of(x).rank)
    with ir.before(use):
        turned = ir.build("ai.transpose", x, perm=(*axes[:-2], axes[-1], axes[-2]))
        y = ir.build("ai.matmul", turned, w, transpose_b=ir.attrs(use)["transpose_b"])
    ir.replace(use, y)


def _multiply(program: Program, use: Operation, place: int, hidden: _Hidden, number: int) -> None:
    """A product with the weight becomes one whose rows have adapters."""
    attrs = {"transpose_b": False, **ir.attrs(use)}
    weight = ir.defining(use.operands[place])
    assert weight is not None
    outputs = 0 if attrs["transpose_b"] else 1
    if use.name != "ai.matmul" or place != 1:
        raise _no_place(program, f"{use.name} reads a weight that adapters change", use)
    if ir.attrs(weight)["out_axis"] != outputs or ir.type_of(use.operands[1]).rank != 2:
        raise _no_place(program, "the outputs of the weight are not those of the product", use)
    x, w = use.operands
    _check_rows(program, use, x, hidden)
    held = (hidden.slots, hidden.tables[number], hidden.pool)
    with ir.before(use):
        t = ir.build("ai.lora_shrink", x, *held, rank=symbol(RANK))
        y = ir.build("ai.lora_matmul", x, w, t, *held, transpose_b=attrs["transpose_b"])
    ir.replace(use, y)


def _gather(program: Program, use: Operation, place: int, hidden: _Hidden, number: int) -> None:
    """What is looked up in an embedding table gets the adapters' part."""
    if use.name != "ai.gather" or place != 0 or ir.attrs(use)["axis"] != 0:
        raise _no_place(program, f"{use.name} reads a table that adapters change", use)
    size = ir.type_of(use.operands[0]).static_shape[0]
    ids = use.operands[1]
    _add_to_result(program, use, hidden, number, "ai.lora_gather", [ids], size=size)


def _add(program: Program, use: Operation, place: int, hidden: _Hidden, number: int) -> None:
    """A bias stays a constant; the adapters' is added to what it was added to."""
    bias, result = use.operands[place], ir.type_of(use.results[0])
    axis = {("ai.conv", 2): 1, ("ai.layer_norm", 2): result.rank - 1}.get((use.name, place), 0)
    sizes = ir.type_of(bias).static_shape
    if use.name == "ai.elemwise_add":
        wide = [result.rank - len(sizes) + i for i, d in enumerate(sizes) if d != 1]
        axis = wide[0] if len(wide) == 1 else 0
    if axis == 0 or result.shape[axis] != max(sizes):
        raise _no_place(program, f"{use.name} reads a bias that adapters change", use)
    owner = ir.defining(bias)
    assert owner is not None
    attrs = ir.attrs(owner)
    held = {name: attrs[name] for name in ("key", "fingerprint", "shape", "dtype", "layout")}
    with ir.before(use):
        use.operands[place] = ir.build("ai.constant", **held)
    _add_to_result(program, use, hidden, number, "ai.lora_add", [bias], axis=axis)


def _add_to_result(
    program: Program, use: Operation, hidden: _Hidden, number: int, name: str,
    operands: list[Value], **attributes: Any,
) -> None:  # fmt: skip
    """Whoever reads the result of `use` reads what `name` makes of it instead."""
    y = use.results[0]
    _check_rows(program, use, y, hidden)
    readers = ir.uses(y)
    with ir.after(use):
        held = (hidden.slots, hidden.tables[number], hidden.pool)
        made = ir.build(name, y, *operands, *held, **attributes)
    for reader, place in readers:
        reader.operands[place] = made


def _check_rows(program: Program, use: Operation, x: Value, hidden: _Hidden) -> None:
    t = ir.type_of(x)
    if t.dtype != "float32":
        what = "product" if use.name == "ai.matmul" else "result"
        raise _no_place(program, f"the {what} is of {t.dtype}", use)
    are, since = (False, hidden.turned[x]) if x in hidden.turned else _is_batch(x, hidden.batch)
    if not are:
        why = f"the rows of {t} are not those of the batch"
        ways = "`--lora swap` and `--lora fold` are"
        if since is not None and since != use:
            name = ir.source_name(since)
            why += f" after `{name}` ({since.name})" if name else f" after `{since.name}`"
            ways += "; so is `batch` where that operation leaves axis 0, and its order, as it is"
        if isinstance(hidden.batch, int):
            ways += f"; or export the model with an open batch axis, which is {hidden.batch} now"
        raise _no_place(program, why, use, ways)


def _is_batch(x: Value, batch: Dim) -> tuple[bool, Operation | None]:
    """Whether x's rows, flattened, are `batch` equal parts: its first axis is the batch, or is what
    a reshape made of the batch and axes that followed it. Else, where it is known, since when not.
    """
    t = ir.type_of(x)
    if t.rank < 2:
        return False, ir.defining(x)
    value = x
    while batch != 1 and ir.type_of(value).shape[:1] != (batch,):
        owner, shape = ir.defining(value), ir.type_of(value).shape
        if owner is None:
            return False, None
        if owner.name != "ai.reshape":  # of a sum or a scaling, the operand of that shape
            alike = [v for v in owner.operands if ir.type_of(v).shape == shape]
            if not alike or owner.name not in _PASSING:
                return False, owner
            value = alike[0]
        else:
            value = owner.operands[0]
    return mod(product(t.shape[:-1]), batch) == 0, ir.defining(x)


def _no_place(
    program: Program, why: str, layer: Operation | None = None,
    ways: str = "`--lora swap` and `--lora fold` are",
) -> Exception:  # fmt: skip
    named = f": `{ir.source_name(layer)}`" if layer is not None else ""
    message = f"`--lora batch` is not possible here: {why}"
    return fail(NO_PLACE, message, place=f"{program.name}{named}", help=ways)
