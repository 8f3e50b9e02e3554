"""The compiler's Python API: what `cuvil.compile` and its kin import when they are first used.

cuvil.compile("model.onnx")          a loaded model, built into a temporary package
open_package("model.cuvil")          a package of any target, also of `null`, which cuvil cannot
load
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from cuvilc.codes_runtime import WRONG_NAMES
from cuvilc.diagnostics import INTERNAL, CuvilError, define, fail
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import import_runtime, open_package

__all__ = ["compile", "open_package"]

NOT_YET = define(
    "CUV120",
    "this kind of model is not imported yet",
    """\
`cuvil.compile` takes the path of an ONNX file or an onnx.ModelProto. Torch modules, TorchScript and
exported programs have no importer in this version.

Next step: export the model, `torch.onnx.export(model, example_input, "model.onnx", dynamo=True)`,
and give the file to `cuvil.compile`.
""",
)
_OPTIONS = (
    "target", "cpu", "shapes", "dims", "elements", "jobs", "use_cache", "verify", "vectors",
    "precision", "prefer", "math", "adapters", "lora", "adapter_map", "base_weights",
    "lora_modules",
)  # fmt: skip
_LATER = ("accelerate", "mlir")


def compile(
    model: Any, example_input: Any = None, *, threads: int | None = None, **options: Any
) -> Any:
    """Compile an ONNX model and load it: a `cuvil.Model`, to be called with arrays.

    model: the path of a file, or an onnx.ModelProto. example_input: an array, a tuple of arrays,
    or a dict by name; the model is run on it once, so that what does not fit shows here. options:
    those of BuildRequest (target, cpu, shapes, dims, elements, jobs, use_cache, verify, vectors,
    precision, prefer, math, adapters, lora, adapter_map, base_weights, lora_modules), such as
    dims={"batch": (1, 8), "height": 224, "seq": (1, None)}, shapes={"image": (None, 3, 64, 64)} or
    adapters=["./sql-lora"]; a pair of path and name gives an adapter another name. The package
    lives in a temporary folder until the model is collected; `cuvilc build` makes one to keep.
    Raises cuvil.CuvilError; TypeError for an option that there is not, or of another form.
    """
    cuvil = import_runtime()
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        raise TypeError(f"compile() has no option `{unknown[0]}`; it has {', '.join(_OPTIONS)}")
    options["adapters"] = _adapters(options.get("adapters", ()))
    for name in ("adapter_map", "base_weights"):
        options[name] = Path(options[name]) if options.get(name) else None
    options["dims"] = {n: _range(n, given) for n, given in _named(options, "dims")}
    options["shapes"] = {n: _sizes(n, given) for n, given in _named(options, "shapes")}
    folder = Path(tempfile.mkdtemp(prefix="cuvil-"))
    try:
        loaded = _build_and_load(model, folder, threads, options, cuvil)
        _try(loaded, example_input)
    except CuvilError as error:
        if not any(d.code == INTERNAL for d in error.diagnostics):  # its report lies there
            shutil.rmtree(folder, ignore_errors=True)
        raise _as_runtime_error(error, cuvil) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(loaded, shutil.rmtree, folder, True)
    return loaded


def _named(options: dict[str, Any], option: str) -> Iterable[tuple[str, Any]]:
    """The names and values of an option that is a dict. TypeError."""
    given = options.get(option, {})
    if not isinstance(given, Mapping):
        raise TypeError(f"{option} is {given!r}; give a dict by name")
    return given.items()


def _range(name: str, given: Any) -> tuple[int, int | None]:
    """A range as (least, greatest), of a number or such a pair. TypeError."""
    pair = (given, given) if isinstance(given, int) else given
    match pair:
        case (int() as lo, int() | None as hi):
            return lo, hi
    raise TypeError(f"dims[{name!r}] is {given!r}; give a size, or (least, greatest or None)")


def _sizes(name: str, given: Any) -> tuple[int | None, ...]:
    """The sizes of an input; None leaves one as the model has it. TypeError."""
    if isinstance(given, (tuple, list)) and all(n is None or isinstance(n, int) for n in given):
        return tuple(given)
    form = "give its sizes, (1, 3, 224, 224), with None for one that stays as it is"
    raise TypeError(f"shapes[{name!r}] is {given!r}; {form}")


def _adapters(given: Any) -> list[tuple[Path, str]]:
    """Adapters as (path, name or ""), of one path or of several paths and such pairs. TypeError."""
    if isinstance(given, (str, PathLike)):
        given = [given]
    found = []
    for adapter in given:
        match adapter:
            case str() | PathLike():
                found.append((Path(adapter), ""))
            case (str() | PathLike() as path, str() as name):
                found.append((Path(path), name))
            case _:
                raise TypeError(f"an adapter is {adapter!r}; give a path, or (path, name)")
    return found


def _build_and_load(
    model: Any, folder: Path, threads: int | None, options: dict[str, Any], cuvil: Any
) -> Any:
    path = _model_file(model, folder)
    package = folder / f"{path.stem}.cuvil"
    request = BuildRequest(path, package, **{"vectors": 0, **options})
    build(request)
    if request.target == "null":
        return open_package(package)
    return cuvil.load(package, threads=threads)


def _model_file(model: Any, folder: Path) -> Path:
    """The model as a file. CUV120 for what has no importer yet."""
    if isinstance(model, (str, PathLike)):
        return Path(model)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if kind.startswith("onnx.") and hasattr(model, "SerializeToString"):
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path
    raise fail(
        NOT_YET,
        f"cuvil.compile takes an ONNX file or an onnx.ModelProto, not a {kind}",
        help='export it first: torch.onnx.export(model, example_input, "model.onnx", dynamo=True)',
    )


def _try(model: Any, example: Any) -> None:
    """Run the model once on the example."""
    if example is None:
        return
    if isinstance(example, dict):
        model.run(example)
        return
    values = example if isinstance(example, (tuple, list)) else (example,)
    names = [port.name for port in model.inputs]
    if len(values) != len(names):
        message = f"the example has {len(values)} inputs, the model has {len(names)}"
        raise fail(WRONG_NAMES, message)
    model.run(dict(zip(names, values, strict=True)))


def _as_runtime_error(error: CuvilError, cuvil: Any) -> Exception:
    """The exception that users of `cuvil` catch: the first diagnostic, and the text of all."""
    first = error.diagnostics[0]
    made: Exception = cuvil.CuvilError(
        first.code, first.message, first.place, first.help, str(error)
    )
    return made


def __getattr__(name: str) -> Any:
    if name in _LATER:
        raise AttributeError(
            f"cuvil.{name} is not available in this version: it takes PyTorch models, which are "
            "not imported yet. Export to ONNX and use cuvil.compile"
        )
    raise AttributeError(f"module 'cuvilc.api' has no attribute {name!r}")


assert set(_OPTIONS) <= {f.name for f in fields(BuildRequest)}
