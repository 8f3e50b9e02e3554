"""Index arithmetic that several lowering facets share. Extents are ints or index expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Index = Any
Group = tuple[list[int], list[int]]  # positions in the source, positions in the destination


def same(a: Any, b: Any) -> bool:
    """Whether two extents are surely equal: equal ints, or the same expression."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def flatten(index: Sequence[Index], extents: Sequence[Any]) -> Index:
    """Row-major position of `index`."""
    flat: Index = 0
    for i, n in zip(index, extents, strict=True):
        flat = flat * n + i
    return flat


def unflatten(k: Any, flat: Index, extents: Sequence[Any]) -> tuple[Index, ...]:
    """Inverse of flatten."""
    index: list[Index] = []
    for n in reversed(extents[1:]):
        index.append(k.mod(flat, n))
        flat = k.floordiv(flat, n)
    return tuple(reversed([*index, flat])) if extents else ()


def regroup(source: Sequence[Any], target: Sequence[Any]) -> list[Group]:
    """Split a reshape into independent parts, each of equal element count, as small as provable.

    Leading and trailing parts are matched while extents are equal or static; the rest is one part.
    """
    rest = (list(range(len(source))), list(range(len(target))))
    groups: list[Group] = []
    for backwards in (False, True):
        while part := _next_part(source, target, rest, backwards):
            groups.append(part)
            rest = ([p for p in rest[0] if p not in part[0]],
                    [q for q in rest[1] if q not in part[1]])  # fmt: skip
    return [*groups, rest] if rest[0] or rest[1] else groups


def _next_part(
    source: Sequence[Any], target: Sequence[Any], rest: Group, backwards: bool
) -> Group | None:
    left, right = (list(reversed(side)) if backwards else side for side in rest)
    if not left or not right:
        return None
    if same(source[left[0]], target[right[0]]):
        return [left[0]], [right[0]]
    p = q = 0
    a = b = 1
    while a != b or not (p and q):
        side, extents, at = (left, source, p) if a <= b else (right, target, q)
        if at == len(side) or not isinstance(extents[side[at]], int) or extents[side[at]] == 0:
            return None
        if a <= b:
            a, p = a * extents[side[at]], p + 1
        else:
            b, q = b * extents[side[at]], q + 1
        if a == b and not q:
            return None
    return sorted(left[:p]), sorted(right[:q])


def reshape_index(
    k: Any, index: Sequence[Index], source: Sequence[Any], target: Sequence[Any]
) -> tuple[Index, ...]:
    """Index into a tensor of extents `source` of the element at `index` of its reshape `target`."""
    found: list[Index] = [0] * len(source)
    for mine, theirs in regroup(source, target):
        flat = flatten([index[q] for q in theirs], [target[q] for q in theirs])
        split = unflatten(k, flat, [source[p] for p in mine])
        for p, i in zip(mine, split, strict=True):
            found[p] = i
    return tuple(found)


def put(index: Sequence[Index], axis: int, value: Index) -> tuple[Index, ...]:
    """`index` with one position replaced."""
    return (*index[:axis], value, *index[axis + 1 :])


def all_of(k: Any, conditions: Sequence[Any]) -> Any:
    """The conjunction; None where there is nothing to check."""
    result = None
    for condition in conditions:
        result = condition if result is None else k.both(result, condition)
    return result


def guarded(k: Any, conditions: Sequence[Any], load: Callable[[], Any], value: Any) -> Any:
    """k.guard over all the conditions; load() itself when there are none."""
    condition = all_of(k, conditions)
    return load() if condition is None else k.guard(condition, load, value)


def as_index(k: Any, value: Any) -> Any:
    """An int as an index expression, for k.select, k.max and k.min."""
    return k.value_of_index(value, "int64")


def wrapped(k: Any, value: Any, extent: Any) -> Any:
    """A model's index value: negative ones count from the end; beyond the range is a fault."""
    i = k.index(value)
    i = k.select(k.lt(i, 0), i + extent, i)
    k.fault_unless(k.both(k.ge(i, 0), k.lt(i, extent)), "index")
    return k.clamp_index(i, extent)
