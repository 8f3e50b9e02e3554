"""`--lora swap` in the program: the weights that adapters change become parameters."""

from __future__ import annotations

from collections.abc import Iterable

from cuvilc.diagnostics import define, fail
from cuvilc.dialect import ir
from cuvilc.dialect.ir import Program
from cuvilc.dialect.lora_sites import Site

NOT_EXCHANGEABLE = define(
    "CUV720",
    "a weight cannot be exchanged at run time",
    """\
`--lora swap` keeps the weights that adapters change apart from everything else, so that another
adapter can be put in their place while the package is loaded. This one is not there as such: it is
quantised, and its numbers and scales would both change.

Next step: build with `--lora fold`, which fits the scales anew, or leave the module out with
`--lora-modules`.
""",
)


def make_parameters(program: Program, sites: Iterable[Site]) -> int:
    """Every site's weight becomes an `ai.parameter` for the module's own uses; how many there are.

    Sites that share a value and its uses (a merged Q, K, V matrix) become one parameter of several
    parts. CUV720.
    """
    groups: dict[tuple[ir.Value, tuple[tuple[ir.Operation, int], ...]], list[Site]] = {}
    for site in sites:
        groups.setdefault((site.value, site.uses), []).append(site)
    with program:
        for (value, uses), group in groups.items():
            owner = ir.defining(value)
            if owner is None or owner.name != "ai.constant":
                raise fail(
                    NOT_EXCHANGEABLE,
                    f"the weight of `{group[0].module}` is not a constant of the model",
                    place=f"{program.name}: `{ir.source_name(uses[0][0]) if uses else ''}`",
                    evidence=owner.name if owner is not None else "an input",
                )
            group.sort(key=lambda s: s.start)
            parts = tuple((s.module, s.parameter, s.kind, s.start, s.size) for s in group)
            with ir.after(owner):
                made = ir.build(
                    "ai.parameter", **ir.attrs(owner), out_axis=group[0].out_axis, parts=parts
                )
            for operation, index in uses:
                operation.operands[index] = made
        ir.drop_unused(ir.body(program.function("main")))
    return len(groups)
