"""Kernels + runtime + kernel table → model.so, without the image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from cuvilc.diagnostics import fail
from cuvilc.package.cache import Cache, digest
from cuvilc.package.codes import COMPILER_FAILED, DISK_FULL, LINK_FAILED
from cuvilc.package.link_cache import TRACE, LinkCache
from cuvilc.package.plan import PART_TABLE, Plan
from cuvilc.package.runtime_source import RuntimeSource
from cuvilc.package.toolchain import Toolchain, run

COMPILE_FLAGS = (
    "-O2", "-std=c11", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections",
    "-pthread",
)  # fmt: skip
LINK_FLAGS = (
    "-shared", "-s", "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,-z,noexecstack",
    "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,--hash-style=gnu", "-Wl,--as-needed",
    "-Wl,-soname,model.so",  # else a program linked with it would need it at the path given then
)  # fmt: skip
LIBRARIES = ("-lm", "-pthread")
_EXPORTS = "{ global: cuvil_*; local: *; };\n"

Object = bytes | Path

# This process's objects by cache key, for builds without a disk cache.
_compiled: dict[str, bytes] = {}


def runtime_objects(toolchain: Toolchain, source: RuntimeSource, cache: Cache) -> list[bytes]:
    """The runtime's object files, in order of `source.units`; each compiled once per command.

    Raises CUV502 with the compiler's message. May be called ahead, in a thread, while kernels
    compile.
    """
    headers = [part for h in source.headers for part in (h.name, h.read_bytes())]
    setting = [*toolchain.arguments, toolchain.identity, *COMPILE_FLAGS]
    keys = [
        digest("runtime object", *setting, *headers, unit.name, unit.read_bytes())
        for unit in source.units
    ]
    for key in keys:
        if key not in _compiled and (data := cache.get(key)) is not None:
            _compiled[key] = data
    missing = [(k, u) for k, u in zip(keys, source.units, strict=True) if k not in _compiled]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = pool.map(lambda item: _compile(toolchain, source, item[1]), missing)
        for (key, _), data in zip(missing, objects, strict=True):
            _compiled[key] = data
            cache.put(key, data)
    return [_compiled[key] for key in keys]


def _compile(toolchain: Toolchain, source: RuntimeSource, unit: Path) -> bytes:
    includes = [f"-I{path}" for path in source.include_dirs]
    with TemporaryDirectory(prefix="cuvilc-") as directory:
        output = Path(directory, "unit.o")
        command = [
            *toolchain.arguments,
            *COMPILE_FLAGS,
            *includes,
            "-c",
            str(unit),
            "-o",
            str(output),
        ]
        result = run(command)
        if result.returncode != 0:
            raise _tool_failed(COMPILER_FAILED, f"compiling {unit.name} failed", result.stdout)
        return output.read_bytes()


def link_library(
    plan: Plan,
    kernels: Sequence[Object],
    runtime: Sequence[Object],
    destination: Path,
    toolchain: Toolchain,
    cache: Cache | None = None,
) -> None:
    """Write the shared library `destination`: same inputs, same bytes, wherever it is linked.

    `kernels` define `plan.code_symbol(k, i)` for every kernel and level, and `plan.parts`. Only
    cuvil_* is exported. With a `cache`, what was linked from the same objects is taken from there.
    Raises CUV504 with the linker's message, OSError when a file cannot be written.
    """
    # Relative names and a fixed order: nothing of the machine can reach the output.
    objects = [(f"k{i}.o", o) for i, o in enumerate(kernels)]
    objects += [(f"r{i}.o", o) for i, o in enumerate(runtime)]
    texts = {"table.s": kernel_table(plan).encode("ascii"), "exports": _EXPORTS.encode("ascii")}
    names = [name if isinstance(o, bytes) else str(o.resolve()) for name, o in objects]
    command = [
        *toolchain.arguments, *LINK_FLAGS, "-Wl,--version-script=exports", "-o", "model.so",
        "table.s", *names, *LIBRARIES,
    ]  # fmt: skip
    links = LinkCache(cache or Cache(enabled=False), toolchain)
    key = ""
    if links.enabled:
        contents = (o if isinstance(o, bytes) else o.read_bytes() for _, o in objects)
        key = links.key(command, [*texts.values(), *contents])
        if (library := links.get(key)) is not None:
            _write_executable(destination, library)
            return
    with TemporaryDirectory(prefix=".link-", dir=destination.parent) as directory:
        place = Path(directory)
        for name, content in [*texts.items(), *objects]:
            if isinstance(content, bytes):
                (place / name).write_bytes(content)
        trace = _link(command, directory, traced=bool(key))
        if trace:
            links.put(key, (place / "model.so").read_bytes(), trace)
        (place / "model.so").replace(destination)


def _write_executable(path: Path, content: bytes) -> None:
    """A new file, with the permissions that a linker gives."""
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o777), "wb") as file:
        file.write(content)


def _link(command: list[str], directory: str, traced: bool) -> str:
    """Run the linker in `directory`; what it prints, if `traced` and it can tell what it reads."""
    if traced:
        result = run([*command, TRACE], cwd=directory)
        if result.returncode == 0:
            return result.stdout
    result = run(command, cwd=directory)
    if result.returncode != 0:
        raise _tool_failed(LINK_FAILED, "linking model.so failed", result.stdout)
    return ""


def kernel_table(plan: Plan) -> str:
    """Assembly of cuvil_kernel_table, cuvil_kernel_count and, where kernels call parts by number,
    cuvil_part_table, for any 64-bit ELF target.
    """
    symbols = [plan.code_symbol(k, i) for i in range(len(plan.levels)) for k in plan.kernels]
    return "\n".join(
        [
            *address_table("cuvil_kernel_table", symbols),
            *(address_table(PART_TABLE, plan.parts) if plan.parts else ()),
            '\t.section .rodata,"a",%progbits',
            "\t.balign 4",
            *_object_label("cuvil_kernel_count", 4),
            f"\t.long {len(plan.kernels)}",
            '\t.section .note.GNU-stack,"",%progbits',
            "",
        ]
    )


def address_table(name: str, symbols: Sequence[str]) -> list[str]:
    """Assembly of a table of the symbols' addresses."""
    return [
        '\t.section .data.rel.ro,"aw",%progbits',
        "\t.balign 8",
        *_object_label(name, 8 * len(symbols)),
        *(f"\t.hidden {symbol}\n\t.quad {symbol}" for symbol in symbols),
    ]


def _object_label(name: str, size_bytes: int) -> list[str]:
    return [
        f"\t.globl {name}",
        f"\t.hidden {name}",
        f"\t.type {name}, %object",
        f"\t.size {name}, {size_bytes}",
        f"{name}:",
    ]


def _tool_failed(code: str, message: str, output: str) -> Exception:
    """The diagnostic of a tool that failed; a full disk is told from the tool's own fault."""
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return fail(DISK_FULL, f"{message}: the disk is full")
    lines = output.strip().splitlines()
    evidence = "\n".join(lines[:20])
    notes = [f"{len(lines) - 20} more lines"] if len(lines) > 20 else []
    return fail(code, message, evidence=evidence, notes=notes)
