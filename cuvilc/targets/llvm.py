"""TIR to object code, through TVM's LLVM."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import tvm
from tvm import tirx

from cuvilc.targets.tir import BODY

_WRAPPER = """
define i32 @{name}(ptr %buffers, ptr %scalars, i64 %begin, i64 %end, ptr %scratch) {{
  %fault = alloca i32, align 4
  store i32 0, ptr %fault
  %r = call i32 @{name}_body(ptr %buffers, ptr %scalars, i64 %begin, i64 %end, ptr %scratch,
    ptr %fault)
  %code = load i32, ptr %fault
  ret i32 %code
}}
"""

_T = tirx.transform
_LOWERING = tvm.ir.transform.Sequential(
    [
        # No StmtSimplify: it inlines every `let`, so shared subexpressions would grow
        # exponentially.
        _T.VectorizeLoop(True),
        _T.UnrollLoop(),
        _T.LowerIntrin(),
    ]
)
_build_llvm = tvm.get_global_func("target.build.llvm")
_load_llvm = tvm.get_global_func("ffi.Module.load_from_file.ll")
_build_llvm.release_gil = True  # so that worker threads generate code side by side


def llvm_target(options: dict[str, Any]) -> tvm.target.Target:
    """The TVM target for LLVM options such as {"mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}."""
    # Schedules hoist, unroll and vectorise themselves: with levels 2 and 3 kernels take longer to
    # compile (3 copies loops for conditions that do not change in them) and run no faster.
    # The options are the process's (llvm_options.py), so the same ones everywhere.
    return tvm.target.Target({"kind": "llvm", "opt-level": 1, "cl-opt": list(_WITHOUT), **options})


# What LLVM shall not spend its time on. Where debuggers find TVM's variables after register
# allocation, which packages drop: a tenth of the time; beyond these sizes it is left out. And
# reducing the strength of loops, exponential in the addresses of loops within loops: another
# eighth, of products a third; schedules share and step addresses themselves, and models run as
# fast without it.
_WITHOUT = (
    "-livedebugvalues-input-bb-limit:uint=0",
    "-livedebugvalues-input-dbg-value-limit:uint=0",
    "-disable-lsr:bool=1",
)


def compile_object(function: tirx.PrimFunc, target: tvm.target.Target, path: str) -> None:
    """Write the kernel's object file to `path`."""
    lower(function, target, "o", path)


def lower(
    function: tirx.PrimFunc, target: tvm.target.Target, form: str, path: str | None = None
) -> str:
    """The kernel as text of `form` "tir", "ll" or "asm"; "o" writes an object file to `path`."""
    symbol = str(function.attrs["global_symbol"])
    module = tvm.IRModule({symbol: function})
    module = _LOWERING(_T.BindTarget(target.with_host(target))(module))
    if form == "tir":
        return str(module.script())
    library = _build_llvm(module, target)
    if symbol.endswith(BODY) and len(function.params) == 6:
        library = _wrapped(library, symbol.removesuffix(BODY))
    if form == "o":
        library.write_to_file(path, "o")
        return ""
    return str(library.inspect_source(form))


def _wrapped(library: Any, name: str) -> Any:
    """The module with `name` instead of its body: a function that returns what the body stored."""
    text = re.sub(
        rf"^define dllexport (?:noundef )?i32 @{name}{BODY}\(",
        f"define internal i32 @{name}{BODY}(",
        library.inspect_source("ll"),
        flags=re.MULTILINE,
    )
    with tempfile.NamedTemporaryFile("w", suffix=".ll") as file:
        file.write(text + _WRAPPER.format(name=name))
        file.flush()
        return _load_llvm(file.name, "ll")
