"""Goes through a model's nodes and builds `ai` operations: scopes, contents, errors by node."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cuvilc._mlir import ir as mlir
from cuvilc.diagnostics import CuvilError, Diagnostic
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Expr, equal, size, symbol, symbols
from cuvilc.dialect.interpret import Interpreter
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.ops.structure import MOST

from . import codes
from ._table import find
from .onnx_functions import function_body, without_missing
from .onnx_known import RULES, objects
from .onnx_model import (
    attribute_fault,
    describe,
    normal_domain,
    refusal,
    schema_function,
    sort,
)
from .onnx_node import Constrain, DataDependent, Node, UseDefinition, attribute_value, demand
from .onnx_origins import Origins
from .onnx_tensors import DTYPES, TensorReader
from .onnx_values import MAX_KNOWN, Unknown, Val, computed_points, is_computed, parts, symbolic

Scope = MutableMapping[str, "Val | None"]  # None: something before it failed, so this is not known
_FOLD_OPS = 256  # operations that folding a value on demand goes back through
_PREDICATES = {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not"}
_FAILED = object()
MOST_BOUND = 64  # elements of a tensor that are made sizes


class Converter:
    """One import of one model. `errors` collects; the program is only good when it stays empty."""

    def __init__(self, program: ir.Program, path: Path, reader: TensorReader) -> None:
        self.program, self.path, self.reader = program, path, reader
        self.origins = Origins(program)
        self.errors: list[Diagnostic] = []
        self.imported = 0
        self.depth = 0
        self.attempts = 0  # bodies of loops that were imported
        # (place, node) of a loop -> (carried value, axis) that are known to change
        self.moving: dict[tuple[str, str], set[tuple[int, int]]] = {}
        self.main: Any = None
        self.context: list[dict[str, Any]] = [{}]  # attributes that a function's body refers to
        self.reserved: set[str] = set()  # names of sizes that the model or the options use
        self.invented: set[str] = set()  # symbols that the model does not name itself
        self.below: dict[str, str] = {}  # what a number has above 0 -> what it has below
        self.assumed: dict[str, int] = {}  # If nodes decided by what follows -> their branch

    # Values.

    def value(self, val: Val) -> ir.Value:
        """The SSA value; contents become operations now, where every later user sees them."""
        if val.ssa is not None:
            return val.ssa
        with ExitStack() as stack:
            if self.depth:
                stack.enter_context(self._earliest(val))
            stack.enter_context(ir.named(val.key))
            built = val.materialise(self.program)
        val.keep(built)
        return built

    def _earliest(self, val: Val) -> Any:
        """Inside a region, contents are built where their sizes are bound, or before everything:
        the value may be used outside.
        """
        points = computed_points()
        flat = () if val.content is None else val.content.reshape(-1)
        used = {n for x in flat if symbolic(x) for d in parts(x) for n in symbols(d)}
        last = [name for name in points if name in used][-1:]
        return points[last[0]]() if last else mlir.InsertionPoint.at_block_begin(self.main)

    def new_size(self, range_: ir.Range, bound: Callable[[], Any]) -> str:
        """A symbol for a computed size; `bound()` is the insertion point from which on it holds."""
        number = 1
        while f"n{number}" in self.program.ranges or f"n{number}" in self.reserved:
            number += 1
        name = f"n{number}"
        self.program.ranges[name] = range_
        computed_points()[name] = bound
        return name

    def forget_sizes(self, kept: int, erased: set[str]) -> None:
        """Take back the computed symbols after the first `kept`: those of a region that is erased.

        What its operations bound outside it stays, as contents of the values around it.
        """
        points = computed_points()
        later = list(points)[kept:]
        bound = set() if erased.issuperset(later) else _bound_sizes(self.main)
        for name in later:
            if name not in bound:
                self.below.pop(name, None)
                del points[name], self.program.ranges[name]

    def bind(self, val: Val, signed: bool) -> np.ndarray | None:
        """Make sizes of a small integer tensor that the model computes; None if it is no such.

        They are read right after the value is made, so that all its users can use them. A symbol
        is never negative, so a number that may be is the difference of two; so are those of a value
        from outside the region: whether they may be negative is asked where they are used, since
        that may never run.
        """
        small = val.type.is_static and val.type.rank < 2 and size(val.shape) <= MOST_BOUND
        if val.ssa is None or not small or val.dtype not in ("int64", "int32"):
            return None
        owner = ir.defining(val.ssa)
        point = (
            mlir.InsertionPoint.at_block_begin(val.ssa.owner) if owner is None
            else mlir.InsertionPoint.after(owner)
        )  # fmt: skip
        outside = point.block != mlir.InsertionPoint.current.block
        shape = tuple(d for d in val.shape if isinstance(d, int))
        count = prod(shape)
        with point, ir.named(f"{val.key}.sizes"):
            values = val.ssa
            if val.dtype != "int64":
                values = ir.build("ai.cast", values, dtype="int64")
            if signed or outside:
                content = self._signed(values, count)
            else:
                content = [symbol(self.bind_element(values, i)) for i in range(count)]
        val.content = objects(shape, content)
        return val.content

    def _signed(self, values: ir.Value, count: int) -> list[Dim]:
        """Each element as what it has above 0 less what it has below."""
        zero, least = ir.full(0, (), "int64"), ir.full(-MOST, (), "int64")
        above = ir.build("ai.maximum", values, zero)
        negated = ir.build("ai.neg", ir.build("ai.maximum", values, least))
        below = ir.build("ai.maximum", negated, zero)
        found: list[Dim] = []
        for i in range(count):
            name = self.bind_element(above, i)
            self.below[name] = self.bind_element(below, i)
            found.append(symbol(name) - symbol(self.below[name]))
        return found

    def unsigned(self, d: Dim, what: str) -> Dim:
        """The size that a number of `_signed` is; the run is refused where it is negative."""
        for name in symbols(d):
            if name in self.below and d == symbol(name) - symbol(self.below[name]):
                demand(equal(symbol(self.below[name]), 0), f"{what} negative")
                return symbol(name)
        return d

    def bind_element(self, values: ir.Value, index: int, most: int | None = None) -> str:
        """A symbol for one element of an int64 vector, bound at the current insertion point.

        The run is refused unless it lies in 0..most.
        """
        bound: list[Any] = []
        name = self.new_size((0, most), lambda: mlir.InsertionPoint.after(bound[0]))
        bound.append(ir.create("ai.bind_size", values, symbol=name, index=index))
        return name

    def bind_dim(self, d: Dim) -> Dim:
        """A computed size as one symbol of its own, which must not be negative."""
        if not is_computed(d) or str(d).isidentifier():
            return d
        return symbol(self.bind_element(ir.build("ai.dim_values", values=(d,)), 0))

    def elements(self, val: Val) -> np.ndarray | None:
        """The content as an object array, constants folded on demand; None if not known."""
        if val.content is None:
            self.array(val)
        return val.elements()

    def array(self, val: Val) -> np.ndarray | None:
        """The typed array of a constant, also of a small one computed from constants."""
        small = val.type.is_static and size(val.shape) <= MAX_KNOWN
        if val.content is None and small:
            assert val.ssa is not None
            val.content = self._fold(val.ssa)
        return val.array

    def _fold(self, value: ir.Value) -> np.ndarray | None:
        """Compute `value` by the interpreter if it rests on constants alone."""
        needed: list[ir.Operation] = []
        seen: set[Any] = set()

        def visit(v: ir.Value) -> bool:
            owner = None if isinstance(v.owner, mlir.Block) else v.owner
            if owner is None or len(needed) > _FOLD_OPS:
                return False
            if owner in seen:
                return True
            seen.add(owner)
            if owner.name in ("ai.dim_values", "ai.if", "ai.loop") or not ir.type_of(v).is_static:
                return False
            if not all(visit(o) for o in owner.operands):
                return False
            needed.append(owner)
            return True

        if not visit(value):
            return None
        interpreter = Interpreter(self.program)
        for operation in needed:
            interpreter.step(operation)
        return interpreter.values[value]

    def unify(self, name: str, other: Dim) -> None:
        """Symbol `name` must equal `other`: start over with that, keeping the model's own names.

        Of computed sizes nothing can be learned: what they must be is asked while the model runs.
        """
        if is_computed(symbol(name), other):
            return
        if isinstance(other, Expr):
            if not str(other).isidentifier():
                return
            if name not in self.invented and str(other) in self.invented:
                raise Constrain(str(other), symbol(name))
        elif other < 0:
            return
        raise Constrain(name, other)

    def assume(self, label: str) -> int:
        """The branch of an If where only one makes a valid model; the first is tried first."""
        return self.assumed.setdefault(label, 0)

    # Nodes.

    def attributes(self, proto: Any) -> dict[str, Any]:
        """The node's attributes as Python values; a function's references are resolved."""
        found: dict[str, Any] = {}
        for a in proto.attribute:
            if a.ref_attr_name:
                if a.ref_attr_name in self.context[-1]:
                    found[a.name] = self.context[-1][a.ref_attr_name]
            else:
                found[a.name] = attribute_value(a, self.reader.read)
        return found

    def graph(
        self, graph: Any, scope: Scope, opsets: dict[str, int], place: str
    ) -> list[Val | None]:
        """Import a graph's nodes into `scope`, which holds its inputs and weights; its outputs."""
        for index, node in sort(graph, frozenset(scope), place):
            self.node(index, node, scope, opsets, place)
        return [scope.get(o.name) for o in graph.output]

    def inner(
        self, graph: Any, node: Node, inputs: dict[str, Val] | None = None
    ) -> list[Val | None]:
        """Import a graph inside a node: it sees the values around it, its own stay inside."""
        scope: Scope = ChainMap({**(inputs or {})}, node.scope)
        for tensor in graph.initializer:
            scope[tensor.name] = Val.constant(self.reader.read(tensor), tensor.name)
        return self.graph(graph, scope, node.opsets, f"{node.place}/{graph.name or node.label}")

    def place(self, graph: str) -> str:
        return f"{self.path}: graph `{graph}`"

    def node(
        self, index: int, proto: Any, scope: Scope, opsets: dict[str, int], place: str
    ) -> None:
        """Import one node: its outputs enter `scope`, or an error enters the list."""
        inputs = [scope[name] if name else None for name in proto.input]
        failed = any(name and scope[name] is None for name in proto.input)
        label = proto.name or f"{proto.op_type}_{index}"
        results: Any = _FAILED
        if not failed and refusal(proto, opsets, self.attributes) is None:
            opset = opsets.get(normal_domain(proto.domain), 1)
            node = Node(self, proto, inputs, opset, label, scope, opsets, place)
            results = self._guarded(node, index)
            self.origins.note(label, proto, inputs)
        for i, name in enumerate(proto.output):
            if name:
                scope[name] = None if results is _FAILED or i >= len(results) else results[i]

    def _guarded(self, node: Node, index: int) -> Sequence[Val | None] | Any:
        try:
            with ir.named(node.label):
                results = self._import(node)
            self.imported += 1
            return results
        except CuvilError as error:
            self.errors += error.diagnostics
            return _FAILED
        except DataDependent as reason:
            message = f"node `{node.label}` ({node.op}): {reason} not known at compile time"
            code = codes.DATA_DEPENDENT
        except (ShapeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            message = f"node `{node.label}` ({node.op}) does not fit its operands: {error}"
            code = codes.BAD_NODE
        self.errors.append(
            Diagnostic(
                code,
                message,
                place=f"{node.place}, {describe(index, node.proto)}",
                evidence=signature(node),
            )
        )
        return _FAILED

    def _import(self, node: Node) -> Sequence[Val | None]:
        fault = attribute_fault(node.proto, node.opset, node.attributes)
        if fault is not None:
            raise ShapeError(fault)
        known = self._evaluate(node)
        if known is not None:
            return known
        entry = find(normal_domain(node.domain), node.op, node.opset)
        if entry is None:
            return self._expand(node)
        try:
            results = entry.run(node)
        except UseDefinition:
            return self._expand(node)
        return [as_val(r) for r in (results if isinstance(results, (tuple, list)) else (results,))]

    def _evaluate(self, node: Node) -> list[Val | None] | None:
        """The outputs' contents by symbolic evaluation; None when they are not known."""
        rule = RULES.get(node.op) if normal_domain(node.domain) == "" else None
        if rule is None or not node.inputs or any(v is None for v in node.inputs[:1]):
            return None
        # Only what may be a computation with sizes: integers, or a few floats.
        if any(v is not None and v.content is None for v in node.inputs):
            return None
        contents = [None if v is None else v.elements() for v in node.inputs]
        if any(c is None and v is not None for c, v in zip(contents, node.inputs, strict=True)):
            return None
        try:
            found = rule(node, *[c for c in contents if c is not None])
        except Unknown:
            return None
        arrays = found if isinstance(found, tuple) else (found,)
        return [Val.known(np.asarray(a), self._known_dtype(node), node.label) for a in arrays]

    def _known_dtype(self, node: Node) -> str:
        if node.op in _PREDICATES:
            return "bool"
        if node.op == "NonZero":
            return "int64"
        if node.op == "Where":
            return node.type(1).dtype
        if node.op == "Cast":
            return DTYPES[node.attr("to")].name
        if node.op == "ConstantOfShape":
            value = node.attr("value")
            return "float32" if value is None else value.dtype.name
        return node.type(0).dtype

    def _expand(self, node: Node) -> list[Val | None]:
        """Import an operator by the definition that ONNX gives of it in terms of others."""
        schema = schema_function(normal_domain(node.domain), node.op, node.opset)
        body = function_body(schema, node) if schema else None
        if body is None:
            raise DataDependent("its definition by other operators is")
        scope: Scope = {
            name: node.val(i) for i, name in enumerate(body.input) if name and node.has(i)
        }
        defaults = {a.name: attribute_value(a, self.reader.read) for a in body.attribute_proto}
        for name, attribute in schema.attributes.items():
            if attribute.default_value.type:
                defaults.setdefault(
                    name, attribute_value(attribute.default_value, self.reader.read)
                )
        self.context.append(defaults | node.attributes)
        try:
            versions = node.opsets | {
                normal_domain(o.domain): int(o.version) for o in body.opset_import
            }
            for index, proto in enumerate(body.node):
                if any(name and name not in scope for name in proto.input):
                    proto = without_missing(proto, scope)
                if refusal(proto, versions, self.attributes):
                    raise ShapeError(f"it is defined by `{proto.op_type}`, which has no importer")
                with self.origins.inside(node.proto):
                    self.node(index, proto, scope, versions, f"{node.place}, inside `{node.label}`")
            return [scope.get(name) for name in body.output]
        finally:
            self.context.pop()


def _bound_sizes(block: Any) -> set[str]:
    """The symbols that every ai.bind_size under the block binds; loops in it may be unfinished."""
    found: set[str] = set()
    for operation in ir.operations(block):
        if operation.name == "ai.bind_size":
            found.add(ir.attrs(operation)["symbol"])
        for region in operation.regions:
            for inner in region.blocks:
                found |= _bound_sizes(inner)
    return found


def as_val(result: Any) -> Val | None:
    return result if result is None or isinstance(result, Val) else Val.of(result)


def signature(node: Node) -> str:
    """`%y = Op(%x: f32[1,3], %w: f32[8,3])`."""
    inputs = ", ".join(
        f"%{name}" if v is None else f"%{name}: {v.spelled}"
        for name, v in zip(node.proto.input, node.inputs, strict=True)
    )
    return f"{', '.join('%' + o for o in node.proto.output)} = {node.op}({inputs})"
