"""What an adapter asks for, and which weights of the model claim to be it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cuvilc.adapter import Adapter, ModuleChange, Rows
from cuvilc.dialect import ir

from .lora_index import PACKED, Index, Reader, Weight
from .lora_names import Relation, ends_as, is_same_call, is_there, is_within, relate

Shape = tuple[int, ...]
_COUNTED = re.compile(r"_\d+(\.|$)")


@dataclass(frozen=True)
class Wanted:
    """One parameter of one module that an adapter changes.

    kind: "linear", "convolution", "embedding", or "" for a parameter that is replaced whole.
    shape: torch's, so [N, K] of a linear weight, however the base stores it. optional: a bias of
    B's, which is added to the base's bias, or to the output where the base has none.
    """

    adapter: str
    place: str  # of the adapter
    change: ModuleChange
    parameter: str
    kind: str
    shape: Shape
    optional: bool = False

    @property
    def module(self) -> str:
        return self.change.path

    @property
    def name(self) -> str:
        return f"{self.module}.{self.parameter}" if self.module else self.parameter

    @property
    def matrices(self) -> tuple[Shape, ...]:
        """What the shape may be as outputs by inputs: a weight that is brought whole may be [K, N],
        as GPT-2's Conv1D has it.
        """
        whole = not self.kind and len(self.shape) == 2
        return tuple(dict.fromkeys((self.shape, self.shape[::-1]))) if whole else (self.shape,)


def wanted(adapters: Sequence[Adapter]) -> Iterator[Wanted]:
    """Every parameter that the adapters' changes name."""
    for adapter in adapters:
        for change in adapter.changes:
            for facts in _parameters(change):
                yield Wanted(adapter.name, str(adapter.place), change, *facts)


def _parameters(change: ModuleChange) -> Iterator[tuple[str, str, Shape, bool]]:
    """(name, kind, shape, optional) of each parameter that a change names."""
    low = change.low_rank
    if change.rows is not None:
        yield "weight", "", change.rows.values.shape, False
    if low is not None:
        n, inputs = low.b.shape[0], low.a.shape[1:]
        shape = (inputs[0], n) if change.kind == "embedding" else (n, *inputs)
        yield "weight", change.kind, shape, False
        if low.bias is not None and "bias" not in change.replaced:
            yield "bias", "", low.bias.shape, True
    for parameter, array in change.replaced.items():
        if parameter != "weight" or low is None:
            yield parameter, "", array.shape, False


@dataclass(frozen=True)
class Place:
    """Where in a weight a module's outputs lie."""

    axis: int
    start: int
    size: int


@dataclass(frozen=True)
class Claim:
    """One use of a weight that may be a parameter of the module `path`.

    named: by the weight's own name; otherwise by the node that uses it.
    """

    path: str
    weight: Weight
    reader: Reader
    evidence: str
    named: bool


@dataclass
class Claims:
    """All claims by parameter and module; `disowned`: names of weights that only other modules
    use, which therefore prove nothing."""

    index: Index
    by_path: dict[str, dict[str, list[Claim]]] = field(default_factory=dict)
    by_end: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    disowned: dict[str, list[Claim]] = field(default_factory=lambda: defaultdict(list))
    # Keys of the weights whose names are of a module, by module and parameter.
    named: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    counted: dict[str, list[str]] = field(default_factory=dict)  # paths like those of further calls
    alike: set[str] = field(default_factory=set)  # adapters that spell modules as the model does
    # Modules by the names of what a scope's nodes read, of those that end as the scope does.
    spelled: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.named = self.index.named()
        for weight in self.index.weights:
            for reader in weight.readers:
                ends = {p for _, p, _ in reader.paths if p and ends_as(p, reader.scope)}
                if ends:
                    self.spelled[reader.scope] |= ends
        for weight in self.index.weights:
            for reader in weight.readers:
                for parameter, claim in self._of(weight, reader):
                    self._add(parameter, claim)
        for parameter, paths in self.by_path.items():
            self.counted[parameter] = sorted(p for p in paths if _COUNTED.search(p))

    def _add(self, parameter: str, claim: Claim) -> None:
        self.by_path.setdefault(parameter, {}).setdefault(claim.path, []).append(claim)
        ends = self.by_end.setdefault(parameter, {})
        ends.setdefault(claim.path.rpartition(".")[2], set()).add(claim.path)

    def _of(self, weight: Weight, reader: Reader) -> Iterator[tuple[str, Claim]]:
        for name, path, parameter in reader.paths:
            claim = Claim(path, weight, reader, f"the name `{name}`", True)
            if self.agree(path, reader.scope, parameter, weight.key):
                yield parameter, claim
            else:
                self.disowned[parameter].append(claim)
        role = "weight" if reader.role == PACKED else reader.role
        own = [path for _, path, parameter in reader.paths if parameter == role]
        again = any(self.same_call(path, reader.scope, role, weight.key) for path in own)
        if reader.scope and role and not again and not _made_here(weight, reader):
            evidence = f"node `{reader.label}`"
            yield role, Claim(reader.scope, weight, reader, evidence, False)

    def agree(self, path: str, scope: str, parameter: str = "", key: str = "") -> bool:
        """Whether a weight named as `path`'s may be read by a node of the module `scope`."""
        if not scope or is_within(path, scope) or is_within(scope, path):
            return True
        if self.spelled.get(scope) == {path}:
            return True
        return self.same_call(path, scope, parameter, key) or relate(path, scope) is not None

    def same_call(self, path: str, scope: str, parameter: str = "", key: str = "") -> bool:
        """Whether `scope` is another call of module `path`, and not a module of its own.

        A module of that name may be there besides: then nodes of both stand in one scope. What
        such a node reads is the other's where the name's own module has another weight than `key`.
        """
        if not is_same_call(path, scope):
            return False
        homonyms = self._homonyms(scope)
        own = [self.named[name].get(parameter, set()) for name in homonyms]
        return not homonyms or any(keys and key and key not in keys for keys in own)

    def _homonyms(self, scope: str) -> tuple[str, ...]:
        """Modules by the names of weights that a scope may be."""
        if scope not in self._known:
            self._known[scope] = tuple(n for n in self.named if relate(n, scope) is not None)
        return self._known[scope]

    def related(self, want: Wanted) -> list[tuple[Relation, str]]:
        """Modules that the wanted one may be, the best first."""
        paths = self.by_end.get(want.parameter, {}).get(want.module.rpartition(".")[2], ())
        found = [(r, path) for path in paths if (r := self._relate(want, path)) is not None]
        mine = [s for s, own in self.spelled.items() if own == {want.module} and s != want.module]
        if want.module not in paths:  # its weight has no name, but what else its nodes read does
            exact = relate(want.module, want.module)
            claimed = self.by_path.get(want.parameter, {})
            found += [(exact, scope) for scope in mine if exact and scope in claimed]
        return sorted(found, key=lambda pair: (pair[0].order, pair[1]))

    def _relate(self, want: Wanted, path: str) -> Relation | None:
        """As `relate`, of a module of the model; None too where weights' names tell that it is
        another: some begin with what the wanted path would lose, or the adapter's other modules
        are spelled as the model's. (A node's name may leave parts of a path out.)
        """
        relation = relate(want.module, path)
        if relation is None or path not in self.named:
            return relation
        moved = relation.moves and want.adapter in self.alike
        return None if moved or is_there(relation.dropped, self.named) else relation

    def is_of_homonym(self, want: Wanted, claim: Claim) -> bool:
        """Whether a node's name ends as the wanted module's, yet what the node's module reads has
        the name of another that ends so too.
        """
        own = () if claim.named else self.spelled.get(claim.path, ())
        if not own or want.module in own:
            return False
        return want.module in self.named or all(self._relate(want, p) is None for p in own)

    def spelling(self, path: str) -> str:
        """A module's path as names spell it, where the exporter left containers out of `path`."""
        own = self.spelled.get(path, set()) - self.by_path.get("weight", {}).keys()
        return min(own) if len(own) == 1 and path not in self.named else path

    def counted_beside(self, parameter: str, path: str) -> list[Claim]:
        """The claims of scopes that are called as `path` is, but for a number."""
        claims = self.by_path.get(parameter, {})
        beside = [p for p in self.counted.get(parameter, ()) if is_same_call(path, p)]
        return [c for p in beside for c in claims[p] if not c.named]

    def at(self, parameter: str, path: str) -> list[Claim]:
        """The claims of module `path`, of its further calls too."""
        claims = self.by_path.get(parameter, {})
        own = self._without_calls(parameter, path)
        first = list(own)
        for other in self.counted.get(parameter, ()):
            if not is_same_call(path, other):
                continue
            again = claims[other]
            if not self.same_call(path, other):  # a module of its own: without what it keeps
                kept = self._without_calls(parameter, other)
                again = [c for c in again if c not in kept]
            own += [c for c in again if self._is_among(c, first)]
        return own

    def _without_calls(self, parameter: str, path: str) -> list[Claim]:
        """A module's claims less those that are further calls of another, `fc` for `fc_1`: the
        other has the same weight, and this one has one of its own or is in no weight's name.
        """
        claims = self.by_path.get(parameter, {})
        own = list(claims.get(path, ()))
        if path not in self.counted.get(parameter, ()) or any(c.named for c in own):
            return own
        others = [c for p in claims if is_same_call(p, path) for c in claims[p]]
        left = [c for c in own if not self._is_among(c, others)]
        return own if self._homonyms(path) and not left else left

    def _is_among(self, claim: Claim, others: list[Claim]) -> bool:
        """Whether the claim is to the weight of one of these, or to a copy of it."""
        keys = {c.weight.key for c in others}
        return claim.weight.key in keys or self._equal(claim, others)

    def _equal(self, claim: Claim, own: list[Claim]) -> bool:
        """Whether a weight is another copy of one of these, perhaps turned: equal, and not all one
        number.
        """
        mine = self.index.array(claim.weight)
        if mine is None or mine.size == 0 or (mine == mine.flat[0]).all():
            return False
        for other in own:
            theirs = self.index.array(other.weight)
            if theirs is not None and theirs.ndim == 2 and other.reader.axis != claim.reader.axis:
                theirs = theirs.T
            if theirs is not None and theirs.shape == mine.shape and (theirs == mine).all():
                return True
        return False

    def disowned_by(self, want: Wanted) -> list[Claim]:
        """Weights of the wanted name that only other modules' nodes read."""
        claims = self.disowned.get(want.parameter, ())
        return [c for c in claims if relate(want.module, c.path) is not None]

    def module_of(self, want: Wanted) -> str:
        """The module of the model that the wanted one is, by any of its parameters; "" if none."""
        end = want.module.rpartition(".")[2]
        paths = {p for ends in self.by_end.values() for p in ends.get(end, ())}
        related = [(r.order, p) for p in paths if (r := self._relate(want, p))]
        return min(related)[1] if related else ""

    def one_weight(self, claims: list[Claim]) -> list[Claim]:
        """Those to one weight and its copies; none where claims to others are as good."""
        first = next((c for c in claims if c.named), claims[0] if claims else None)
        own = [c for c in claims if first and self._is_among(c, [first])]
        named = any(c.named for c in own)
        return own if not any(c.named or not named for c in claims if c not in own) else []

    @cached_property
    def nameless(self) -> dict[Shape, list[Claim]]:
        """Uses of weights of which no name tells the module, nor that of their node, by the sizes
        of the weight in order.
        """
        found: dict[Shape, list[Claim]] = defaultdict(list)
        for weight in self.index.weights:
            for reader in weight.readers:
                if not reader.scope and not any(path for _, path, _ in reader.paths):
                    claim = Claim("", weight, reader, f"node `{reader.label}`", False)
                    found[tuple(sorted(weight.shape))].append(claim)
        return found

    @cached_property
    def modules(self) -> list[str]:
        """Every module that has a weight of any role, sorted."""
        return sorted({path for paths in self.by_path.values() for path in paths if path})


def others(claims: Claims, uses: Iterable[ir.Use]) -> tuple[str, ...]:
    """The modules that have a weight, and none that is read by one of `uses`; sorted."""
    taken = set(uses)
    paths = claims.by_path.get("weight", {})
    mine = {p for p, own in paths.items() if any(c.reader.use in taken for c in own)}
    return tuple(sorted(p for p in paths if p and p not in mine))


def _made_here(weight: Weight, reader: Reader) -> bool:
    """Whether the importer computed the constant, as scale and shift of a BatchNormalization."""
    own = f"{reader.label}.constant"
    stored = weight.quantised or reader.role == PACKED
    return not stored and (weight.key == own or weight.key.startswith(f"{own}."))


def find_place(want: Wanted, weight: Weight, reader: Reader) -> Place | str:
    """Where the module's outputs lie in the weight, or why it cannot be."""
    if want.kind and reader.kind != want.kind and (reader.kind or reader.role):
        return f"it is used as {_use(reader)}, the adapter's is {want.kind}"
    kind = want.kind or (reader.kind if want.parameter == "weight" else "")
    if want.change.rows is not None and want.parameter == "weight":
        return _of_rows(want.change.rows, weight, reader)
    if kind == "linear" and len(want.shape) == 2:
        return _linear(want, weight, reader)
    if kind == "embedding" and weight.shape == want.shape:
        return Place(1, 0, want.shape[1])
    if kind == "convolution" and weight.shape == want.shape:
        return Place(0, 0, want.shape[0])
    if not kind and [d for d in weight.shape if d != 1] == [d for d in want.shape if d != 1]:
        axis = max(reader.axis, 0)
        return Place(axis, 0, weight.shape[axis])
    return f"{list(weight.shape)} against the adapter's {list(want.shape)}"


def _use(reader: Reader) -> str:
    return f"{reader.kind or 'an operand of'} {reader.consumer.name.removeprefix('ai.')}"


def _of_rows(rows: Rows, weight: Weight, reader: Reader) -> Place | str:
    """A table [V, D], or a head's weight of V outputs."""
    last, width = max(rows.indices), rows.values.shape[1]
    matrix = reader.kind in ("embedding", "linear") and len(weight.shape) == 2
    if not matrix or reader.role == PACKED or reader.axis < 0:
        return f"it is used as {_use(reader)}, of which no rows can be replaced"
    outputs, others = weight.shape[reader.axis], weight.shape[1 - reader.axis]
    count, wide = (others, outputs) if reader.kind == "embedding" else (outputs, others)
    if wide == width and last < count:
        return Place(reader.axis, 0, outputs)
    return f"it has {count} rows of {wide}, the adapter's are of {width}, the last is row {last}"


def _linear(want: Wanted, weight: Weight, reader: Reader) -> Place | str:
    """Of two sizes: the axis of outputs is what the operator says, else what the sizes do."""
    n, k = want.shape
    if reader.role == PACKED:  # [N, K · bits / 8] bytes
        inputs = weight.shape[1] * 8 // ir.attrs(reader.consumer)["bits"]
        if (weight.shape[0], inputs) in want.matrices:
            return Place(0, 0, weight.shape[0])
        return f"it has {weight.shape[0]} outputs of {inputs} inputs, the adapter's {n} of {k}"
    if reader.axis < 0 and n == k:
        return f"{_use(reader)} does not tell which axis of {list(weight.shape)} holds the outputs"
    if len(weight.shape) != 2:
        return f"it has {list(weight.shape)}, the adapter's has {n} outputs of {k} inputs"
    certain = reader.axis >= 0
    for axis in [reader.axis] if certain else [0, 1]:
        sizes = (weight.shape[axis], weight.shape[1 - axis])
        if sizes in (want.matrices if certain else (want.shape,)):
            return Place(axis, 0, sizes[0])
    spelled = f"{list(weight.shape)}"
    if certain:
        spelled = f"{weight.shape[reader.axis]} outputs of {weight.shape[1 - reader.axis]} inputs"
    return f"it has {spelled}, the adapter's has {n} outputs of {k} inputs"
