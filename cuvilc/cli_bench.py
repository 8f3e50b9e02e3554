"""`cuvilc bench`: how fast a package runs here."""

from __future__ import annotations

import json as json_text
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from cuvilc.cli_files import check_replaceable, write_file
from cuvilc.cli_options import (
    JsonOption,
    PackageArgument,
    QuietOption,
    SizesOption,
    ThreadsOption,
    UseOption,
    check_sizes,
    read_sizes,
)
from cuvilc.cli_output import Output, table
from cuvilc.cli_text import bytes_text, layer_text, time_text
from cuvilc.codes_runtime import NO_MEMORY, REFUSED_DATA, WRONG_SHAPE
from cuvilc.diagnostics import CuvilError, fail

_LEAST_RUNS = 3
_TRACE = (b'{"displayTimeUnit"', "a timeline of `cuvilc bench --trace`")  # as chrome_trace begins
_WARM_UP_S = 0.1
_RETRIED = (WRONG_SHAPE, REFUSED_DATA)  # what other random inputs may cure
_BATCH = 1  # what an open first axis is run with
_OTHERS = (16, 64, 256, 1024)  # and other open axes: the first size that the model accepts

Seconds = Annotated[
    float, typer.Option("--seconds", min=0.0, metavar="S", help="How long to measure.")
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="OUT.json", help="Timeline of one run, for ui.perfetto.dev."),
]
Profile = Annotated[bool, typer.Option("--profile", help="Time of each kernel.")]


def bench(
    package: PackageArgument,
    dim: SizesOption,
    threads: ThreadsOption = None,
    use: UseOption = "",
    seconds: Seconds = 3.0,
    trace: Trace = None,
    profile: Profile = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure how long a run of a package takes.

    Inputs are random. Sizes not given by --dim are 1 on the first axis of an input, and on others
    the first of 16, 64, 256, 1024 that the model accepts.

    \b
      cuvilc bench resnet18.cuvil --threads 2
      cuvilc bench bert.cuvil --dim batch=8 --dim seq=128
      cuvilc bench net.cuvil --profile          which kernels the time goes to
      cuvilc bench net.cuvil --trace out.json   a timeline for ui.perfetto.dev
    """
    from cuvilc.artifact import input_symbols, validate  # noqa: PLC0415
    from cuvilc.open_package import open_package, with_adapter  # noqa: PLC0415

    out = Output(json, quiet)
    given = read_sizes(dim)
    if trace is not None:
        check_replaceable(trace, *_TRACE)
    model = open_package(package, threads=threads)
    if use:
        model = with_adapter(model, use)
    # To run a package takes its library alone, the figures take these too.
    validate(model.metadata, image=package.is_file())
    check_sizes(given, input_symbols(model.metadata))
    sizes, feeds = accepted(model, given)
    result = _measured(package, model, sizes, feeds, seconds)
    result["kernels"] = kernel_times(model, feeds, sizes) if profile else []
    result["trace"] = str(trace) if trace else None
    if trace is not None:
        _write_trace(trace, chrome_trace(model.trace(feeds), package.name))
    if json:
        out.data(result)
    else:
        _show(result, out)


def _measured(
    package: Path, model: Any, sizes: dict[str, int], feeds: Any, seconds: float
) -> dict[str, Any]:
    """Times and memory, with what they hold for."""
    threads = model.threads or len(os.sched_getaffinity(0))
    return {
        "package": str(package),
        "level": model.level,
        "threads": threads,
        "sizes": sizes,
        **statistics(measure(model, feeds, seconds)),
        "memory": memory(model.metadata, sizes, threads),
    }


def _write_trace(path: Path, trace: dict[str, Any]) -> None:
    def write(file: BinaryIO) -> None:
        file.write(json_text.dumps(trace).encode())

    write_file(path, write, *_TRACE)


def accepted(model: Any, given: dict[str, int]) -> tuple[dict[str, int], Any]:
    """Sizes, and random inputs of them, that the model accepts.

    Integers may have to be smaller than a table, images larger than a window; the error of the last
    try says what is wrong otherwise.
    """
    from cuvilc.artifact import input_symbols  # noqa: PLC0415
    from cuvilc.verify import random_inputs  # noqa: PLC0415

    problem: CuvilError | None = None
    for sizes, below in _trials(input_symbols(model.metadata), given):
        try:
            feeds = random_inputs(model.metadata, sizes, 0, below)
        except (MemoryError, ValueError) as error:  # more than memory, than sizes
            raise fail(NO_MEMORY, f"no memory for inputs of these sizes: {error}") from error
        try:
            model.run(feeds)
        except CuvilError as error:
            if error.diagnostics[0].code not in _RETRIED:
                raise
            problem = problem or error
        else:
            return sizes, feeds
    assert problem is not None
    raise problem


def _trials(symbols: Any, given: dict[str, int]) -> Iterator[tuple[dict[str, int], int]]:
    """Sizes to try, each with the limit of random integers."""
    seen = []
    for other in _OTHERS:
        sizes = {}
        for s in symbols:
            wanted = _BATCH if s["axis"] == 0 else other
            wanted = wanted if s["hi"] is None else min(wanted, s["hi"])
            sizes[s["name"]] = given.get(s["name"], max(wanted, s["lo"]))
        if sizes not in seen:
            seen.append(sizes)
            yield from ((sizes, below) for below in (8, 2, 1))


def measure(model: Any, feeds: Any, seconds: float) -> list[int]:
    """Nanoseconds of each run, after a warm-up, into outputs that are allocated once."""
    out = model.run(feeds)
    run = getattr(model, "model", model).run  # without the guard, which costs a microsecond
    end = time.perf_counter() + min(_WARM_UP_S, seconds)
    while time.perf_counter() < end:
        run(feeds, out)
    times: list[int] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST_RUNS or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        run(feeds, out)
        times.append(time.perf_counter_ns() - begin)
    return times


def statistics(times: Sequence[int]) -> dict[str, Any]:
    """Microseconds; p99 is the time that 99 % of the runs stay within."""
    ordered = sorted(times)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1000

    mean = sum(ordered) / len(ordered) / 1000
    return {
        "runs": len(ordered),
        "min_us": ordered[0] / 1000,
        "median_us": at(0.5),
        "mean_us": mean,
        "p99_us": at(0.99),
    }


def memory(metadata: Any, sizes: dict[str, int], threads: int) -> dict[str, int]:
    """Bytes of one context at these sizes, of what the model prepares when it is opened, and of the
    weights, which all processes share.
    """
    from cuvilc.inspect import amount  # noqa: PLC0415

    scratch = [amount(s, sizes) for s in metadata["memory"]["scratch_bytes"]]
    return {
        "arena_bytes": amount(metadata["memory"]["arena_bytes"], sizes),
        "scratch_bytes": threads * max(scratch, default=0),
        "prepared_bytes": metadata["memory"].get("prepared_bytes", 0),
        "weights_bytes": metadata["memory"].get("weights_bytes", 0),
    }


def kernel_times(model: Any, feeds: Any, sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Time of each kernel in one run (median of ten), with the rates that its work gives."""
    from cuvilc.inspect import amount  # noqa: PLC0415

    totals: dict[str, list[Any]] = {}
    for row in model.profile(feeds):
        entry = totals.setdefault(row.kernel, [0.0, 0, []])
        entry[0] += row.time_us
        entry[1] += 1
        entry[2] += [row.layer] if row.layer and row.layer not in entry[2] else []
    whole = sum(t for t, _, _ in totals.values()) or 1.0
    known = {k["name"]: k for k in model.metadata["kernels"]}
    rows = []
    for name, (time_us, steps, layers) in sorted(totals.items(), key=lambda item: -item[1][0]):
        facts = known.get(name, {})
        flops, moved = amount(facts.get("flops", 0), sizes), amount(facts.get("bytes", 0), sizes)
        rows.append(
            {
                "kernel": name, "schedule": facts.get("schedule", ""), "steps": steps,
                "time_us": time_us, "share": time_us / whole, "layers": layers,
                "gflops_per_s": flops / time_us / 1e3 if time_us else 0.0,
                "gb_per_s": moved / time_us / 1e3 if time_us else 0.0,
            }
        )  # fmt: skip
    return rows


def chrome_trace(events: Sequence[Any], name: str) -> dict[str, Any]:
    """The trace-event format that Perfetto and chrome://tracing read; times in microseconds."""
    start = min((e.begin_ns for e in events), default=0)
    head = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": name}}
    spans = [
        {
            "name": e.layer or e.kernel, "cat": "kernel", "ph": "X", "pid": 1, "tid": 1,
            "ts": (e.begin_ns - start) / 1000, "dur": (e.end_ns - e.begin_ns) / 1000,
            "args": {"kernel": e.kernel, "step": e.step, "threads": e.threads, "cost": e.cost},
        }
        for e in events
    ]  # fmt: skip
    return {"displayTimeUnit": "ns", "traceEvents": [head, *spans]}


def _show(result: dict[str, Any], out: Output) -> None:
    sizes = ", ".join(f"{n}={s}" for n, s in result["sizes"].items())
    threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
    place = ", ".join(x for x in (result["level"], threads, sizes) if x)
    out.text(f"{result['package']}: {place}")
    times = [f"{k} {time_text(result[f'{k}_us'])}" for k in ("min", "median", "p99")]
    out.text(f"  {'   '.join(times)}   ({result['runs']} runs)")
    used = result["memory"]
    kinds = ("arena", "scratch", *["prepared"] * bool(used["prepared_bytes"]), "weights")
    parts = [f"{k} {bytes_text(used[f'{k}_bytes'])}" for k in kinds]
    out.text(f"  {'   '.join(parts)}")
    if result["kernels"]:
        rows = table(
            "time", "share", "calls", "GFLOP/s", "GB/s", "kernel", "layers", right=range(5)
        )
        for k in result["kernels"]:
            layers, more = k["layers"][:2], " …" if len(k["layers"]) > 2 else ""
            rows.add_row(
                time_text(k["time_us"]), f"{k['share']:.1%}", str(k["steps"]),
                f"{k['gflops_per_s']:.1f}", f"{k['gb_per_s']:.1f}", k["kernel"],
                ", ".join(map(layer_text, layers)) + more,
            )  # fmt: skip
        out.draw(rows)
    if result["trace"]:
        out.text(f"  trace    {result['trace']} (open it in ui.perfetto.dev)")
