"""Pages of `cuvilc adapter inspect`: what is in an adapter, and where it attaches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from cuvilc.cli_output import Output, printable, table
from cuvilc.cli_text import bytes_text, count_text
from cuvilc.diagnostics import Diagnostic

_ROWS = 12


def show_adapters(out: Output, reports: list[dict[str, Any]], every: bool) -> None:
    """Reports of inspect_adapter, one below the other; `every`: all modules and layers."""
    for number, report in enumerate(reports):
        if number:
            out.text("")
        if report["format"] == "cuvla":
            _show_file(out, report, every)
            continue
        for line in _head(report):
            out.wrapped(printable(line))
        out.draw(_modules(report, every))
        hidden = len(report["modules"]) - _ROWS
        if hidden > 0 and not every:
            out.text(f"… {hidden} more modules, see --all")
        out.text("")
        for line in _graph(report, every):
            out.text(printable(line))


def _show_file(out: Output, report: dict[str, Any], every: bool) -> None:
    """A .cuvla file: its package is not at hand, so sizes are not known."""
    totals, found = report["totals"], report["modules"]
    lines = [
        f"{report['name']}  {report['path']}  {bytes_text(report['bytes'])}", "",
        "  a .cuvla file, for one package alone: `--base PACKAGE.cuvil` says whether it is yours",
        f"  package  {report['base']}, its fingerprint",
        f"  tensors  {report['sha256']}, the SHA-256 of those that it was made from",
        f"  rank     {', '.join(map(str, totals['ranks'])) or 'none'}",
        f"  totals   {totals['modules']} modules, {totals['weights']} weights",
    ]  # fmt: skip
    for line in lines:
        out.text(printable(line))
    rows = table("module", "change", "r", "weights", right=(2, 3))
    for m in found if every else found[:_ROWS]:
        ranks = ", ".join(map(str, m["ranks"])) or "–"
        rows.add_row(
            printable(m["path"]), ", ".join(m["changes"]), ranks, str(len(m["weights"]))
        )  # fmt: skip
    out.draw(rows)
    if len(found) > _ROWS and not every:
        out.text(f"… {len(found) - _ROWS} more modules, see --all")


def show_places(out: Output, places: dict[str, Any], every: bool) -> None:
    """A line for each site, then what is wrong."""
    found, left = places["attached"], places["left_over"]
    out.text("")
    for line in places["nothing_attaches"]:
        out.text(printable(line))
    what = f"{len(left)} left over" if left else "nothing is left over"
    some = f"{len(found)} parameter{'s attach' if len(found) != 1 else ' attaches'}"
    out.text(printable(f"{some} to {places['model']}, {what}"))
    if found:
        rows = table("module", "parameter", "weight", "shape", "outputs", "evidence")
        for site in found if every else found[:_ROWS]:
            start, size = site["outputs"]
            whole = size == site["shape"][site["out_axis"]]
            rows.add_row(
                printable(site["module"]), printable(site["parameter"]), printable(site["weight"]),
                _shape(site["shape"]), f"axis {site['out_axis']}"
                + ("" if whole else f", {start} to {start + size}"), printable(site["evidence"]),
            )  # fmt: skip
        out.draw(rows)
        if len(found) > _ROWS and not every:
            out.text(f"… {len(found) - _ROWS} more, see --all")
    rows = 0 if places["nothing_attaches"] and not found else _ROWS  # said already, once for all
    for problem in left if every else left[:rows]:
        out.text("")
        out.text(printable(Diagnostic(**problem).render()))
    if len(left) > rows and not every:
        out.text(f"… {len(left) - rows}{' more' * bool(rows)} left over, see --all")


def _head(report: dict[str, Any]) -> Iterator[str]:
    totals = report["totals"]
    name, path = report["name"], report["path"]
    yield f"{name}  {f'{path}  ' if path != name else ''}{bytes_text(totals['bytes'])}"
    yield ""
    yield f"  sha256   {report['sha256']}"
    ranks = ", ".join(map(str, totals["ranks"])) or "none"
    yield f"  rank     {ranks}"
    yield f"  alpha    {_value(report['lora_alpha'])}"
    yield f"  dropout  {report['lora_dropout']:g}"
    for name, value in report["graph_semantics"].items():
        if value:
            yield f"  {name}: {value}"
    for name, value in report["options"].items():
        yield f"  {name}: {_value(value)}"
    values = count_text(totals["parameters"])
    yield f"  totals   {totals['modules']} modules, {totals['tensors']} tensors, {values} values"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return str(value)


def _modules(report: dict[str, Any], every: bool) -> Any:
    rows = table(
        "module", "kind", "A", "B", "r", "alpha", "scale", "dtype", "size", "options",
        right=(4, 5, 6, 8),
    )  # fmt: skip
    found = report["modules"]
    for m in found if every else found[:_ROWS]:
        whole = [f"{n} {_shape(s)}" for n, s in m["replaced"].items()]
        also = [word for word in ("dora", "lora_bias") if m.get(word)]
        low_rank = "r" in m
        rows.add_row(
            printable(m["path"]), m["kind"], _shape(m["a"]) if low_rank else "–",
            _shape(m["b"]) if low_rank else "–", str(m["r"]) if low_rank else "–",
            f"{m['alpha']:g}" if low_rank else "–", f"{m['scale']:.4g}" if low_rank else "–",
            ", ".join(m["dtypes"]), bytes_text(m["bytes"]), printable(", ".join(also + whole)),
        )  # fmt: skip
    return rows


def _shape(sizes: list[int]) -> str:
    return "×".join(map(str, sizes)) or "1"


def _graph(report: dict[str, Any], every: bool) -> Iterator[str]:
    """Layer by layer; a run of layers that are alike is one."""
    modules = {m["path"]: m for m in report["modules"]}
    layers = [
        (layer, [_step(step, modules, report["lora_dropout"]) for step in steps])
        for layer, steps in groupby(report["graph"]["steps"], key=lambda s: s["layer"])
    ]
    yield "  input"
    for _, same in groupby(layers, key=lambda x: (bool(x[0]), x[1])):
        alike = list(same)
        for run in [[x] for x in alike] if every or not alike[0][0] else [alike]:
            first, last = run[0][0], run[-1][0]
            if first:
                yield f"  ├ {first}" + (f" … {last}  ({len(run)} alike)" if len(run) > 1 else "")
            bar = "  │   " if first else "  ├ "
            yield from (f"{bar}{line}" for line in run[0][1])


def _step(step: dict[str, Any], modules: dict[str, Any], dropout: float) -> str:
    """`attn.q_proj, attn.v_proj  r 8, alpha 16, dropout 0.1`"""
    parts = []
    found = [modules[p] for p in step["modules"]]
    for carried, same in groupby(found, key=lambda m: (m.get("r"), m.get("alpha"))):
        names = ", ".join(m["path"][len(step["layer"]) :].lstrip("._") or "·" for m in same)
        r, alpha = carried
        said = "replaced" if r is None else f"r {r}, alpha {alpha:g}, dropout {dropout:g}"
        parts.append(f"{names}  → {said}")
    return "; ".join(parts)
