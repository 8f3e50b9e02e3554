"""Programs and how passes read and change them: thin, safe functions over MLIR's Python objects.

A pass works inside `with program:` (context and location are then current) and uses `build`,
`replace` and `erase`, which refuse what would abort the process (erasing a used operation,
replacing by another type).
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from cuvilc._mlir import func, ir
from cuvilc.dialect import op as declarations
from cuvilc.dialect.dims import Dim, Expr, symbols, symbols_of
from cuvilc.dialect.narrow import NARROW_FLOATS
from cuvilc.dialect.op import OPS, OpDef, read_attrs, segment_attrs, write_attr
from cuvilc.dialect.types import FLOATS, TensorType, TypeTable, dtype_name, numpy_dtype

Operation: TypeAlias = ir.Operation
Value: TypeAlias = ir.Value
Range = tuple[int, int | None]
Use = tuple[Operation, int]  # an operation that reads a value, and as which operand
CONSTANTS = ("ai.constant", "ai.full")  # known when a program is built
VIEWS = ("ai.reshape", "ai.bitcast")  # bare, they share their operand's memory


@dataclass
class Program:
    """A model at any level: MLIR module, weights beside it, ranges of its symbols.

    `main`'s inputs and outputs are named by its attributes `input_names` and `output_names`.
    `weights` maps the key of each `ai.constant` and `ai.parameter` to an array, often a read-only
    memmap.
    """

    name: str
    module: ir.Module
    context: ir.Context
    weights: MutableMapping[str, np.ndarray] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)  # format, sha256, opset, …: for metadata
    digest: Future[str] | None = None  # SHA-256 of the source while it is still being computed
    # Weights, by key and layout, that are being packed ahead of need.
    packing: dict[tuple[str, str], Future[np.ndarray]] = field(default_factory=dict)
    # Where an importer knows it, for adapters: name of a node -> path of the module it is of, and
    # name of a node -> the names under which it reads weights -> the keys of their constants.
    scopes: dict[str, str] = field(default_factory=dict)
    reads: dict[str, dict[str, str]] = field(default_factory=dict)
    _stack: list[ExitStack] = field(default_factory=list)

    def __post_init__(self) -> None:
        weakref.finalize(self, declarations.forget_types, id(self.context))

    @staticmethod
    def create(name: str) -> Program:
        """An empty module in a context of its own."""
        context = new_context()
        with context, ir.Location.unknown():
            return Program(name, ir.Module.create(), context)

    @staticmethod
    def parse(text: str, weights: MutableMapping[str, np.ndarray] | None = None) -> Program:
        """Read what `text` prints. Raises MLIRError with the verifier's words."""
        context = new_context()
        with context, ir.Location.unknown():
            program = Program(
                "parsed", ir.Module.parse(text), context, weights if weights is not None else {}
            )
            main = program.function("main")
            for spelled in read_attrs(main).get("ranges", ()):
                name, lo, hi = spelled.split(":")
                program.ranges[name] = (int(lo), int(hi) if hi else None)
            return program

    def text(self) -> str:
        with self:
            write_ranges(self)
            return str(self.module)

    def verify(self) -> None:
        """Run every verifier. Raises MLIRError."""
        with self:
            self.module.operation.verify()

    def __enter__(self) -> Program:
        stack = ExitStack()
        stack.enter_context(self.context)
        stack.enter_context(ir.Location.unknown())
        self._stack.append(stack)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.pop().close()

    def functions(self) -> list[Operation]:
        return [o.operation for o in self.module.body.operations if o.operation.name == "func.func"]

    def kernels(self) -> list[Operation]:
        """The functions that outline-kernels made."""
        return [f for f in self.functions() if "symbols" in f.attributes]

    def function(self, name: str) -> Operation:
        for f in self.functions():
            if ir.StringAttr(f.attributes["sym_name"]).value == name:
                return f
        raise KeyError(name)

    def constant_array(self, value: Value) -> np.ndarray | None:
        """The array of an `ai.constant` or a static `ai.full`, not to be written to; else None."""
        owner = defining(value)
        if owner is None:
            return None
        if owner.name == "ai.constant":
            return self.weights[read_attrs(owner)["key"]]
        if owner.name == "ai.full" and type_of(value).is_static:
            t = type_of(value)
            filling = np.asarray(read_attrs(owner)["value"], numpy_dtype(t.dtype))
            return np.broadcast_to(filling, [d for d in t.shape if isinstance(d, int)])
        return None

    def weight_array(self, value: Value) -> np.ndarray | None:
        """As constant_array; also of an `ai.parameter`, whose values may be packed, not used."""
        owner = defining(value)
        if owner is not None and owner.name == "ai.parameter":
            return self.weights[read_attrs(owner)["key"]]
        return self.constant_array(value)


def new_context() -> ir.Context:
    """A context with the `ai` dialect, `func`, and none of MLIR's that no program uses."""
    import cuvilc.dialect.ops  # noqa: F401, PLC0415  (declares every operation)

    context = ir.Context(load_on_create_dialects=["func", "irdl"])
    with context, ir.Location.unknown():
        declarations.register_types(context, TypeTable())
        declarations.load_dialect()
    return context


def write_ranges(program: Program) -> None:
    """Keep the symbols' ranges in the text, as an attribute of main."""
    spelled = tuple(
        f"{n}:{lo}:{'' if hi is None else hi}" for n, (lo, hi) in sorted(program.ranges.items())
    )
    program.function("main").attributes["ranges"] = write_attr(spelled)


def text_of(operation: Operation) -> str:
    """The operation's own text. (`str` would verify it and number all values of the module.)"""
    return str(operation.get_asm(assume_verified=True, use_local_scope=True))


def define_function(
    program: Program, name: str, inputs: Sequence[TensorType], **attrs: Any
) -> ir.Block:
    """Append `func.func @name`, which finish_function completes; returns its entry block."""
    types = declarations.current_types()
    with ir.InsertionPoint(program.module.body):
        f = func.FuncOp(name, ir.FunctionType.get([types.to_mlir(t) for t in inputs], []))
        for key, value in attrs.items():
            f.operation.attributes[key] = write_attr(value)
        return f.add_entry_block()


def finish_function(block: ir.Block, results: Sequence[Value]) -> None:
    """Write the return and set the function's type from it."""
    with ir.InsertionPoint(block):
        func.ReturnOp(list(results))
    retype_function(block.owner.operation)


def retype_function(function: Operation) -> None:
    """Make the function's type agree with its block arguments and its return."""
    block = body(function)
    results = [v.type for v in terminator(block).operands]
    t = ir.FunctionType.get([a.type for a in block.arguments], results)
    function.attributes["function_type"] = ir.TypeAttr.get(t)


def body(owner: Operation, region: int = 0) -> ir.Block:
    """The only block of an operation's region."""
    return owner.regions[region].blocks[0]


def operations(block: ir.Block) -> list[Operation]:
    """The block's operations as a list, safe to change the block while going through it."""
    return [o.operation for o in block.operations]


def terminator(block: ir.Block) -> Operation:
    return block.operations[len(block.operations) - 1].operation


def walk(block: ir.Block) -> Iterator[Operation]:
    """Every operation under the block, outer before inner."""
    for o in operations(block):
        yield o
        for region in o.regions:
            for inner in region.blocks:
                yield from walk(inner)


def blocks(block: ir.Block) -> list[ir.Block]:
    """The block and every block nested in it."""
    found = [block]
    for o in operations(block):
        for region in o.regions:
            for inner in region.blocks:
                found += blocks(inner)
    return found


def type_of(value: Value) -> TensorType:
    return declarations.current_types().from_mlir(value.type)


def attrs(operation: Operation) -> dict[str, Any]:
    return read_attrs(operation)


def definition(operation: Operation) -> OpDef | None:
    """The declaration of an `ai` operation; None for others, such as func.return."""
    return OPS.get(operation.name)


def defining(value: Value) -> Operation | None:
    """The operation that makes the value; None for a block argument."""
    return None if isinstance(value, ir.BlockArgument) else value.owner.operation


def users(value: Value) -> list[Operation]:
    return [use.owner.operation for use in value.uses]


def uses(value: Value) -> list[Use]:
    """A list, so that operands may be set while it is gone through."""
    return [(use.owner.operation, int(use.operand_number)) for use in value.uses]


def is_used(value: Value) -> bool:
    return next(iter(value.uses), None) is not None


def build(
    name: str, *operands: Value, types: Sequence[TensorType] | None = None, **attributes: Any
) -> Any:
    """Create an operation at the current insertion point; its result, or a tuple of several.

    Result types come from the shape rule (`types` overrides for operations with regions). Raises
    ShapeError.
    """
    results = tuple(create(name, *operands, types=types, **attributes).results)
    return results[0] if len(results) == 1 else results


def create(
    name: str, *operands: Value, types: Sequence[TensorType] | None = None, **attributes: Any
) -> Operation:
    """As `build`; the operation itself."""
    declared = OPS[name]
    complete = declared.complete(attributes)
    if types is None:
        types = declared.result_types([type_of(v) for v in operands], complete)
    table = declarations.current_types()
    return ir.Operation.create(
        name,
        results=[table.to_mlir(t) for t in types],
        operands=list(operands),
        attributes={k: write_attr(v) for k, v in complete.items()}
        | segment_attrs(declared, len(operands), len(types)),
        regions=declared.regions,
    )


def keep(program: Program, array: np.ndarray, key: str) -> str:
    """Put an array among the weights; its key: `key`, or one like it that is no other array's."""
    unique, n = key, 1
    while unique in program.weights and program.weights[unique] is not array:
        n += 1
        unique = f"{key}.{n}"
    program.weights[unique] = array
    return unique


def constant(program: Program, array: np.ndarray, key: str) -> Value:
    """An `ai.constant` at the current insertion point; `key` is made unique, the array is kept."""
    return build(
        "ai.constant", key=keep(program, array, key), fingerprint=fingerprint(array),
        shape=tuple(int(d) for d in array.shape), dtype=dtype_name(array.dtype),
    )  # fmt: skip


def sizes_used(operation: Operation) -> set[str]:
    """The symbols in result types and attributes of the operation and of those inside it."""
    found: set[str] = set()
    inner = [o for region in operation.regions for block in region.blocks for o in walk(block)]
    for o in (operation, *inner):
        found |= {name for r in o.results for name in symbols_of(type_of(r).shape)}
        found |= _symbols_in(tuple(attrs(o).values()))
    return found


def _symbols_in(value: Any) -> set[str]:
    if isinstance(value, tuple):
        return set().union(*map(_symbols_in, value))
    return symbols(value) if isinstance(value, Expr) else set()


def places(operation: Operation) -> tuple[Any, ...]:
    """The planned place of each result; none of them above the launch level."""
    found = attrs(operation)
    return found.get("places") or ((found["place"],) if "place" in found else ())


def full(value: float | int | bool, shape: Sequence[Dim] = (), dtype: str = "float32") -> Value:
    """An `ai.full`: a tensor of one repeated value, which kernels take as an immediate."""
    value = float(value) if dtype in (*FLOATS, *NARROW_FLOATS) else int(value)
    return build("ai.full", value=value, shape=tuple(shape), dtype=dtype)


_WHOLE_BYTES = 64 << 10
_SAMPLE_BYTES = 1024


def fingerprint(array: np.ndarray) -> str:
    """16 hex digits that tell arrays apart: of all bytes up to 64 KiB, else of 16 spread samples.

    It is for people and caches that also check the rest; the package's own hash covers every byte.
    """
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.nbytes <= _WHOLE_BYTES:
        digest.update(flat.data)
    else:
        for start in (i * (flat.nbytes - _SAMPLE_BYTES) // 15 for i in range(16)):
            digest.update(flat[start : start + _SAMPLE_BYTES].data)
    return digest.hexdigest()[:16]


@contextmanager
def before(operation: Operation) -> Iterator[None]:
    """Build before `operation`, at its source location."""
    with ir.InsertionPoint(operation), operation.location:
        yield


@contextmanager
def after(operation: Operation) -> Iterator[None]:
    with ir.InsertionPoint.after(operation), operation.location:
        yield


@contextmanager
def at_end(block: ir.Block) -> Iterator[None]:
    with ir.InsertionPoint(block):
        yield


def named(name: str) -> ir.Location:
    """A location that carries the source model's own name of a node."""
    return ir.Location.name(name)


def here() -> ir.Location:
    """The location at which operations are being built."""
    return ir.Location.current


def source_name(operation: Operation) -> str:
    """The name given by `named`, or "" ; fused locations give their parts joined by " + "."""
    return _location_name(operation.location)


def _location_name(location: ir.Location) -> str:
    match location:
        case ir.NameLoc():
            return str(location.name_str)
        case ir.FusedLoc():
            parts = [_location_name(part) for part in location.locations]
            return " + ".join(dict.fromkeys(p for p in parts if p))
    return ""


def fused_location(parts: Sequence[Operation]) -> ir.Location:
    """One location for an operation made of several."""
    return ir.Location.fused([p.location for p in parts])


def replace(operation: Operation, *values: Value) -> None:
    """Let every user of the operation's results use `values`, then erase it. Types must agree."""
    if len(values) != len(operation.results):
        raise ValueError(
            f"{operation.name} has {len(operation.results)} results, got {len(values)} values"
        )
    for result, value in zip(operation.results, values, strict=True):
        if result.type != value.type:
            raise ValueError(
                f"cannot replace {operation.name}: {type_of(result)} by {type_of(value)}"
            )
        result.replace_all_uses_with(value)
    operation.erase()


def erase(operation: Operation) -> None:
    """Erase an operation that nothing uses. ValueError otherwise (MLIR would abort the process)."""
    if any(is_used(r) for r in operation.results):
        raise ValueError(f"{operation.name} is still used")
    operation.erase()


def drop_unused(block: ir.Block) -> int:
    """Erase pure operations whose results are unused, inner blocks too; returns how many."""
    count = 0
    for o in reversed(operations(block)):
        declared = definition(o)
        if declared and declared.pure and o.results and not any(is_used(r) for r in o.results):
            o.erase()
            count += 1
        else:
            for region in o.regions:
                count += sum(drop_unused(b) for b in region.blocks)
    return count
