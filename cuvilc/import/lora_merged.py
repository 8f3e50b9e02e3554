"""Q, K and V in one matrix: which part is a module's, by what the attention makes of it.

Optimisers and exporters merge the three projections (`com.microsoft.Attention`, packed
GroupQueryAttention). Their product is then cut along its last axis, and each cut arrives at
`ai.attention` as queries, keys or values; the module before or behind tells the layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from cuvilc.dialect import ir

from .lora_claims import Claim, Claims, Place, Wanted
from .lora_index import Reader, Weight
from .lora_names import relate
from .lora_semantics import projection

_OPERANDS = ("q", "k", "v")  # of ai.attention
# Modules around a projection that are no layer of their own: attention.self.query beside
# attention.output.dense.
_BETWEEN = ("self", "output")
_FAR = 40  # operations


def merged(claims: Claims, want: Wanted) -> list[tuple[Claim, Place]]:
    """The part of a merged weight that a projection is; nothing where none, or several, fit."""
    name = want.module.rpartition(".")[2]
    prefix, held = projection(name)
    if prefix or held not in _OPERANDS or want.kind != "linear" or want.parameter != "weight":
        return []
    role = _OPERANDS.index(held)
    n, k = want.shape
    found = []
    for weight in claims.index.weights:
        for reader in weight.readers:
            if not _holds_more(weight, reader, n, k):
                continue
            parts = [p for p in _parts(reader) if p[0] == role]
            if len(parts) != 1 or parts[0][2] != n or not _same_layer(claims, want, reader):
                continue
            evidence = f"its outputs {parts[0][1]} to {parts[0][1] + n} are what `{name}` gives"
            path = reader.scope or reader.label
            claim = Claim(path, weight, reader, f"node `{reader.label}`, {evidence}", True)
            found.append((claim, Place(reader.axis, parts[0][1], n)))
    return found


def _holds_more(weight: Weight, reader: Reader, n: int, k: int) -> bool:
    """Whether a weight of a product has K inputs and more than N outputs."""
    if reader.kind != "linear" or reader.axis < 0 or len(weight.shape) != 2:
        return False
    return weight.shape[reader.axis] > n and weight.shape[1 - reader.axis] == k


def _parts(reader: Reader) -> Iterator[tuple[int, int, int]]:
    """(operand of ai.attention, start, size) of each cut of the product's outputs."""
    value = reader.consumer.results[0]
    for user in ir.users(value):
        if user.name == "ai.elemwise_add":
            value = user.results[0]
    for cut in ir.users(value):
        if cut.name != "ai.slice":
            continue
        facts, whole = ir.attrs(cut), ir.type_of(value).shape
        starts, sizes = facts["starts"], facts["sizes"]
        steps = all(step == 1 for step in facts["steps"])
        lead = all(s == 0 for s in starts[:-1]) and tuple(sizes[:-1]) == tuple(whole[:-1])
        operands = {i for i, _ in _arrivals(cut)}
        if steps and lead and len(operands) == 1 and isinstance(sizes[-1], int):
            yield operands.pop(), starts[-1], sizes[-1]


def _arrivals(operation: ir.Operation) -> Iterator[tuple[int, ir.Operation]]:
    """The attentions that a value reaches, and as which operand."""
    waiting, seen = [operation], {operation}
    while waiting and len(seen) < _FAR:
        for use in [u for r in waiting.pop().results for u in r.uses]:
            user = use.owner.operation
            if user.name == "ai.attention":
                yield int(use.operand_number), user
            elif user not in seen:
                seen.add(user)
                waiting.append(user)


def _same_layer(claims: Claims, want: Wanted, reader: Reader) -> bool:
    """Whether the product itself, or what the attention's result goes into, is of the layer."""
    layer = _layer(want.module)
    scopes = {_layer(reader.scope)} if "." in reader.scope else set()
    if not scopes:
        scopes = {_layer(s) for s in _behind(claims, reader)}
    return bool(layer) and any(relate(layer, scope) is not None for scope in scopes if scope)


def _layer(path: str) -> str:
    """`l.0.attention.self.query`: l.0.attention."""
    parts = path.split(".")[:-1]
    while parts and parts[-1] in _BETWEEN:
        parts.pop()
    return ".".join(parts)


def _behind(claims: Claims, reader: Reader) -> set[str]:
    """The modules whose weights the attention's result is multiplied by, the nearest alone."""
    scopes: set[str] = set()
    products = {
        r.consumer: r.scope for w in claims.index.weights for r in w.readers if r.kind == "linear"
    }  # fmt: skip
    seen = {attention for _, attention in _arrivals(reader.consumer)}
    waiting = list(seen)
    while waiting and len(seen) < _FAR:
        for user in [u for r in waiting.pop().results for u in ir.users(r)]:
            if user in products:
                scopes.add(products[user])
            elif user not in seen and user.name in ("ai.transpose", "ai.reshape", "ai.cast"):
                seen.add(user)
                waiting.append(user)
    return scopes
