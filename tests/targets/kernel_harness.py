"""Compile one region for a chip, call it through ctypes, and compare with the interpreter.

Buffers end where an unreadable page begins, so reading or writing past an end is a crash, not luck;
outputs start as NaN. Any schedule can be tested: `check(program, chip, schedule)` on random inputs,
`compare(program, feeds, chip, schedule)` on given ones.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program
from cuvilc.dialect.types import TensorType, from_layout, numpy_dtype, to_layout
from cuvilc.package.link import address_table
from cuvilc.package.plan import PART_TABLE
from cuvilc.targets import llvm
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Region, Scheduled
from tests.tolerances import mismatch

V2 = Chip("x86-64-v2", 4, 16, ("sse4.2",), {"mcpu": "x86-64-v2"})
V3 = Chip("x86-64-v3", 8, 16, ("avx2", "fma"), {"mcpu": "x86-64-v3"})
V4 = Chip("x86-64-v4", 16, 32, ("avx512",), {"mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]})
CHIPS = (V4, V3)

Schedule = Callable[[Region, Chip, str], Scheduled]
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)
_LEAST_SCALE = 1e-30  # of results: kernels are held to the table however small these are
_MOST_CALLS = 64  # of one kernel, run backwards


def tensor(spelled: str, dtype: str = "float32", layout: str = "") -> TensorType:
    """`tensor("2,n,7")`: the type of these sizes."""
    return TensorType(tuple(parse(d) for d in spelled.split(",")), dtype, layout)


def program_of(types: Sequence[TensorType], body: Callable[..., Any]) -> Program:
    """A program whose `main` is one outlined kernel: inputs x0, x1, …; results y0, y1, … of
    body(*inputs).

    `body` runs where ir.build may be called; it returns a value or a tuple of them.
    """
    program = Program.create("kernel")
    with program:
        names = tuple(f"x{n}" for n in range(len(types)))
        block = ir.define_function(program, "main", types, input_names=names)
        with ir.at_end(block):
            made = body(*block.arguments)
        results = made if isinstance(made, (tuple, list)) else (made,)
        ir.finish_function(block, results)
        outputs = tuple(f"y{n}" for n in range(len(results)))
        program.function("main").attributes["output_names"] = ir.write_attr(outputs)
    return program


def guarded(nbytes: int) -> tuple[int, Any]:
    """(address, owner) of `nbytes` zero bytes that an inaccessible page follows."""
    pages = (nbytes + _PAGE - 1) // _PAGE
    memory = mmap.mmap(-1, (pages + 1) * _PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(start + pages * _PAGE), ctypes.c_size_t(_PAGE), 0):
        raise OSError("mprotect failed")
    return start + pages * _PAGE - nbytes, memory


def guarded_array(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that ends at an inaccessible page."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    address, owner = guarded(nbytes)
    raw = (ctypes.c_uint8 * nbytes).from_address(address)
    raw._owner = owner  # keeps the mapping alive
    return np.frombuffer(raw, dtype).reshape(shape) if nbytes else np.empty(shape, dtype)


class Kernel:
    """A compiled region. `run(feeds)` gives its results, row-major."""

    def __init__(self, program: Program, chip: Chip, schedule: Schedule) -> None:
        self.program = program
        self._folder = tempfile.TemporaryDirectory()
        with program:
            started = time.process_time()
            region = Region.of(program, program.function("main"))
            self.scheduled = schedule(region, chip, "kernel")
            self.schedule_ms = (time.process_time() - started) * 1e3
            self.types = region.types()
            self.inputs = len(region.arguments)
        base = Path(self._folder.name)
        started = time.process_time()
        target = llvm.llvm_target(chip.llvm)
        facts = self.scheduled.facts
        if self.scheduled.function is not None:
            llvm.compile_object(self.scheduled.function, target, str(base / "kernel.o"))
        for part in self.scheduled.parts:
            llvm.compile_object(part.build(), target, str(base / f"{part.symbol}.o"))
        self.compile_ms = (time.process_time() - started) * 1e3
        self._target = target
        self.code_bytes = sum(map(_code_bytes, base.glob("*.o")))
        numbered = facts.numbered()
        self.numbers = {symbol: i for i, symbol in enumerate(numbered)}
        (base / "table.s").write_text("\n".join(address_table(PART_TABLE, numbered)) + "\n")
        self.library = link(base)
        self.call = self.library[facts.code or "kernel"]
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.call.argtypes = [pointer, pointer, i64, i64, pointer]

    def assembly(self) -> str:
        code = self.scheduled.facts.code
        own = [part.build() for part in self.scheduled.parts if part.symbol == code]
        return llvm.lower(own[0] if code else self.scheduled.function, self._target, "asm")

    def run(self, feeds: Mapping[str, np.ndarray], splits: Sequence[int] = ()) -> list[np.ndarray]:
        """The results; `splits` are task numbers at which a new call begins."""
        launch = Launch(self, feeds)
        cuts = sorted({0, launch.tasks, *(s for s in splits if s < launch.tasks)})
        for begin, end in pairwise(cuts):
            launch(begin, end)
        return launch.results()

    def run_backwards(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results of tasks that run one by one, the last one first; of very many, in pieces."""
        launch = Launch(self, feeds)
        step = max(1, launch.tasks // _MOST_CALLS)
        for end in range(launch.tasks, 0, -step):
            launch(max(end - step, 0), end)
        return launch.results()


class Launch:
    """A kernel with its buffers laid out: `launch(begin, end)` runs some of its `tasks`."""

    def __init__(self, kernel: Kernel, feeds: Mapping[str, np.ndarray]) -> None:
        self.kernel = kernel
        arrays = [feeds[f"x{n}"] for n in range(kernel.inputs)]
        self.sizes = _sizes(kernel.types, arrays)
        shapes = [self._concrete(t.physical_shape) for t in kernel.types]
        self.buffers = [
            guarded_array(s, numpy_dtype(t.dtype))
            for s, t in zip(shapes, kernel.types, strict=True)
        ]
        for buffer, array, t in zip(self.buffers, arrays, kernel.types, strict=False):
            buffer[...] = to_layout(array.astype(buffer.dtype), t.layout).reshape(buffer.shape)
        for buffer in self.buffers[kernel.inputs :]:
            buffer.reshape(-1).view(np.uint8)[...] = 255
        facts = kernel.scheduled.facts
        self.tasks = int(evaluate(facts.tasks, self.sizes))
        known = self.sizes | kernel.numbers
        scalars = [int(evaluate(d, known)) for d in facts.scalars]
        self._pointers = (ctypes.c_void_p * len(self.buffers))(
            *(b.ctypes.data for b in self.buffers)
        )
        self._scalars = (ctypes.c_int64 * max(len(scalars), 1))(*scalars)
        scratch_bytes = int(evaluate(facts.scratch_bytes, self.sizes))
        self._scratch = guarded_array(((scratch_bytes + 63) // 64 * 64,), np.dtype(np.uint8))

    def __call__(self, begin: int, end: int) -> None:
        code = self.kernel.call(
            self._pointers, self._scalars, begin, end, self._scratch.ctypes.data
        )
        if code:
            raise RuntimeError(f"kernel fault {code}")

    def results(self) -> list[np.ndarray]:
        first = self.kernel.inputs
        return [
            from_layout(b, t.layout, self._concrete(t.shape))
            for b, t in zip(self.buffers[first:], self.kernel.types[first:], strict=True)
        ]

    def _concrete(self, shape: Sequence[Any]) -> tuple[int, ...]:
        return tuple(int(evaluate(d, self.sizes)) for d in shape)


def _sizes(types: Sequence[TensorType], arrays: Sequence[np.ndarray]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for t, array in zip(types, arrays, strict=False):
        for d, n in zip(t.shape, array.shape, strict=True):
            if not isinstance(d, int) and str(d).isidentifier():
                sizes[str(d)] = n
    return sizes


def _code_bytes(path: Path) -> int:
    out = subprocess.run(["size", "-A", path], check=True, capture_output=True, text=True).stdout
    return sum(int(line.split()[1]) for line in out.splitlines() if line.startswith(".text"))


def link(base: Path) -> ctypes.CDLL:
    """The library of the objects in this folder."""
    out = base / "kernel.so"
    command = ["cc", "-shared", "-Wl,-Bsymbolic", "-o", out, *sorted(base.glob("*.[os]")), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(out))


def random_feeds(program: Program, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Random inputs, symbols taking the values of `sizes`; the same on every run."""
    rng = np.random.default_rng(0)
    with program:
        types = [ir.type_of(v) for v in ir.body(program.function("main")).arguments]
    feeds = {}
    for n, t in enumerate(types):
        shape = tuple(int(evaluate(d, sizes or {})) for d in t.shape)
        if t.dtype in ("int8", "uint8"):  # all their values
            feeds[f"x{n}"] = rng.integers(0, 256, shape, np.uint8).view(t.dtype)
        else:
            feeds[f"x{n}"] = rng.uniform(-1, 1, shape).astype(numpy_dtype(t.dtype))
    return feeds


def check(
    program: Program, chip: Chip, schedule: Schedule, sizes: Sequence[Mapping[str, int]] = ({},)
) -> Kernel:
    """Assert that the kernel agrees with the interpreter at every choice of sizes."""
    kernel = Kernel(program, chip, schedule)
    for choice in sizes:
        agrees(kernel, random_feeds(program, choice), choice)
    return kernel


def compare(
    program: Program, feeds: Mapping[str, np.ndarray], chip: Chip, schedule: Schedule
) -> None:
    """Assert that the kernel agrees with the interpreter on these inputs."""
    agrees(Kernel(program, chip, schedule), feeds)


def agrees(kernel: Kernel, feeds: Mapping[str, np.ndarray], context: Any = "") -> None:
    """Assert that the results are the interpreter's, and the same bits however tasks are split and
    in whatever order they run: what two of them write they must round alike.
    """
    with np.errstate(all="ignore"):
        expected = list(interpret(kernel.program, feeds).values())
    whole, split = kernel.run(feeds), kernel.run(feeds, splits=(1, 3, 7))
    back = kernel.run_backwards(feeds)
    for wanted, got, again, last in zip(expected, whole, split, back, strict=True):
        wrong = mismatch(got, wanted, scale=_LEAST_SCALE)
        assert not wrong, f"{wrong} {context}"
        assert got.tobytes() == again.tobytes(), f"depends on how tasks are split {context}"
        assert got.tobytes() == last.tobytes(), f"depends on the order of tasks {context}"
