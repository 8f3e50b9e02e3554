"""Kernels as TIR loops; llvm.py makes object code of them.

A kernel has the plain C signature of runtime/src/image.h, `int32_t k(void *const *buffers, const
int64_t *scalars, int64_t begin, int64_t end, void *scratch)`: its outermost loop runs over tasks
[begin, end), and it has no undefined symbol but libm's. Schedules build loops with KernelBuilder
instead of rewriting a loop nest with `s_tir.Schedule`: remainders are then exact, a kernel costs 4
ms before LLVM, and nothing can fail to match (docs/adr/002-direct-tir.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.sym.analyzer import Analyzer

from cuvilc.dialect.dims import Dim, Expr
from cuvilc.dialect.narrow import STORED
from cuvilc.targets.tir_texts import ARGUMENT, NO_HALF, OFFSET, PREFETCH

# TVM's classes have no usable types; the names say what is meant.
PrimExpr: TypeAlias = Any  # tvm.ir.Expr
Buffer: TypeAlias = Any  # tirx.Buffer
Kind = tirx.ForKind

_SMALL = 4096  # index constants below this are made once
_MOST_LANES = 64  # of a vectorised loop
_KINDS = {"serial": Kind.SERIAL, "unrolled": Kind.UNROLLED, "vectorized": Kind.VECTORIZED}
_LOAD = tvm.ir.TensorLoad
_buffer = tvm.get_global_func("tirx.BufferVar")  # with its type a tenth of decl_buffer's time
# How a dtype lies in memory where TVM's LLVM has no fitting type: bool as a byte, bfloat16 as its
# bits.
_STORAGE = {"bool": "uint8", "bfloat16": "uint16", **STORED}


def var(name: str, dtype: str = "int64") -> PrimExpr:
    return tvm.ir.Var(name, PrimType(dtype))


def const(value: float, dtype: str = "int64") -> PrimExpr:
    if dtype == "int64" and isinstance(value, int) and 0 <= value < _SMALL:
        return _small(value)
    return tirx.const(value, dtype)


def as_expr(index: Any) -> PrimExpr:
    """An index as an expression: Python's ints are constants."""
    return const(index) if isinstance(index, int) else index


@cache
def _small(value: int) -> PrimExpr:
    return tirx.const(value, "int64")


@cache
def _cell_type(lanes: int, dtype: str) -> Any:
    return tirx.decl_buffer((lanes,), dtype, scope="local", layout=None).ty


def is_load(value: Any) -> bool:
    """Whether the expression is one load from a buffer: `.source` is the buffer, `.indices`."""
    return isinstance(value, _LOAD)


class CannotVectorize(Exception):
    """Control flow inside a vectorised loop depends on the lane; the schedule starts over with a
    scalar loop.
    """


class Variable:
    """What KernelBuilder.variable returns."""

    def __init__(self, builder: KernelBuilder, cell: Buffer, dtype: str) -> None:
        self._builder, self._buffer, self._dtype = builder, cell, dtype

    def get(self) -> PrimExpr:
        return self._builder._get(self._buffer, self._dtype)

    def set(self, value: PrimExpr) -> None:
        self._builder._put(self._buffer, value)


class KernelBuilder:
    """Builds one kernel statement by statement.

    `buffer(i, …)` is argument i of the launch, outputs after inputs. `scalar(dim)` is a size known
    at run time; the launch passes `scalars` in this order.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.scalars: list[Dim] = []
        self._buffers: dict[int, Buffer] = {}
        self._numbers: dict[int, PrimExpr] = {}
        self._head: list[tirx.Stmt] = []
        self._blocks: list[list[tirx.Stmt]] = [[]]
        self._scopes: list[int] = [0]  # identities of the open blocks
        self._scalar_vars: dict[Expr, PrimExpr] = {}
        self._scratch_offset: Dim = 0
        self._llvm = {"": ARGUMENT}  # texts by the name of the function
        self._count = 0
        self._analyzer = Analyzer()
        self._zeros: dict[Dim, PrimExpr] = {}
        # index and extent of the open vectorised loop
        self._lane: tuple[PrimExpr, int] = (const(0), 1)
        self._lane_vars: set[str] | None = None  # variables made inside the open vectorised loop
        self._cells: dict[int, PrimExpr] = {}  # what `let` returned, by identity
        # indices that stay within a size, by identity
        self._spans: dict[int, tuple[PrimExpr, Dim]] = {}
        self.can_fault = False
        self._lane_faults: Buffer | None = None
        self.uses_half = True  # whether float16 may be converted
        self.in_place = False
        self._arguments = tvm.ir.Var("buffers", PointerType(PrimType("int64")))
        self._scalar_argument = tvm.ir.Var("scalars", PointerType(PrimType("int64")))
        self._scalar_buffer = tirx.decl_buffer((1 << 16,), "int64", name="scalars_", layout=None)
        self.begin, self.end = var("begin"), var("end")
        self._scratch = tvm.ir.Var("scratch", PointerType(PrimType("uint8")))
        self._fault = tirx.decl_buffer((1,), "int32", name="fault", layout=None)

    # ---- what a kernel works on

    def buffer(self, index: int, dtype: str) -> Buffer:
        """Argument `index` as a flat buffer of `dtype` (as stored: see _STORAGE)."""
        found = self._buffers.get(index)
        if found is None:
            storage = _STORAGE.get(dtype, dtype)
            pointer_type = PointerType(PrimType(storage))
            pointer = tvm.ir.Var(f"p{index}", pointer_type)
            found = self._buffers[index] = tirx.decl_buffer(
                (1 << 40,), storage, name=f"b{index}", layout=None
            )
            value = tirx.call_extern(pointer_type, "cuvil_argument", self._arguments, const(index))
            self._head += [tirx.Bind(pointer, value), tirx.DeclBuffer(found, data=pointer)]
        return found

    def number(self, index: int, dtype: str) -> PrimExpr:
        """Argument `index`, of rank 0, loaded once: in a kernel that works in place LLVM would load
        it again after every store.
        """
        found = self._numbers.get(index)
        if found is None:
            buffer = self.buffer(index, dtype)
            found = self._numbers[index] = var(f"number{index}", str(buffer.dtype))
            self._head.append(tirx.Bind(found, tirx.BufferLoad(buffer, [const(0)])))
        return found

    def scalar(self, dim: Dim) -> Any:
        """A dimension as an index expression: Python's int when static."""
        if isinstance(dim, int):
            return dim
        found = self._scalar_vars.get(dim)
        if found is None:
            found = self._scalar_vars[dim] = var(f"n{len(self.scalars)}")
            load = tirx.BufferLoad(self._scalar_buffer, [const(len(self.scalars))])
            self._head.append(tirx.Bind(found, load))
            self.scalars.append(dim)
        return found

    def scratch(self, elements: Dim, dtype: str) -> Buffer:
        """A buffer in this thread's scratch memory, 64-byte aligned, uninitialised."""
        storage = _STORAGE.get(dtype, dtype)
        pointer = tvm.ir.Var(f"s{self._next()}", PointerType(PrimType(storage)))
        self.llvm("cuvil_offset", OFFSET)
        offset = self.scalar(self._scratch_offset)
        value = tirx.call_extern(
            PointerType(PrimType(storage)), "cuvil_offset", self._scratch, as_expr(offset)
        )
        buffer = tirx.decl_buffer((1 << 40,), storage, name=f"scratch{self._count}", layout=None)
        self._head += [tirx.Bind(pointer, value), tirx.DeclBuffer(buffer, data=pointer)]
        bytes_ = elements * tvm.DataType(storage).itemsize
        self._scratch_offset = self._scratch_offset + (bytes_ + 63) // 64 * 64
        return buffer

    @property
    def scratch_bytes(self) -> Dim:
        """Bytes of scratch that each thread needs."""
        return self._scratch_offset

    def local(self, elements: int, dtype: str) -> Buffer:
        """A small array on the stack; LLVM keeps it in registers when every index is a constant."""
        buffer = tirx.decl_buffer(
            (elements,),
            _STORAGE.get(dtype, dtype),
            name=f"l{self._next()}",
            scope="local",
            layout=None,
        )
        self.emit(tirx.AllocBuffer(buffer))
        return buffer

    # ---- statements

    def emit(self, statement: tirx.Stmt) -> None:
        self._blocks[-1].append(statement)

    @contextmanager
    def loop(
        self, extent: Any, kind: str = "serial", start: Any = 0, name: str = "i"
    ) -> Iterator[PrimExpr]:
        """`with b.loop(n) as i:`; kind "vectorized" and "unrolled" need a constant extent."""
        i = var(f"{name}{self._next()}")
        if kind == "vectorized" and int(extent) == 1:
            kind = "serial"  # VectorizeLoop aborts on one lane
        if kind == "vectorized":
            self._lane_vars, self._lane = {i.name}, (i, int(extent))
        self._analyzer.bind(i, tvm.ir.Range.from_min_extent(as_expr(start), as_expr(extent)))
        with self._block() as statements:
            yield i
        if kind == "vectorized":
            self._lane_vars, self._lane = None, (const(0), 1)
        self.emit(tirx.For(i, as_expr(start), as_expr(extent), _KINDS[kind], _sequence(statements)))

    @contextmanager
    def loops(self, extents: Sequence[Any]) -> Iterator[tuple[PrimExpr, ...]]:
        """Loops within each other, the first outermost."""
        with ExitStack() as open_loops:
            yield tuple(open_loops.enter_context(self.loop(n)) for n in extents)

    @contextmanager
    def repeat(self, condition: PrimExpr) -> Iterator[None]:
        """`while condition:`, over loads of variables that the body sets."""
        with self._block() as statements:
            yield
        body = tirx.SeqStmt([*statements, tirx.Evaluate(const(0, "int32"))])
        self.emit(tirx.While(condition, body))

    @contextmanager
    def tasks(self) -> Iterator[PrimExpr]:
        """The outermost loop: `with b.tasks() as t:`."""
        with self.loop(self.end - self.begin, start=self.begin, name="t") as t:
            yield t

    @contextmanager
    def when(self, condition: PrimExpr) -> Iterator[None]:
        """Statements that run only if `condition` holds (a scalar bool)."""
        self.require_uniform(condition)
        with self._block() as statements:
            yield
        self.emit(tirx.IfThenElse(condition, _sequence(statements), None))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The else branch of the `when` just closed."""
        with self._block() as statements:
            yield
        last = self._blocks[-1].pop()
        self.emit(tirx.IfThenElse(last.condition, last.then_case, _sequence(statements)))

    def let(self, value: Any, name: str = "v") -> PrimExpr:
        """Name a value, so that it is computed once in this block."""
        if not isinstance(value, tvm.ir.Expr) or isinstance(
            value, (tvm.ir.Var, tirx.IntImm, tirx.FloatImm)
        ):
            return value
        if id(value) in self._cells:
            return value
        if self._lane_vars is not None and not self.varies(value):
            with self._one_for_all_lanes():
                return self.let(value, name)
        # Not a `Bind`: TVM's simplifiers put the value of a bound variable back into every use, and
        # a chain of shared subexpressions then grows exponentially. Memory they leave alone; LLVM
        # makes registers of it.
        cell = self._cell(str(value.ty.dtype), name)
        self._put(cell, value)
        loaded = self._get(cell, str(value.ty.dtype))
        self._cells[id(loaded)] = loaded
        return loaded

    @contextmanager
    def _one_for_all_lanes(self) -> Iterator[None]:
        """Values named meanwhile are the same in all lanes: an index made of them is a scalar."""
        before = self._lane_vars, self._lane
        self._lane_vars, self._lane = None, (const(0), 1)
        yield
        self._lane_vars, self._lane = before

    def is_named(self, value: Any) -> bool:
        """Whether `let` returned the value: then it is no load from an argument."""
        return id(value) in self._cells

    def variable(self, value: PrimExpr) -> Variable:
        """A value that changes: in a vectorised loop one a lane."""
        made = Variable(self, self._cell(str(value.ty.dtype), "x"), str(value.ty.dtype))
        made.set(value)
        return made

    def pick(self, condition: PrimExpr, inside: Callable[[], Any], otherwise: Any) -> PrimExpr:
        """inside() where a uniform condition holds, else `otherwise` (a value, or a function of the
        dtype).
        """
        self.require_uniform(condition)
        with self._block() as statements:
            value = inside()
            dtype = str(value.ty.dtype)
            cell = self._cell(dtype, "v", self._blocks[-2])
            self._put(cell, value)
        self._put(cell, otherwise if isinstance(otherwise, tvm.ir.Expr) else otherwise(dtype))
        self.emit(tirx.IfThenElse(condition, _sequence(statements), None))
        return self._get(cell, dtype)

    def _cell(self, dtype: str, name: str, block: list[tirx.Stmt] | None = None) -> Buffer:
        """Memory for one value, or one a lane inside a vectorised loop."""
        stored = "int8" if dtype == "bool" else dtype
        cell = _buffer(f"{name}{self._next()}", _cell_type(self._lane[1], stored), None)
        (self._blocks[-1] if block is None else block).append(tirx.AllocBuffer(cell))
        if self._lane_vars is not None:
            self._lane_vars.add(cell.name)
        return cell

    def _put(self, cell: Buffer, value: PrimExpr) -> None:
        stored = tirx.Cast("int8", value) if str(value.ty.dtype) == "bool" else value
        self.emit(tirx.BufferStore(cell, stored, [self._lane[0]]))

    def _get(self, cell: Buffer, dtype: str) -> PrimExpr:
        loaded = tirx.BufferLoad(cell, [self._lane[0]])
        return tirx.NE(loaded, const(0, "int8")) if dtype == "bool" else loaded

    def scope(self) -> int:
        """Identifies the innermost open block: values named in it are visible there."""
        return self._scopes[-1]

    def visible(self, scope: int) -> bool:
        """Whether values named in the block `scope` can be used here."""
        return scope in self._scopes

    def same(self, a: PrimExpr, b: PrimExpr) -> bool:
        """Structural equality of two expressions."""
        return bool(a.same_as(b)) or bool(tvm_ffi.structural_equal(a, b))

    def require_uniform(self, condition: PrimExpr) -> None:
        """Raise CannotVectorize if the condition may differ between lanes of the open vectorised
        loop.
        """
        if self.varies(condition):
            raise CannotVectorize

    def varies(self, value: PrimExpr) -> bool:
        """Whether the value may differ between lanes of the open vectorised loop."""
        if self._lane_vars is None:
            return False
        used = tirx.analysis.undefined_vars(tirx.Evaluate(value), [])
        return bool(self._lane_vars.intersection(v.name for v in used))

    def load(self, buffer: Buffer, index: Any) -> PrimExpr:
        return tirx.BufferLoad(buffer, [self.simplify(index)])

    def store(self, buffer: Buffer, index: Any, value: Any) -> None:
        self.emit(tirx.BufferStore(buffer, value, [self.simplify(index)]))

    def prefetch(self, buffer: Buffer, index: Any) -> None:
        """Let the line of `buffer` at `index`, in units of four bytes, which may be anywhere, come
        into the second level: the first holds what is being worked on.
        """
        self.llvm("cuvil_prefetch", PREFETCH)
        call = tirx.call_extern("int32", "cuvil_prefetch", buffer.data, as_expr(index))
        self.emit(tirx.Evaluate(call))

    def simplify(self, index: Any) -> PrimExpr:
        """The index with what the loops' extents prove: so that a blocked layout becomes a
        contiguous access.
        """
        return const(index) if isinstance(index, int) else self._analyzer.simplify(index)

    def fault(self, kind: int) -> None:
        """Record a kernel fault (runtime/src/image.h, cuvil_kernel_fault); the kernel goes on
        safely.
        """
        self.can_fault = True
        self.store(self._fault, 0, const(kind, "int32"))

    def fault_lanes(self, condition: PrimExpr, kind: int) -> None:
        """The same where the condition holds, which may differ between the lanes of the open
        vectorised loop: without a branch, told when the tasks are done.
        """
        if self._lane_faults is None:
            self.can_fault = True
            self._lane_faults = _buffer("faults", _cell_type(_MOST_LANES, "int32"), None)
            self._head.append(tirx.AllocBuffer(self._lane_faults))
            lane = var("lane")
            clear = tirx.BufferStore(self._lane_faults, const(0, "int32"), [lane])
            self._head.append(tirx.For(lane, const(0), const(_MOST_LANES), Kind.SERIAL, clear))
        old = tirx.BufferLoad(self._lane_faults, [self._lane[0]])
        found = tirx.Select(condition, const(kind, "int32"), old)
        self.emit(tirx.BufferStore(self._lane_faults, found, [self._lane[0]]))

    def _tell_lane_faults(self) -> None:
        if self._lane_faults is None:
            return
        with self.loop(_MOST_LANES) as lane:
            found = self.let(tirx.BufferLoad(self._lane_faults, [lane]))
            with self.when(tirx.NE(found, const(0, "int32"))):
                self.store(self._fault, 0, found)

    def bind(self, variable: PrimExpr, extent: Any) -> None:
        """Let simplification know that the variable is in [0, extent)."""
        self._analyzer.bind(variable, tvm.ir.Range.from_min_extent(const(0), as_expr(extent)))

    def zero(self, extent: Dim) -> PrimExpr:
        """An index that is 0, of which simplification knows only that it is in [0, extent)."""
        found = self._zeros.get(extent)
        if found is None:
            found = self._zeros[extent] = var(f"zero{self._next()}")
            self.bind(found, self.scalar(extent))
            self._head.append(tirx.Bind(found, const(0)))
        return found

    def note_span(self, index: Any, dim: Dim) -> None:
        """The index runs over [0, dim): an operand of that size does not broadcast along it."""
        if isinstance(index, tvm.ir.Expr) and not isinstance(index, tirx.IntImm):
            self._spans[id(index)] = (index, dim)

    def spans(self, index: Any, dim: Dim) -> bool:
        """Whether note_span said so."""
        found = self._spans.get(id(index))
        return found is not None and found[1] == dim

    def decide(self, condition: PrimExpr) -> bool | None:
        """What the loops' extents prove about a condition."""
        simple = self._analyzer.simplify(condition)
        if isinstance(simple, tirx.IntImm):
            return bool(simple.value)
        if self._analyzer.can_prove(simple):
            return True
        return False if self._analyzer.can_prove(tirx.Not(simple)) else None

    def llvm(self, name: str, text: str) -> None:
        """Add a function in LLVM IR to the kernel's module: instructions that TIR cannot say."""
        self._llvm.setdefault(name, text)

    def call(self, symbol: str, buffers: Sequence[Buffer], indices: Sequence[Any]) -> None:
        """Call a part (part.py) with the addresses of buffers, then with indices."""
        values = [*(b.data for b in buffers), *map(as_expr, indices)]
        self.emit(tirx.Evaluate(tirx.call_extern("int32", symbol, *values)))

    @contextmanager
    def _block(self) -> Iterator[list[tirx.Stmt]]:
        statements: list[tirx.Stmt] = []
        self._blocks.append(statements)
        self._scopes.append(self._next())
        yield statements
        self._blocks.pop()
        self._scopes.pop()

    def _next(self) -> int:
        self._count += 1
        return self._count

    def finish(self) -> tirx.PrimFunc:
        """The function. Call once, when all statements are there."""
        self._tell_lane_faults()
        head = [tirx.DeclBuffer(self._scalar_buffer, data=self._scalar_argument)]
        params = [self._arguments, self._scalar_argument, self.begin, self.end, self._scratch]
        symbol = self.name
        if self.can_fault:
            # TVM's functions return 0 only: `lower` puts a wrapper around this one that returns the
            # code.
            pointer = tvm.ir.Var("fault_pointer", PointerType(PrimType("int32")))
            params.append(pointer)
            head.append(tirx.DeclBuffer(self._fault, data=pointer))
            symbol += BODY
        return self._function(params, head, symbol)

    def _function(
        self, params: Sequence[Any], head: Sequence[tirx.Stmt], symbol: str
    ) -> tirx.PrimFunc:
        (statements,) = self._blocks
        body = _sequence([*head, *self._head, *statements, tirx.Return(const(0, "int32"))])
        # One text: LLVM reads a module of it.
        text = "".join([*self._llvm.values(), *([] if self.uses_half else [NO_HALF])])
        body = tirx.AttrStmt(const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(text), body)
        function = tirx.PrimFunc(list(params), body, PrimType("int32"))
        return function.with_attr("global_symbol", symbol).with_attr(
            "tirx.noalias", not self.in_place
        )


# Ends the symbol of a function that takes a sixth argument, where it records a fault.
BODY = "_body"


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
