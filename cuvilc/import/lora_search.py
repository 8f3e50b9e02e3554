"""The search for the sites of adapters: which claim is believed, and what is wrong if none is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from cuvilc.adapter import Array
from cuvilc.dialect import ir
from cuvilc.dialect.lora_sites import Site

from . import lora_codes as codes
from . import lora_failures as failures
from . import lora_tied as tied
from .lora_base import Base, Values, holds
from .lora_claims import Claim, Claims, Place, Wanted, find_place
from .lora_dropped import Dropped
from .lora_index import Reader
from .lora_map import AdapterMap, Entry
from .lora_merged import merged
from .lora_names import Relation
from .lora_problems import Problems

_Found = list[tuple[Claim, Place]]
_SOUGHT = 12  # missing modules of which the nearest is looked for, which takes its time


@dataclass
class Option:
    """One module of the model that the wanted one may be, and its claims that fit."""

    relation: Relation
    path: str
    fits: _Found
    misfits: list[tuple[Claim, str]] = field(default_factory=list)


class Search:
    """One search; `problems` is everything that does not attach."""

    def __init__(self, claims: Claims, settings: AdapterMap, base: Base | None) -> None:
        self.claims, self.settings, self.base = claims, settings, base
        self.problems = Problems("")
        self.values: Values | None = None
        self.prefixes: set[tuple[str, str]] = set()  # of the modules that are certain
        self.weights: dict[str, _Found] = {}  # module -> what was taken for its weight
        self.dropped = Dropped(claims)
        self.tied: list[tuple[str, str, str]] = []  # as Sites has it
        self.taken: dict[tuple[str, ir.Operation, int], list[tuple[Wanted, Place]]] = {}

    def run(self, wants: Sequence[Wanted]) -> list[Site]:
        """The sites that are found, in the order of `wants`; what is not found is in `problems`.

        The program gets biases of zeros that an adapter brings and its graph lacks.
        """
        self.claims.alike = {w.adapter for w in wants if w.module and self._is_spelled(w)}
        for want in wants:
            options = self._options(want)
            if options and len(_best(options)) == 1 and options[0].fits:
                self.prefixes.add((options[0].relation.dropped, options[0].relation.added))
        # Weights before biases: a bias may be known by its module's weight alone.
        order = sorted(range(len(wants)), key=lambda i: wants[i].parameter != "weight")
        found = {i: self._attached(i, wants) for i in order}
        found |= self.dropped.insert()
        base = self.base
        attached = bool(wants) and not self.problems.found
        if base and attached and not any(base.find(want) for want in wants):
            self.problems.put(failures.unrelated_base(wants[0], base.path, [*base.tensors]))
        made: dict[tuple[str, str, ir.Value], Site] = {}
        for i in range(len(wants)):
            for site in found[i]:
                made.setdefault((site.module, site.parameter, site.value), site)
        return list(made.values())

    def _attached(self, number: int, wants: Sequence[Wanted]) -> list[Site]:
        """The sites of one want; of rows of a table also those of what is tied to it."""
        want = wants[number]
        found = self._find(number, want)
        sites = self._sites(want, found)
        if want.change.rows is None or not sites:
            return sites
        followers = list(tied.followers(self.claims, want, found, wants))
        for other, fits, misfits in followers:
            if misfits:
                self.problems.put(failures.misfit(other, misfits))
            sites += self._sites(other, fits)
            self.tied.append((want.adapter, want.module, other.module))
        if lost := tied.unmet(want.change, [other.module for other, _, _ in followers]):
            self.problems.put(failures.not_tied(want, lost))
        return sites

    # Where a parameter is.

    def _is_spelled(self, want: Wanted) -> bool:
        """Whether a weight's name is the parameter's own."""
        return want.parameter in self.claims.named.get(want.module, {})

    def _options(self, want: Wanted) -> list[Option]:
        """The modules that it may be, those whose weights fit first, then by their names.

        The one of its very name alone, if there is one, whether it fits or not.
        """
        options = []
        for relation, path in self.claims.related(want):
            if path != want.module and self._is_spelled(want):
                continue
            option = Option(relation, path, [])
            for claim in self.claims.at(want.parameter, path):
                if self.claims.is_of_homonym(want, claim):
                    continue
                at = find_place(want, claim.weight, claim.reader)
                if isinstance(at, Place):
                    option.fits.append((claim, at))
                else:
                    option.misfits.append((claim, at))
            options.append(option)
        return sorted(options, key=lambda o: (not o.fits, o.relation.order))

    def _find(self, number: int, want: Wanted) -> _Found:
        """The claims that are believed; nothing where that is an error, which is then noted, or a
        bias that is to be added.
        """
        entry = self.settings.get(want)
        if entry is not None:
            return self._mapped(want, entry)
        options = self._options(want)
        best = _best(options) if options and options[0].fits else []
        if len(best) > 1:
            agreed = [o for o in best if (o.relation.dropped, o.relation.added) in self.prefixes]
            best = agreed if len(agreed) == 1 else self._by_values(want, best)
        if len(best) == 1 and (rivals := self._rivals(want, best[0])):
            return self._among_rivals(want, best[0], rivals)
        if len(best) == 1:
            return self._one_weight(want, best[0])
        if best:
            claims = [c for o in best for c, _ in o.fits]
            why = f"{len(best)} modules of the model end so"
            self.problems.put(failures.ambiguous(want, why, claims))
            return []
        return self._otherwise(number, want, options)

    def _rivals(self, want: Wanted, option: Option) -> list[Claim]:
        """Other weights that fit as well where nodes alone tell the module, by the end of its path:
        the TorchScript exporter counts what ends alike, `proj` and `proj_1`, in order of calls.
        """
        if not option.relation.moves or any(c.named for c, _ in option.fits):
            return []
        found = self.claims.counted_beside(want.parameter, option.path)
        return [
            c for c in found
            if not any(c.weight.key == f.weight.key or self._copies(f, c) for f, _ in option.fits)
            and isinstance(find_place(want, c.weight, c.reader), Place)
            and not self.claims.is_of_homonym(want, c)
        ]  # fmt: skip

    def _among_rivals(self, want: Wanted, option: Option, rivals: list[Claim]) -> _Found:
        noted = len(self.problems.found)
        found = self._with_values(want)
        if not found and len(self.problems.found) == noted:
            why = f"modules that end in `{option.path}` were called without what they lie in"
            self.problems.put(failures.ambiguous(want, why, [option.fits[0][0], *rivals]))
        return found

    def _by_values(self, want: Wanted, best: list[Option]) -> list[Option]:
        """Those of several options whose values are the checkpoint's; all where none are."""
        tensor = self._tensor(want)
        if tensor is None:
            return best
        equal = [
            o for o in best if any(self._holds(want, c, at, tensor[1]) for c, at in o.fits)
        ]  # fmt: skip
        return equal or best

    def _one_weight(self, want: Wanted, option: Option) -> _Found:
        """Of the claims at a module: one weight and its copies, all their uses."""
        named = {c.weight.key for c, _ in option.fits if c.named}
        first = next((c for c, _ in option.fits if c.named), option.fits[0][0])
        taken: _Found = []
        left: _Found = []
        for claim, at in option.fits:
            same = claim.weight.key == first.weight.key or self._copies(first, claim)
            (taken if same else left).append((claim, at))
        contested = [c for c, _ in left if not named or c.weight.key in named]
        if contested:
            why = f"`{option.path}` holds several weights that fit"
            self.problems.put(failures.ambiguous(want, why, [first, *contested]))
            return []
        kinds = {c.reader.kind for c, _ in taken}
        mixed = len(kinds) > 1 and not want.kind and want.change.rows is None
        if mixed and want.parameter == "weight":
            why = f"the weight is used as {' and as '.join(sorted(k or 'other' for k in kinds))}"
            self.problems.put(failures.ambiguous(want, why, [c for c, _ in taken]))
            return []
        return taken

    def _copies(self, first: Claim, other: Claim) -> bool:
        """Whether two weights are equal, one perhaps turned: an exporter keeps a copy of each."""
        mine, theirs = (self.claims.index.array(c.weight) for c in (first, other))
        if mine is None or theirs is None or mine.size != theirs.size:
            return False
        turned = mine.ndim == 2 and first.reader.axis != other.reader.axis
        mine = mine.T if turned else mine
        return mine.shape == theirs.shape and bool((mine == theirs).all())

    # Where names do not help.

    def _mapped(self, want: Wanted, entry: Entry) -> _Found:
        """What the adapter map says."""
        found: _Found = []
        misfits: list[tuple[Claim, str]] = []
        for weight, reader in self.settings.readers(self.claims.index, want, entry):
            claim = Claim(want.module, weight, reader, f"the adapter map: `{entry.name}`", True)
            at = (
                self._part(want, claim, entry)
                if entry.outputs
                else find_place(want, weight, reader)
            )
            if isinstance(at, Place):
                found.append((claim, at))
            else:
                misfits.append((claim, at))
        if not found:
            self.problems.put(failures.misfit(want, misfits))
            return []
        return self._one_weight(want, Option(Relation(0, 0, "", ""), want.module, found))

    def _part(self, want: Wanted, claim: Claim, entry: Entry) -> Place | str:
        assert entry.outputs is not None
        reader, shape = claim.reader, claim.weight.shape
        start, size = entry.outputs
        matrix = next((m for m in want.matrices if m[0] == size), want.shape)
        if want.kind and reader.kind != want.kind:
            return f"it is used as {reader.kind or 'something else'}, the adapter's is {want.kind}"
        others = [d for i, d in enumerate(shape) if i != reader.axis]
        if reader.axis < 0 or others != list(matrix[1:]):
            return f"{list(shape)} against the adapter's {list(want.shape)}"
        if size != matrix[0] or start + size > shape[reader.axis]:
            whole = shape[reader.axis]
            return f"outputs {start} to {start + size} of {whole} for the adapter's {matrix[0]}"
        return Place(reader.axis, start, size)

    def _otherwise(self, number: int, want: Wanted, options: list[Option]) -> _Found:
        """By the module's weight, or by values; a bias to be added; else what is wrong."""
        noted = len(self.problems.found)
        found = self._beside_weight(want) or self._with_values(want) or self._merged(want)
        if found or len(self.problems.found) > noted:
            return found
        misfits = [m for o in options for m in o.misfits]
        disowned = self.claims.disowned_by(want)
        if misfits:
            self.problems.put(failures.misfit(want, misfits))
        elif (want.optional or not disowned) and self._dropped(number, want):
            pass
        elif disowned:
            scope = disowned[0].reader.scope
            why = f"its weight is used in `{scope}` only"
            self.problems.put(failures.changed(want, disowned[0], why))
        elif self.weights.get(want.module) or (path := self.claims.module_of(want)):
            path = self.weights[want.module][0][0].path if want.module in self.weights else path
            self.problems.put(failures.no_parameter(want, path))
        else:
            modules = self.claims.modules
            searched = self._tensor(want) is not None
            many = len(self.problems.found.get(codes.MODULE_NOT_FOUND, ())) >= _SOUGHT
            near = [] if many else get_close_matches(want.module, modules, 3, 0.4)
            self.problems.put(failures.not_found(want, modules, near, searched))
        return []

    def _dropped(self, number: int, want: Wanted) -> bool:
        """Whether it is a bias that the graph lacks; it is noted if two claim one."""
        tensor = self._tensor(want)
        weights = self.weights.get(want.module, [])
        if not self.dropped.put(number, want, weights, tensor[1] if tensor else None):
            return False
        self._taken_by_other(want, self.dropped.wanted[number][1], added=True)
        return True

    def _beside_weight(self, want: Wanted) -> _Found:
        """The bias that is added to the product of the module's weight."""
        found = []
        for claim, at in self.weights.get(want.module, ()) if want.parameter == "bias" else ():
            # A product's bias is added to it; a convolution has its own.
            product = claim.reader.consumer
            adds = {product, *ir.users(product.results[0])}
            whole = claim.weight.shape[at.axis]
            for weight in self.claims.index.weights:
                for reader in weight.readers:
                    if reader.role == "bias" and reader.consumer in adds:
                        sizes = [d for d in weight.shape if d != 1]
                        if sizes == [whole] and reader.axis >= 0:
                            beside = f"added to the product of {claim.weight}"
                            made = Claim(claim.path, weight, reader, beside, True)
                            found.append((made, Place(reader.axis, at.start, at.size)))
        return found

    def _with_values(self, want: Wanted) -> _Found:
        """The weight that has the checkpoint's values."""
        tensor = self._tensor(want)
        if tensor is not None and self.values is None:
            self.values = Values(self.claims.index)
        hits = self.values.search(want, tensor[1]) if tensor and self.values else []
        found: _Found = [
            (Claim(want.module, w, r, f"the values of `{tensor[0]}`", True), at)
            for w, r, at in hits if tensor
        ]  # fmt: skip
        if len({(c.weight.key, at) for c, at in found}) > 1:
            why = "several weights have the values of the checkpoint's"
            self.problems.put(failures.ambiguous(want, why, [c for c, _ in found]))
            return []
        return found

    def _merged(self, want: Wanted) -> _Found:
        """A part of a matrix of Q, K and V."""
        found = merged(self.claims, want)
        if len({c.weight.key for c, _ in found}) > 1:
            why = "several merged matrices may hold it"
            self.problems.put(failures.ambiguous(want, why, [c for c, _ in found]))
            return []
        return found

    def _tensor(self, want: Wanted) -> tuple[str, Array] | None:
        return self.base.find(want) if self.base is not None else None

    def _holds(self, want: Wanted, claim: Claim, at: Place, tensor: Array) -> bool | None:
        return holds(self.claims.index, want, claim.weight, claim.reader, at, tensor)

    # What is believed becomes sites.

    def _sites(self, want: Wanted, found: _Found) -> list[Site]:
        if not found or self._refused(want, found):
            return []
        if want.parameter == "weight":
            self.weights.setdefault(want.module, found)
        sites = []
        for key in dict.fromkeys(c.weight.key for c, _ in found):
            claims = [(c, at) for c, at in found if c.weight.key == key]
            sites.append(site_of(want.module, want.parameter, [c for c, _ in claims], claims[0][1]))
        return sites

    def _refused(self, want: Wanted, found: _Found) -> bool:
        """Whether the weight is not the module's own, or another's as well; then it is noted."""
        tensor = self._tensor(want)
        named = {c.weight.key for c, _ in found if c.named}
        for claim, at in found:
            verified = self._holds(want, claim, at, tensor[1]) if tensor else None
            problem = None
            if tensor and verified is False:
                problem = failures.other_base(want, claim, tensor[0])
            elif verified is None and claim.weight.key not in named and _convolves(claim.reader):
                why = (
                    "its convolution's weight has lost its name: a BatchNormalization may be in it"
                )
                problem = failures.changed(want, claim, why)
            elif sharer := self._shared(claim, found):
                why = f"one rearranged copy of the weight serves `{sharer.scope}` too"
                problem = failures.ambiguous(want, why, [claim])
            elif self._unsure(claim, found) and self.settings.get(want) is None:
                why = "other modules have this weight too, and a node that reads it is of none"
                problem = failures.ambiguous(want, why, [c for c, _ in found])
            elif (twin := self._twin(want, claim, found)) and self.settings.get(want) is None:
                why = "another weight has the same values, and a node that reads it is of no module"
                problem = failures.ambiguous(want, why, [claim, twin])
            if problem is not None:
                self.problems.put(problem)
                return True
        return self._taken_by_other(want, found)

    def _shared(self, claim: Claim, found: _Found) -> Reader | None:
        """Another module's reader that gets the weight by the very same operation."""
        own = {id(c.reader) for c, _ in found}
        for reader in claim.weight.readers:
            same = reader.use == claim.reader.use and id(reader) not in own
            if same and reader.scope and not self.claims.agree(claim.path, reader.scope):
                return reader
        return None

    def _unsure(self, claim: Claim, found: _Found) -> bool:
        """Whether a node of no known module reads a weight that several modules share.

        Exporters keep one of equal parameters, such as norms that are all ones.
        """
        if claim.reader.scope or not claim.named:
            return False
        mine = {c.reader.use for c, _ in found}
        alike = [
            r for r in claim.weight.readers
            if (r.role, r.kind) == (claim.reader.role, claim.reader.kind)
        ]  # fmt: skip
        if any(r.use not in mine for r in alike):
            return True
        array = self.claims.index.array(claim.weight)
        uniform = array is not None and array.size > 0 and bool((array == array.flat[0]).all())
        return uniform and len({r.use for r in alike}) > 1

    def _twin(self, want: Wanted, claim: Claim, found: _Found) -> Claim | None:
        """A weight without a name, read by a node without one, that may be a copy of the claim's:
        an optimiser transposed what one of two tied modules, or one of two calls, reads.
        """
        mine = self.claims.index.array(claim.weight)
        if mine is None or mine.size == 0 or bool((mine == mine.flat[0]).all()):
            return None
        own = {c.weight.key for c, _ in found}
        for other in self.claims.nameless.get(tuple(sorted(mine.shape)), ()):
            theirs = self.claims.index.array(other.weight)
            kind = want.kind in ("", other.reader.kind)
            if theirs is None or other.weight.key in own or not kind:
                continue
            turns = (theirs, theirs.T) if theirs.ndim == 2 else (theirs,)
            if any(t.shape == mine.shape and bool((t == mine).all()) for t in turns):
                return other
        return None

    def _taken_by_other(self, want: Wanted, found: _Found, added: bool = False) -> bool:
        """Whether another parameter has the place already. added: a bias to weights `found`."""
        for claim, at in found:
            operation, operand = (claim.reader.consumer, -1) if added else claim.reader.use
            takers = self.taken.setdefault((want.adapter, operation, operand), [])
            for other, there in takers:
                apart = at.start + at.size <= there.start or there.start + there.size <= at.start
                if other.name != want.name and not apart:
                    self.problems.put(failures.claimed_twice(other, want, claim))
                    return True
            takers.append((want, at))
        return False


def _best(options: list[Option]) -> list[Option]:
    return [o for o in options if o.fits and o.relation.order == options[0].relation.order]


def _convolves(reader: Reader) -> bool:
    return reader.consumer.name in ("ai.conv", "ai.conv_transpose")


def site_of(module: str, parameter: str, claims: Sequence[Claim], at: Place) -> Site:
    """The site of claims to one weight."""
    first = claims[0]
    return Site(
        module, parameter, first.reader.kind if parameter == "weight" else "",
        first.weight.value, tuple(dict.fromkeys(c.reader.use for c in claims)),
        at.axis, at.start, at.size, "; ".join(dict.fromkeys(c.evidence for c in claims)),
    )  # fmt: skip
