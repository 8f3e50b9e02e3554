"""What commands show of adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cuvilc.cli_output import Output, printable, table
from cuvilc.cli_text import bytes_text, count_text

_NAMES = 8


def adapter_lines(adapters: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each adapter of a package: its form, and what its weights lost by it at most."""
    for number, adapter in enumerate(adapters):
        head = f"  {'adapters' if number == 0 else '':<8} "
        ranks = ", ".join(map(str, adapter.get("ranks", ())))
        modules = len(adapter.get("modules", ()))
        line = f"{head}{adapter['name']}: {adapter['mode']}, {modules} modules"
        line += f", rank {ranks}" if ranks else ""
        worst = max((w["max_error"] for w in adapter.get("weights", ())), default=None)
        yield line if worst is None else f"{line}, rounding error up to {worst:.2g} of max |W|"


def room_lines(lora: dict[str, Any] | None) -> Iterator[str]:
    """A line about what adapters may change in a package, and the start of its fingerprint."""
    if lora:
        parts = {(p["module"], p["parameter"]) for w in lora["weights"] for p in w["parts"]}
        names = sorted({module.rpartition(".")[2] for module, _ in parts})
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        what = f"{len(parts)} parameter{'s' * (len(parts) != 1)}"
        yield (
            f"  lora     {lora['mode']}: adapters may change {what} of "
            f"{', '.join(names[:_NAMES])}{more}; fingerprint {lora['fingerprint'][:8]}"
        )


def weights_table(adapters: Sequence[dict[str, Any]]) -> Any:
    """A row for each weight with adapters in it; None where there is none."""
    weights = {w["name"]: w for a in adapters for w in a.get("weights", ())}
    if not weights:
        return None
    rows = table("weight", "stored as", "max error", "of max |W|", "of the change", right=(2, 3, 4))
    for name, w in weights.items():
        share = w["rms_error"] / w["delta_rms"] if w["delta_rms"] else 0.0
        rows.add_row(
            name, w["dtype"], f"{w['max_abs_error']:.2g}", f"{w['max_error']:.2g}", f"{share:.2g}"
        )
    return rows


def show_costs(costs: dict[str, Any], out: Output) -> None:
    """The modes side by side, as a dry run compares them, and the one that is recommended."""
    out.text(f"  adapters {', '.join(costs['adapters'])}")
    rows = table("--lora", "package", "memory", "FLOP a row", "more", "swap", right=range(1, 6))
    for mode, cost in costs["modes"].items():
        if "not_possible" in cost:
            rows.add_row(mode, "not possible", *["–"] * 4)
            continue
        swap = "build anew" if cost["swap_ms"] is None else f"{cost['swap_ms']:.3g} ms"
        swap = swap if cost["swap_ms"] != 0 else "none"
        rows.add_row(
            mode, f"+{bytes_text(cost['package_bytes'])}", f"+{bytes_text(cost['memory_bytes'])}",
            count_text(cost["row_flops"]), f"{cost['row_overhead']:.2%}", swap,
        )  # fmt: skip
    out.draw(rows)
    for mode, cost in costs["modes"].items():
        if "not_possible" in cost:
            why = cost["not_possible"]
            out.wrapped(printable(f"  {mode:<8} not possible ({why['code']}): {why['message']}"))
    out.text("  a row is what a product takes at once: a token of a text, a place of an image")
    out.wrapped(f"  recommended: --lora {costs['recommended']}: {costs['why']}")
