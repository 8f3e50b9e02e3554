"""Rows of an embedding that an adapter brings go into the weights that are tied to its table too.

PEFT does so where the model's configuration says that they are tied (utils/other.py,
set_additional_trainable_modules, 0.21), unless the adapter has rows of its own for one of them. A
graph does not say it: what has the table's values is tied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cuvilc.adapter import Adapter, ModuleChange
from cuvilc.dialect.lora_values import is_same_table

from .lora_claims import Claim, Claims, Place, Wanted, find_place
from .lora_index import Weight
from .lora_names import relate

Found = list[tuple[Claim, Place]]


def followers(
    claims: Claims, want: Wanted, found: Found, wants: Sequence[Wanted]
) -> Iterator[tuple[Wanted, Found, list[tuple[Claim, str]]]]:
    """The other modules that have the table: what the adapter thereby wants of each, where, and
    the uses that are none of a layer's. found: what was taken for the table.
    """
    if not found or any(claim.reader.kind != "embedding" for claim, _ in found):
        return
    first, mine = found[0][0], {claim.reader.use for claim, _ in found}
    others: dict[str, list[Claim]] = {}
    for weight in claims.index.weights:
        if _is_same(claims, first, weight):
            for reader in weight.readers:
                path = reader.scope or reader.label
                claim = Claim(path, weight, reader, f"its weight is `{want.module}`'s", True)
                if reader.use not in mine:
                    others.setdefault(path, []).append(claim)
    own = [w.module for w in wants if w.adapter == want.adapter and w.change.rows and w != want]
    if any(relate(module, path) is not None for module in own for path in others):
        return
    for path, tied in others.items():
        wanted = replace(want, change=replace(want.change, path=path))
        places = [(c, find_place(wanted, c.weight, c.reader)) for c in tied]
        fits = [(c, at) for c, at in places if isinstance(at, Place)]
        yield wanted, fits, [(c, at) for c, at in places if isinstance(at, str)]


def _is_same(claims: Claims, table: Claim, weight: Weight) -> bool:
    """Whether a weight is the table, or a copy of it, which may lie turned."""
    if weight.key == table.weight.key:
        return True
    return is_same_table(claims.index.array(table.weight), claims.index.array(weight))


def unmet(change: ModuleChange, paths: Sequence[str]) -> list[str]:
    """The modules that an adapter says are tied to this one, and are not among `paths`."""
    ends = change.rows.tied if change.rows else ()
    return [end for end in ends if not any(path.endswith(end) for path in paths)]


def with_followers(
    adapters: Sequence[Adapter], tied: Sequence[tuple[str, str, str]]
) -> tuple[Adapter, ...]:
    """The adapters with the changes that follow from others: (adapter, module, that module)."""
    made = []
    for adapter in adapters:
        by_path = {change.path: change for change in adapter.changes}
        more = [replace(by_path[m], path=path) for name, m, path in tied if name == adapter.name]
        made.append(replace(adapter, changes=(*adapter.changes, *more)) if more else adapter)
    return tuple(made)
