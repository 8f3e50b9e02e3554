"""Open a package of any target: machine code by `cuvil`, else the interpreter."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from cuvilc.artifact import LIBRARY_FILE, PROGRAM_FILE
from cuvilc.codes_runtime import EXTRA_MISSING, NO_ADAPTER
from cuvilc.diagnostics import CuvilError, Diagnostic, fail

_TENSORS = (".safetensors", ".bin", ".pt", ".ckpt")  # of adapters that nothing was built from yet


def open_package(
    path: str | PathLike[str], threads: int | None = None, level: str | None = None
) -> Any:
    """An object with `inputs`, `outputs`, `metadata`, `run(feeds)`, `trace(feeds)` and `close()`.

    What goes wrong, here or in a later run, is a CuvilError of cuvilc's.
    """
    path = Path(path)
    if (path / PROGRAM_FILE).is_file() and not (path / LIBRARY_FILE).exists():
        from cuvilc.targets.null_model import InterpretedModel  # noqa: PLC0415

        return InterpretedModel.open(path)
    return Guarded(path, threads, level, import_runtime())


def with_adapter(model: Any, adapter: str) -> Any:
    """The opened package with an adapter in use: its own by name, or a .cuvla file. CUV611/612."""
    if not hasattr(model, "use"):
        raise fail(NO_ADAPTER, f"the interpreter's packages take no adapters, such as `{adapter}`")
    if all(a.name != adapter for a in model.adapters):
        if model.lora_mode:
            _check_built(model, Path(adapter))
        if Path(adapter).suffix == ".cuvla":
            model.load_adapter(adapter, adapter)
    if model.lora_mode == "batch":
        return _BatchOfOne(model, adapter)
    model.use(adapter)
    return model


def _check_built(model: Any, path: Path) -> None:
    """Refuse an adapter as training left it, which is to be built for the package. CUV612."""
    what = "a folder" if path.is_dir() else "a file of tensors" * (path.suffix in _TENSORS)
    if not what or not path.exists():
        return
    source = path.parent if (path.parent / "adapter_config.json").is_file() else path
    made = f"{source.resolve().name.removesuffix('.safetensors')}.cuvla"
    own = ", ".join(a.name for a in model.adapters) or "none"
    raise fail(
        NO_ADAPTER, f"`{path}` is {what}: the package takes adapters that were built for it",
        place=model.place, notes=[f"its own, by name: {own}"],
        help=f"`cuvilc adapter build {source} --base {model.place} -o {made}`, then `--use {made}`",
    )  # fmt: skip


class _BatchOfOne:
    """A package built with `--lora batch`, all rows of every run with one adapter."""

    def __init__(self, model: Any, adapter: str) -> None:
        self._model, self._adapter = model, adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, feeds: Any, out: Any = None) -> Any:
        """As Model.run."""
        return self._model.run(feeds, out, adapters=self._rows(feeds))

    def trace(self, feeds: Any) -> Any:
        """As Model.trace."""
        return self._model.trace(feeds, adapters=self._rows(feeds))

    def profile(self, feeds: Any, runs: int = 10) -> Any:
        """As Model.profile."""
        return self._model.profile(feeds, runs, adapters=self._rows(feeds))

    def _rows(self, feeds: Any) -> list[str]:
        return [self._adapter] * len(next(iter(feeds.values())))


def import_runtime() -> Any:
    """The module `cuvil`. CUV623 where it is not installed."""
    try:
        import cuvil  # noqa: PLC0415
    except ImportError as error:
        message = "the runtime `cuvil`, which runs packages, is not installed"
        raise fail(EXTRA_MISSING, message, help="pip install cuvil") from error
    return cuvil


class Guarded:
    """A cuvil.Model whose errors are the compiler's diagnostics, rendered in one place."""

    def __init__(self, path: Path, threads: int | None, level: str | None, cuvil: Any) -> None:
        self._error = cuvil.CuvilError
        self.model: Any = None
        self.model = self._guard(lambda: cuvil.load(path, threads=threads, level=level))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.model, name)
        if not callable(found):
            return found
        return lambda *args, **more: self._guard(lambda: found(*args, **more))

    def _guard(self, call: Any) -> Any:
        try:
            return call()
        except self._error as error:
            raise as_diagnostic(error) from error


def as_diagnostic(error: Any) -> CuvilError:
    """A cuvil.CuvilError as cuvilc's: same code, message, place and help."""
    return CuvilError(Diagnostic(error.code, error.message, place=error.place, help=error.help))
