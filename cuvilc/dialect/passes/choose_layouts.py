"""Choose memory layouts: channel-blocked activations around convolutions, packed constant weights.

A blocked layout is given to every convolution and pool that a schedule can run blocked, and flows
through elementwise operations and channels that are joined at whole blocks; `ai.relayout` stands
where a value must change. Weights that a schedule reads in panels are only marked: the package
holds them packed, the IR's side table stays row-major.
"""

from __future__ import annotations

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Shape
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import join_at_blocks

NAME = "choose-layouts"
VERSION = 1

# Elements whose products one instruction adds, by operation; the dtype of its weights.
_DOTS = {
    "ai.matmul_integer": (4, "int8"), "ai.conv_integer": (4, "int8"),
    "ai.matmul_mixed": (2, "bfloat16"), "ai.conv_mixed": (2, "bfloat16"),
}  # fmt: skip

_FLOATS = ("float32", "float16", "bfloat16")
_POOLS = ("ai.max_pool", "ai.avg_pool")


def run(program: Program, context: PassContext) -> None:
    """After it, convolutions that fit work on blocked channels and constant matrices are packed."""
    with program:
        for function in program.functions():
            for block in ir.blocks(ir.body(function)):
                _Blocker(program, context, block).run()
            for operation in list(ir.walk(ir.body(function))):
                if operation.name in ("ai.matmul", "ai.lora_matmul"):
                    _pack_matrix(program, operation, context.panel)
                elif operation.name in _DOTS:
                    _pack_groups(program, operation, context.panel)
                elif operation.name == "ai.matmul_nbits":
                    _pack_numbers(program, operation, context.panel)
            if context.prefer != "speed":
                _share_tables(program, ir.body(function), f"pack0_{context.panel}")
            ir.drop_unused(ir.body(function))  # the row-major twins: a package holds each once


class _Blocker:
    """One block of code, in order: `blocked` maps a row-major value to its blocked twin."""

    def __init__(self, program: Program, context: PassContext, block: object) -> None:
        self.program = program
        self.context = context
        self.block = block
        self.blocked: dict[Value, Value] = {}

    def run(self) -> None:
        for operation in ir.operations(self.block):
            self.visit(operation)
        ir.drop_unused(self.block)

    def visit(self, operation: Operation) -> None:
        if self.is_blocked_conv(operation):
            if operation.name == "ai.conv_winograd":
                self.winograd(operation)
            else:
                self.conv(operation)
        elif operation.name in _POOLS and self.pool_fits(operation):
            self.became(operation, self.twin(operation))
        elif operation.name == "ai.reduce_mean" and self.is_global_pool(operation):
            result = self.twin(operation)
            if ir.type_of(result).layout:
                self.became(operation, result)
            else:
                ir.replace(operation, result)
        elif self.elementwise_fits(operation):
            self.enter_all(operation)
            self.became(operation, self.twin(operation))
        elif self.concat_fits(operation):
            self.became(operation, self.twin(operation))

    def twin(self, operation: Operation) -> Value:
        """The operation on its operands' blocked forms, where they have one."""
        operands = [self.blocked.get(v, v) for v in operation.operands]
        with ir.before(operation):
            return ir.build(operation.name, *operands, **ir.attrs(operation))

    def layout_of(self, rank: int) -> str:
        return {3: "NCW", 4: "NCHW", 5: "NCDHW"}[rank] + f"{self.context.channel_block}c"

    def became(self, operation: Operation, result: Value) -> None:
        """`result` is the operation's value in blocked layout; others still see it row-major."""
        with ir.after(operation):
            plain = ir.build("ai.relayout", result, layout="")
        original = operation.results[0]
        original.replace_all_uses_with(plain)
        ir.erase(operation)
        self.blocked[plain] = result

    def pool_fits(self, operation: Operation) -> bool:
        """Whether x is blocked, or had better be: windows over an edge have no other vectors."""
        x = operation.operands[0]
        if x in self.blocked:
            return True
        t, attrs = ir.type_of(x), ir.attrs(operation)
        channels = t.shape[1] if t.rank == 4 else None
        full = isinstance(channels, int) and channels >= self.context.channel_block
        if not full or t.dtype != "float32" or not any((*attrs["pads_begin"], *attrs["pads_end"])):
            return False
        with ir.before(operation):
            self.enter(x)
        return True

    def is_global_pool(self, operation: Operation) -> bool:
        x = operation.operands[0]
        return x in self.blocked and ir.attrs(operation)["axes"] == tuple(
            range(2, ir.type_of(x).rank)
        )

    # ---- convolutions

    def is_blocked_conv(self, operation: Operation) -> bool:
        """Whether it is a convolution that a schedule runs blocked, and does not yet."""
        if operation.name == "ai.conv_winograd":
            return not ir.type_of(operation.operands[1]).layout
        if operation.name == "ai.conv_integer":
            return self.integer_conv_fits(operation)
        return operation.name in ("ai.conv", "ai.conv_mixed") and self.conv_fits(operation)

    def conv_fits(self, operation: Operation) -> bool:
        """Constant float32 weights, two spatial axes, and channels that fill blocks."""
        x, w = (ir.type_of(v) for v in list(operation.operands)[:2])
        groups = ir.attrs(operation)["groups"]
        known = w.is_static and isinstance(x.shape[1], int)
        if x.rank != 4 or x.dtype != "float32" or not known:
            return False
        if self.program.weight_array(operation.operands[1]) is None:
            return False
        out, per_group = int(w.shape[0]), int(w.shape[1])  # type: ignore[arg-type]
        depthwise = per_group == 1 and groups == out
        return depthwise or self.context.fills_blocks(out, per_group, groups)

    def integer_conv_fits(self, operation: Operation) -> bool:
        """Constant weights, two spatial axes; plain sums whose groups fill blocks, or centred ones
        of each channel alone.
        """
        x, w = (ir.type_of(v) for v in list(operation.operands)[:2])
        attrs = ir.attrs(operation)
        if x.rank != 4 or not isinstance(x.shape[1], int) or not w.is_static:
            return False
        if self.program.constant_array(operation.operands[1]) is None:
            return False
        if attrs["centred"]:
            return w.shape[1] == 1 and 1 != attrs["groups"] == w.shape[0]
        if (x.dtype, w.dtype) != ("uint8", "int8"):
            return False
        out, per_group = int(w.shape[0]), int(w.shape[1])  # type: ignore[arg-type]
        if attrs["dilations"][1] != 1 and per_group % _DOTS[operation.name][0]:
            return False
        return self.context.fills_blocks(out, per_group, attrs["groups"])

    def conv(self, operation: Operation) -> None:
        x, w, *bias = operation.operands
        attrs = ir.attrs(operation)
        block = self.context.channel_block
        weights = ir.type_of(w)
        depthwise = attrs["groups"] > 1 and weights.shape[1] == 1
        channels = int(ir.type_of(x).shape[1])  # type: ignore[arg-type]
        with ir.before(operation):
            panel = block if depthwise else self.context.panel
            layout = f"pack0_{panel}"
            if operation.name in _DOTS and not depthwise:
                layout = f"dot0_{panel}x{_DOTS[operation.name][0]}"
            packed = relayout_constant(self.program, w, layout)
            if x in self.blocked:
                x = self.blocked[x]
            elif depthwise or channels >= block:
                x = self.enter(x)
            attrs["out_layout"] = self.layout_of(4)
            result = ir.build(operation.name, x, packed, *bias, **attrs)
        self.became(operation, result)

    def winograd(self, operation: Operation) -> None:
        """choose-convolutions has made sure of what conv_fits asks for."""
        x, u, *bias = operation.operands
        made = ir.defining(u)
        assert made is not None and made.name == "ai.winograd_weights"
        layout = f"pack0_{self.context.panel}"
        attrs = {**ir.attrs(operation), "out_layout": self.layout_of(4)}
        with ir.before(operation):
            packed = relayout_constant(self.program, made.operands[0], layout)
            weights = {**ir.attrs(made), "out_layout": layout}
            u = ir.build("ai.winograd_weights", packed, **weights)
            x = self.blocked[x] if x in self.blocked else self.enter(x)
            result = ir.build(operation.name, x, u, *bias, **attrs)
        self.became(operation, result)

    def enter(self, x: Value) -> Value:
        """A row-major value in blocked layout, converted once."""
        entered = ir.build("ai.relayout", x, layout=self.layout_of(ir.type_of(x).rank))
        self.blocked[x] = entered
        return entered

    # ---- what follows

    def elementwise_fits(self, operation: Operation) -> bool:
        """Every operand has a blocked form with the result's channels, or spreads, or may get one
        where a convolution that follows wants the result blocked.
        """
        declared = ir.definition(operation)
        if declared is None or "elementwise" not in declared.traits or len(operation.results) != 1:
            return False
        shape = ir.type_of(operation.results[0]).shape
        blocked = [v for v in operation.operands if v in self.blocked]
        if not blocked or any(ir.type_of(v).shape[:2] != shape[:2] for v in blocked):
            return False
        others = self.row_major(operation)
        if not others:
            return True
        return all(self.may_enter(v, shape) for v in others) and self.leads_to_conv(operation)

    def row_major(self, operation: Operation) -> list[Value]:
        """Operands that have no blocked form and need one."""
        return [v for v in operation.operands if v not in self.blocked and not self.spreads(v)]

    def enter_all(self, operation: Operation) -> None:
        """Every operand that needs a blocked form has one."""
        with ir.before(operation):
            for value in self.row_major(operation):
                self.enter(value)

    def may_enter(self, value: Value, shape: Shape) -> bool:
        """Whether it is of this shape, whose channels fill a block, and no constant."""
        owner, t = ir.defining(value), ir.type_of(value)
        if t.shape != shape or t.rank != 4 or (owner and owner.name in ir.CONSTANTS):
            return False
        return isinstance(shape[1], int) and shape[1] >= self.context.channel_block

    def leads_to_conv(self, operation: Operation, steps: int = 4) -> bool:
        """Whether a blocked convolution reads its result, or what a few elementwise operations make
        of it.
        """
        result = operation.results[0]
        for user in ir.users(result):
            if self.is_blocked_conv(user):
                if user.operands[0] == result:
                    return True
                continue
            declared = ir.definition(user)
            elementwise = declared and "elementwise" in declared.traits and len(user.results) == 1
            if elementwise and steps > 1 and self.leads_to_conv(user, steps - 1):
                return True
        return False

    def concat_fits(self, operation: Operation) -> bool:
        """Whether blocked channels are joined at whole blocks."""
        if operation.name != "ai.concat" or ir.attrs(operation)["axis"] != 1:
            return False
        if any(v not in self.blocked for v in operation.operands):
            return False
        channels = [ir.type_of(v).shape[1] for v in operation.operands]
        return join_at_blocks(channels, self.context.channel_block)

    def spreads(self, value: Value) -> bool:
        """A constant that varies at most along channels: any layout has their index."""
        owner = ir.defining(value)
        if owner is None or owner.name not in ir.CONSTANTS:
            return False
        shape = ir.type_of(value).shape
        return len(shape) <= 4 and all(d == 1 for i, d in enumerate(shape) if i != len(shape) - 3)


def relayout_constant(program: Program, value: Value, layout: str) -> Value:
    """A twin of a constant or parameter (or of an `ai.full`, made one) whose package form is
    `layout`.
    """
    owner = ir.defining(value)
    assert owner is not None
    if owner.name == "ai.full":
        array = np.ascontiguousarray(program.constant_array(value))
        owner = ir.defining(ir.constant(program, array, "fill"))
        assert owner is not None
    return ir.build(owner.name, **{**ir.attrs(owner), "layout": layout})


def _pack_matrix(program: Program, operation: Operation, panel: int) -> None:
    """Mark a constant right-hand matrix as packed in column panels."""
    b = operation.operands[1]
    owner, t = ir.defining(b), ir.type_of(b)
    if owner is None or owner.name not in ("ai.constant", "ai.parameter"):
        return
    if t.rank != 2 or t.dtype not in _FLOATS or t.layout:
        return
    axis = 0 if ir.attrs(operation)["transpose_b"] else 1
    with ir.before(operation):
        operation.operands[1] = relayout_constant(program, b, f"pack{axis}_{panel}")


def _share_tables(program: Program, body: object, layout: str) -> None:
    """Let tables of embeddings that a product reads too, as the head of most language models does,
    be gathered from its panels: a row is then 32 rows' lines, but the package holds it once.
    """
    operations = list(ir.walk(body))
    gathers = [o for o in operations if o.name == "ai.gather" and ir.attrs(o)["axis"] == 0]
    if not gathers:
        return
    owners = [owner for o in operations for v in o.operands if (owner := ir.defining(v))]
    held = [ir.attrs(owner) for owner in owners if owner.name == "ai.constant"]
    packed = {attrs["key"] for attrs in held if attrs["layout"] == layout}
    for operation in gathers:
        table = operation.operands[0]
        owner = ir.defining(table)
        if owner is None or owner.name != "ai.constant" or ir.type_of(table).rank != 2:
            continue
        attrs = ir.attrs(owner)
        if not attrs["layout"] and attrs["key"] in packed:
            with ir.before(operation):
                operation.operands[0] = relayout_constant(program, table, layout)


def _pack_numbers(program: Program, operation: Operation, panel: int) -> None:
    """Mark constant numbers of few bits, their scales and zero points as packed in panels."""
    held = list(operation.operands)[1:]
    owners = [ir.defining(v) for v in held]
    if all(o is not None and o.name in ir.CONSTANTS for o in owners):
        with ir.before(operation):
            for i, value in enumerate(held, 1):
                operation.operands[i] = relayout_constant(program, value, f"pack0_{panel}")


def _pack_groups(program: Program, operation: Operation, panel: int) -> None:
    """Mark a constant right-hand matrix as packed in groups and column panels."""
    b = operation.operands[1]
    owner, t = ir.defining(b), ir.type_of(b)
    stored = (*ir.CONSTANTS, "ai.parameter")
    if owner is None or owner.name not in stored or t.rank != 2 or t.layout:
        return
    group, dtype = _DOTS[operation.name]
    if t.dtype == dtype and len(operation.operands) == 2 and t.is_static:
        with ir.before(operation):
            operation.operands[1] = relayout_constant(program, b, f"dot1_{panel}x{group}")
