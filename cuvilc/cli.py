"""argv → driver → exit code. Each command has its file cli_NAME.py; only these files print.

Loads nothing heavy: TVM, MLIR, onnx and NumPy come with the command that needs them, never for
--help.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cuvilc import (
    __version__,
    cli_adapter,
    cli_bench,
    cli_build,
    cli_explain,
    cli_inspect,
    cli_run,
    cli_verify,
)
from cuvilc.cli_options import BAD_OPTION
from cuvilc.cli_output import Output
from cuvilc.diagnostics import CuvilError, fail, internal_error

INTERRUPTED = 130
_TERMINATED = 143
_BROKEN_PIPE = 141

app = typer.Typer(
    name="cuvilc",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("build")(cli_build.build)
app.command("run")(cli_run.run)
app.command("bench")(cli_bench.bench)
app.command("verify")(cli_verify.verify)
app.command("inspect")(cli_inspect.inspect)
app.command("targets")(cli_explain.targets)
app.command("explain")(cli_explain.explain)
app.add_typer(cli_adapter.app, name="adapter")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"cuvilc {__version__}")
        raise typer.Exit


@app.callback()
def cuvilc(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compile a model ahead of time into a package that runs without any framework.

    \b
      cuvilc build resnet18.onnx              write resnet18.cuvil
      cuvilc run resnet18.cuvil --inputs in.npz
      cuvilc bench resnet18.cuvil             how fast it is here
      cuvilc verify resnet18.cuvil            whether it computes rightly here
      cuvilc inspect resnet18.cuvil           what is in it
      cuvilc adapter inspect ./sql-lora       what is in a LoRA adapter
      cuvilc explain CUV104                   what an error means, and what to do

    `cuvilc COMMAND --help` shows each command's options, with examples.

    \b
    Exit codes: 0 done, 1 the model or package is at fault, 2 usage, 3 our fault,
    130 interrupted.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code. Whatever happens, no traceback is shown."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    output = Output.of_arguments(arguments)
    try:
        with _unwinding():
            result = app(args=arguments or ["--help"], prog_name="cuvilc", standalone_mode=False)
        sys.stdout.flush()
        if not arguments:
            return 2
        return result if isinstance(result, int) else 0
    except CuvilError as error:
        output.errors(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        output.complain("interrupted; nothing was left half-written")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:
        return _report(error, arguments, output)


def command() -> None:
    """The installed command: runs `main` and leaves the process at once.

    Taking down Python with TVM and MLIR in it would last a fifth of a second; nothing is left to be
    done, as whatever was written is closed and temporary files are gone when `main` returns.
    """
    try:
        code: Any = main()
    except SystemExit as stop:  # SIGTERM, unwound
        code = stop.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _report(error: Exception, arguments: list[str], output: Output) -> int:
    """Wrong usage, or a fault of ours: either way as a diagnostic."""
    describe = getattr(error, "format_message", None)
    if describe is not None and hasattr(error, "exit_code"):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else _command_of(arguments)
        problem = fail(BAD_OPTION, describe() or "no command", help=f"see `{command} --help`")
    else:
        facts = {"command": " ".join(["cuvilc", *arguments]), "cuvilc": __version__}
        problem = internal_error(error, Path("cuvilc.crash.txt"), facts)
    output.errors(problem)
    return problem.exit_code


def _command_of(arguments: Sequence[str]) -> str:
    """The command that arguments ask for, where the parser does not say: `cuvilc adapter build`."""
    group: Any = typer.main.get_command(app)
    words = ["cuvilc"]
    for word in arguments:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
        words.append(word)
    return " ".join(words)


@contextmanager
def _unwinding() -> Iterator[None]:
    """SIGTERM unwinds like an exception, so that what was being written is removed."""

    def terminate(*_: Any) -> None:
        raise SystemExit(_TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread: whoever runs us there decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
