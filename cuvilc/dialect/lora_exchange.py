"""`--lora swap` in the program: the weights that adapters change become parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cuvilc.diagnostics import fail
from cuvilc.dialect import ir
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.lora_added import products
from cuvilc.dialect.lora_biases import base_biases
from cuvilc.dialect.lora_codes import NOT_EXCHANGEABLE
from cuvilc.dialect.lora_sites import Site
from cuvilc.dialect.lora_values import is_same_table
from cuvilc.dialect.types import numpy_dtype


def is_exchangeable(site: Site) -> bool:
    """Whether the site's weight is a constant of floats: a tensor, or one number in every place."""
    owner, t = ir.defining(site.value), ir.type_of(site.value)
    stored = owner is not None and owner.name in ir.CONSTANTS
    return stored and t.is_float and t.is_static


def tied(program: Program, sites: Sequence[Site]) -> dict[str, list[str]]:
    """By embedding's module, what else has its table, or a copy of it that may lie turned: modules
    of sites, and nodes that read it for none. For weights before they become parameters.
    """
    found: dict[str, list[str]] = {}
    with program:
        homes = {use: site.module for site in sites for use in site.uses}
        every = [o.results[0] for o in ir.walk(ir.body(program.function("main")))
                 if o.name == "ai.constant"]  # fmt: skip
        for site in sites:
            if site.kind == "embedding" and is_exchangeable(site):
                same = [value for value in every if _is_same(program, site.value, value)]
                reads = [use for value in same for use in ir.uses(value)]
                others = [homes.get(r) or _reader(program, r) for r in reads if r not in site.uses]
                if others:
                    found[site.module] = sorted(set(others))
    return found


def _reader(program: Program, use: ir.Use) -> str:
    """The module, or else the node, that reads a weight."""
    name = next((ir.source_name(o) for o, _ in products(use)), "")
    return program.scopes.get(name) or name


def _is_same(program: Program, table: Value, other: Value) -> bool:
    if table == other:
        return True
    return is_same_table(program.constant_array(table), program.constant_array(other))


def make_parameters(program: Program, sites: Iterable[Site], batched: bool = False) -> int:
    """Every site's weight becomes an `ai.parameter` for the module's own uses; how many there are.
    batched: for `--lora batch`.

    Sites that share a value and its uses (a merged Q, K, V matrix) become one parameter of several
    parts. A cast that stands between a weight and its use is done now. CUV760.
    """
    groups: dict[tuple[Value, tuple[ir.Use, ...]], list[Site]] = {}
    with program:
        for site in sites:
            if not is_exchangeable(site):
                raise _not_exchangeable(program, site)
            groups.setdefault((site.value, site.uses), []).append(site)
        for (value, uses), group in _stored(program, groups):
            group.sort(key=lambda s: s.start)
            parts = tuple((s.module, s.parameter, s.kind, s.start, s.size) for s in group)
            biases = base_biases(program, group) if batched else ()
            more = {"batched": batched, "biases": biases}
            casts = [u for u in uses if u[0].name == "ai.cast"]
            for use in casts:
                _widened(program, value, use[0], group[0].out_axis, parts, more)
            if rest := [u for u in uses if u not in casts]:
                _parameter(value, rest, group[0].out_axis, parts, more)
        ir.drop_unused(ir.body(program.function("main")))
    return len(groups)


def _stored(
    program: Program, groups: Mapping[tuple[Value, tuple[ir.Use, ...]], list[Site]]
) -> Iterator[tuple[tuple[Value, tuple[ir.Use, ...]], list[Site]]]:
    """The groups with every value an `ai.constant`: a bias of zeros is an `ai.full` till here."""
    for (value, uses), group in groups.items():
        owner = ir.defining(value)
        assert owner is not None
        if owner.name == "ai.full":
            array = np.ascontiguousarray(program.constant_array(value))
            site = group[0]
            with ir.after(owner):
                held = ir.constant(program, array, f"{site.module}.{site.parameter}")
            for operation, index in uses:
                operation.operands[index] = held
            value = held
        yield (value, uses), group


def _parameter(
    value: Value, uses: Iterable[ir.Use], out_axis: int, parts: tuple[object, ...],
    more: Mapping[str, Any],
) -> None:  # fmt: skip
    owner = ir.defining(value)
    assert owner is not None
    with ir.after(owner):
        made = ir.build("ai.parameter", **ir.attrs(owner), out_axis=out_axis, parts=parts, **more)
    for operation, index in uses:
        operation.operands[index] = made


def _widened(
    program: Program, value: Value, cast: Operation, out_axis: int, parts: tuple[object, ...],
    more: Mapping[str, Any],
) -> None:  # fmt: skip
    """The cast's result as a parameter: else it would be done in every run."""
    array = program.constant_array(value)
    owner = ir.defining(value)
    assert array is not None and owner is not None
    dtype = ir.attrs(cast)["dtype"]
    key = f"{ir.attrs(owner)['key']}.{dtype}"
    with ir.after(owner):
        held = ir.constant(program, np.asarray(array).astype(numpy_dtype(dtype)), key)
    users = [(use.owner.operation, use.operand_number) for use in cast.results[0].uses]
    _parameter(held, users, out_axis, parts, more)


def _not_exchangeable(program: Program, site: Site) -> Exception:
    owner = ir.defining(site.value)
    return fail(
        NOT_EXCHANGEABLE,
        f"the {site.parameter} of `{site.module}` is not a constant of floats",
        place=f"{program.name}: `{ir.source_name(site.uses[0][0]) if site.uses else site.module}`",
        evidence=f"{owner.name if owner is not None else 'an input'}: {ir.type_of(site.value)}",
    )
