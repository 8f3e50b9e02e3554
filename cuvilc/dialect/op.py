"""The one idiom of the dialect: an operation is a declaration with its facets.

    @op("ai.rms_norm")
    class RmsNorm:
        '''Scale each row to unit root mean square …'''
        x: Tensor               # operands: Tensor, `Tensor | None` (trailing), Tensors (variadic)
        weight: Tensor
        eps: float = 1e-6       # all else is an attribute: int float str bool, tuples, Dims

        def shape(x, weight, *, eps): …        # TensorTypes to TensorType (or a tuple); ShapeError
        def reference(x, weight, *, eps): …    # NumPy; floats arrive as float64, results are cast
        def element(k, i, x, weight, *, eps): …   # lowering facets in index notation, see below
        samples = (sample(…), …)               # cases that every test, fuzzer and target draws from

Lowering facets say what one output element is, in index notation; a target turns them into loops,
so an operation that has them runs on every target, fused or alone (`k` is targets/notation.py's
Notation):

    element(k, i, *operands, **attrs)         value at output index i (a tuple of expressions).
        An operand is an accessor: x[i0, i1] loads, x.at(i) loads with NumPy broadcasting, x.shape,
        x.dtype. Values add, subtract, multiply with operators; everything else through k (k.max,
        k.exp, k.select, k.const(1.0, x.dtype), …). An index out of range is never loaded:
        k.guard(condition, lambda: x[…], 0.0). What is used more than once gets a name by k.let;
        k.fold(extents, start, step) is a loop over a state.
    domain(k, *operands, **attrs)             extents of the reduction axes, and with it
    term(k, i, r, *operands, **attrs)         the term at output index i and reduction index r,
    combine = "sum"                           how terms fold: sum max min prod,
    finish(k, i, total, *operands, **attrs)   optional: what becomes of the total.

The decorator makes an MLIR operation of it (through MLIR's `ext` classes): variadic operands and
results, every attribute required, and a verifier that runs `shape` at parse and at verify.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import new_class
from typing import Any, ClassVar

from cuvilc._mlir import ext, ir, irdl, register_type_caster
from cuvilc.dialect.dims import Expr
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.types import TensorType

_OPERAND_KINDS = {"Tensor": "one", "Tensor | None": "optional", "Tensors": "many"}


class Tensor:
    """Annotation of an operand. Files that declare operations use `from __future__ import
    annotations`.
    """


class Tensors:
    """Annotation of a variadic operand, the last one."""


class ShapeError(ValueError):
    """An operation's operands or attributes do not fit; the message says which and how."""


@dataclass(frozen=True)
class Sample:
    """One test case: operand types (or arrays where values matter), attributes, value range."""

    operands: tuple[Any, ...]
    attrs: dict[str, Any]
    low: float = -2.0
    high: float = 2.0


def sample(*operands: Any, low: float = -2.0, high: float = 2.0, **attrs: Any) -> Sample:
    """`sample("float32[2,3]", np.array([1]), axis=1)`: a spelled operand is filled with random
    values in [low, high]; an array is passed as it is; None leaves out an optional operand.
    """
    return Sample(operands, attrs, low, high)


@dataclass(frozen=True)
class OpDef:
    """A declared operation."""

    name: str
    doc: str
    operands: tuple[tuple[str, str], ...]  # (name, "one" | "optional" | "many")
    attrs: dict[str, Any]  # name -> default; inspect.Parameter.empty: required
    shape: Callable[..., Any]
    reference: Callable[..., Any] | None
    facets: dict[str, Callable[..., Any]]
    samples: tuple[Sample, ...]
    pure: bool
    regions: int
    traits: frozenset[str] = field(default_factory=frozenset)
    results: int = 1  # -1: any number up to MANY_RESULTS
    combine: str = ""  # how `term` facets are folded: "sum", "max", "min", "prod"

    def facet(self, name: str) -> Callable[..., Any] | None:
        """A lowering facet such as `element` or `term`; None where the operation has none."""
        return self.facets.get(name)

    def group(self, values: Sequence[Any]) -> list[Any]:
        """Operands as facets take them: None for a missing optional, a tuple for a variadic."""
        grouped: list[Any] = []
        rest = list(values)
        for _, kind in self.operands:
            if kind == "many":
                grouped.append(tuple(rest))
                rest = []
            elif rest:
                grouped.append(rest.pop(0))
            elif kind == "optional":
                grouped.append(None)
            else:
                raise ShapeError(f"{self.name} takes more than {len(values)} operands")
        if rest:
            raise ShapeError(f"{self.name} takes {len(self.operands)} operands, not {len(values)}")
        return grouped

    def result_types(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> tuple[TensorType, ...]:
        """Run the shape rule. Raises ShapeError."""
        result = self.shape(*self.group(types), **attrs)
        return result if isinstance(result, tuple) else (result,)

    def complete(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """`attrs` with defaults filled in. ShapeError for unknown or missing ones."""
        unknown = attrs.keys() - self.attrs.keys()
        if unknown:
            raise ShapeError(f"{self.name} has no attribute {sorted(unknown)[0]!r}")
        full = {**self.attrs, **attrs}
        for name, value in full.items():
            if value is inspect.Parameter.empty:
                raise ShapeError(f"{self.name} needs attribute {name!r}")
        return full


MANY = 32  # most operands of an operation that takes any number
MANY_RESULTS = 16
OPS: dict[str, OpDef] = {}
_CLASSES: list[Any] = []


# mypy does not look into the bindings, whose __init_subclass__ takes the name.
class Ai(ext.Dialect, name="ai"):  # type: ignore[call-arg]
    """The dialect's MLIR class; operations join it through @op."""


class DimsAttr(Ai.Attribute, name="dims"):  # type: ignore[call-arg, name-defined]
    dims: ir.ArrayAttr


class LayoutAttr(Ai.Attribute, name="layout"):  # type: ignore[call-arg, name-defined]
    kind: ir.StringAttr
    dims: ir.ArrayAttr


def op(
    name: str, *, pure: bool = True, regions: int = 0, results: int = 1, traits: Sequence[str] = ()
) -> Callable[[type], OpDef]:
    """Declare operation `name`.

    results: their number; -1 for any number. traits: words that passes ask for: "elementwise"
    (element i depends on the operands' elements at i only), "injective" (has `element`),
    "costly" (an element takes much work: it is not computed twice), "rereads" (elements of operands
    are read for several of the result), "terminator", "free-types" (result types do not follow from
    a shape rule), "prepared" (of constants alone it is computed when a package is opened),
    "channels-given" (kernels are for any first two sizes of the operands).
    """

    def declare(cls: type) -> OpDef:
        operands, attrs = [], {}
        for key, annotation in cls.__dict__.get("__annotations__", {}).items():
            if not isinstance(annotation, str):
                raise TypeError(f"{name}: its file needs `from __future__ import annotations`")
            kind = _OPERAND_KINDS.get(annotation)
            if kind:
                operands.append((key, kind))
            else:
                default = cls.__dict__.get(key, inspect.Parameter.empty)
                # An attribute may be called `shape`, as the rule is: a function is no default.
                attrs[key] = inspect.Parameter.empty if inspect.isfunction(default) else default
        functions: dict[str, Any] = {k: v for k, v in cls.__dict__.items() if inspect.isfunction(v)}
        definition = OpDef(
            name, inspect.cleandoc(cls.__doc__ or ""), tuple(operands), attrs,
            functions.pop("shape"), functions.pop("reference", None), functions,
            tuple(cls.__dict__.get("samples", ())), pure, regions, frozenset(traits),
            results, cls.__dict__.get("combine", ""),
        )  # fmt: skip
        if name in OPS:
            raise ValueError(f"{name} is declared twice")
        OPS[name] = definition
        _CLASSES.append(_mlir_class(definition))
        return definition

    return declare


def _mlir_class(definition: OpDef) -> type:
    # MLIR's IRDL gives one constraint one type, so every operand and result is a group of its own.
    annotations: dict[str, Any] = {}
    for name, kind in definition.operands:
        if kind == "many":
            annotations |= {f"{name}{i}": ext.Operand[Any] | None for i in range(MANY)}
        else:
            annotations[name] = ext.Operand[Any] | None if kind == "optional" else ext.Operand[Any]
    annotations |= dict.fromkeys(definition.attrs, Any)
    if definition.results == 1:
        annotations["result"] = ext.Result[Any]
    else:
        groups = definition.results if definition.results >= 0 else MANY_RESULTS
        annotations |= {f"result{i}": ext.Result[Any] | None for i in range(groups)}
    annotations |= {f"region{i}": ext.Region for i in range(definition.regions)}

    def verify_invariants(self: Any) -> bool:
        return _verify(definition, self)

    def body(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = annotations
        namespace["verify_invariants"] = verify_invariants

    traits: list[type] = [ext.Pure] if definition.pure else []
    if "terminator" in definition.traits:
        traits.append(ir.IsTerminatorTrait)
    # A name with a second dot cannot be written in IRDL text; load() renames the symbol.
    spelled = definition.name.removeprefix("ai.").replace(".", "_dot_")
    return new_class(definition.name, (Ai.Operation,), {"name": spelled, "traits": traits}, body)


def _verify(definition: OpDef, view: Any) -> bool:
    """Whether the declaration accepts the operation. What it has accepted once it accepts again:
    its rules see types and attributes only, and passes leave most operations as they are.
    """
    operation, table = view.operation, current_types()
    operands, results = ([v.type for v in vs] for vs in (operation.operands, operation.results))
    key = (definition.name, *operands, None, *results, *operation.attributes.items())
    if key in table.accepted:
        return True
    try:
        types = [table.from_mlir(t) for t in operands]
        attrs = read_attrs(operation)
        missing = definition.attrs.keys() - attrs.keys()
        if missing:
            raise ShapeError(f"attribute {sorted(missing)[0]!r} is missing")
        attrs = {k: v for k, v in attrs.items() if k in definition.attrs}
        if definition.regions or definition.traits & {"terminator", "free-types"}:
            return True
        expected = definition.result_types(types, attrs)
        found = tuple(table.from_mlir(t) for t in results)
    except (ShapeError, ValueError, KeyError, TypeError) as error:
        operation.location.emit_error(f"{definition.name}: {error}")
        return False
    if expected != found:
        said, want = ", ".join(map(str, found)), ", ".join(map(str, expected))
        operation.location.emit_error(
            f"{definition.name}: result is {said}, its operands make it {want}"
        )
        return False
    table.accepted.add(key)
    return True


def write_attr(value: Any) -> ir.Attribute:
    """A Python attribute value as MLIR: int float bool str None, Dim, and tuples of them."""
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if value is None:
        return ir.UnitAttr.get()
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ShapeError(f"{value} has more than 64 bits")
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(), value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, Expr):
        return DimsAttr.get(ir.ArrayAttr.get([ir.StringAttr.get(str(value))]))
    if isinstance(value, (tuple, list)):
        return ir.ArrayAttr.get([write_attr(v) for v in value])
    raise TypeError(f"{value!r} cannot be an attribute")


def read_attr(attr: ir.Attribute) -> Any:
    """Inverse of write_attr."""
    match attr:
        case ir.BoolAttr():
            return attr.value
        case ir.IntegerAttr():
            return attr.value
        case ir.FloatAttr():
            return attr.value
        case ir.StringAttr():
            return attr.value
        case ir.ArrayAttr():
            return tuple(read_attr(a) for a in attr)
        case ir.UnitAttr():
            return None
    if isinstance(attr, DimsAttr):
        return parse(ir.StringAttr(next(iter(ir.ArrayAttr(attr.params[0])))).value)
    raise TypeError(f"attribute {attr} is not of the dialect")


def read_attrs(operation: ir.Operation) -> dict[str, Any]:
    """All attributes of an operation as Python values, less those that MLIR keeps for itself."""
    known, attrs = _State.tables[id(operation.context)].values, {}
    for name, attr in operation.attributes.items():
        if name not in RESERVED:
            if attr not in known:
                known[attr] = read_attr(attr)
            attrs[name] = known[attr]
    return attrs


SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
RESERVED = (*SEGMENTS, "function_type")


def segment_attrs(definition: OpDef, operands: int, results: int) -> dict[str, ir.Attribute]:
    """The sizes of operand and result groups that MLIR wants where more than one may be missing."""
    sizes = []
    for _, kind in definition.operands:
        sizes += ["?"] * MANY if kind == "many" else ["?" if kind == "optional" else "1"]
    attrs = {}
    if sizes.count("?") > 1:
        attrs[SEGMENTS[0]] = ir.DenseI32ArrayAttr.get(
            [int(i < operands) for i in range(len(sizes))]
        )
    if definition.results not in (0, 1):
        groups = definition.results if definition.results >= 0 else MANY_RESULTS
        attrs[SEGMENTS[1]] = ir.DenseI32ArrayAttr.get([int(i < results) for i in range(groups)])
    return attrs


class _State:
    """What belongs to the current MLIR context."""

    tables: ClassVar[dict[int, Any]] = {}


def current_types() -> Any:
    """The TypeTable of the current context."""
    return _State.tables[id(ir.Context.current)]


def register_types(context: ir.Context, table: Any) -> None:
    _State.tables[id(context)] = table


def forget_types(context_id: int) -> None:
    """Let go of a context's types; they hold the context, hence it by its id."""
    _State.tables.pop(context_id, None)


_module_text: str | None = None


def load_dialect() -> None:
    """Load `ai` with every declared operation into the current context."""
    global _module_text
    if _module_text is None:
        _module_text = str(Ai._emit_module())
    module = ir.Module.parse(_module_text)
    for operation in module.body.operations[0].regions[0].blocks[0].operations:
        spelled = ir.StringAttr(operation.attributes["sym_name"]).value
        if "_dot_" in spelled:
            name = spelled.replace("_dot_", ".")
            operation.attributes["sym_name"] = ir.StringAttr.get(name)
    irdl.load_dialects(module)
    for cls, definition in zip(_CLASSES, OPS.values(), strict=True):
        cls.OPERATION_NAME = definition.name
        cls._attach_traits()
    for attr in Ai.attributes:
        register_type_caster(ir.DynamicAttr.lookup_typeid(attr.attr_name), replace=True)(attr)


__all__ = ["MANY", "OPS", "OpDef", "Sample", "ShapeError", "Tensor", "Tensors", "op", "sample"]
