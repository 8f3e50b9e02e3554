"""What does not attach, in words: the fact, the candidates, what comes nearest, the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cuvilc.adapter import Adapter
from cuvilc.diagnostics import Diagnostic

from . import lora_codes as codes
from .lora_claims import Claim, Wanted

_SHOWN = 6
_MAP = '--adapter-map map.json with {{"{}": "initialiser or node"}} settles it'
_WRAPPED = (
    "the model was exported with PEFT's layers in it, an adapter among them: export the base, "
    "as it is before `get_peft_model`"
)
_UNSURE = (
    "a bias that an exporter dropped is added to the module's product, but not where a constant is "
    "added behind it, or where the sizes differ; `torch.onnx.export(…, optimize=False)` keeps it"
)


def _about(want: Wanted) -> str:
    return f"adapter `{want.adapter}`: `{want.name}`"


def _tensors(want: Wanted) -> str:
    """The names of the parameter's tensors in the adapter's file."""
    every = want.change.tensors
    own = [n for n in every if n.endswith(f".{want.parameter}") and want.parameter != "weight"]
    return ", ".join(own or every)


def listed(words: Iterable[str], most: int = _SHOWN) -> str:
    """`a`, `b`, … of at most so many."""
    every = [f"`{w}`" for w in words]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" * (len(every) > most))


def not_found(want: Wanted, modules: list[str], near: list[str], searched: bool) -> Diagnostic:
    """No weight for a module. near: the model's that are spelled alike. searched: by values too."""
    notes = [f"nearest modules of the model: {listed(near)}"] if near else []
    if not modules:
        notes.append("the model's weights and nodes have no names that are paths of modules")
    elif not near:
        notes.append(f"the model has {listed(modules)}")
    if searched:
        notes.append("no weight has the values of the base checkpoint's either")
    wrapped = _is_wrapped(want.module, modules)
    return Diagnostic(
        codes.MODULE_NOT_FOUND, f"{_about(want)} is not in the model", want.place,
        evidence=_tensors(want), notes=notes,
        help=_WRAPPED if wrapped else f"if it belongs to this model, {_MAP.format(want.module)}",
    )  # fmt: skip


def nothing_attaches(adapter: Adapter, where: str) -> str:
    """What is said first of an adapter of which none of several modules is where it should be."""
    trained = adapter.config.get("base_model_name_or_path")
    other = f"; it was trained on `{trained}`" if trained else ""
    count = len(adapter.changes)
    return f"none of the {count} modules that adapter `{adapter.name}` changes is {where}{other}"


def other_model(adapter: Adapter, modules: Sequence[str]) -> Diagnostic:
    """Nothing attaches: said once, instead of all that does not. modules: the model's."""
    theirs = listed(modules, 3) if modules else "no names that are paths of modules"
    return Diagnostic(
        codes.MODULE_NOT_FOUND, nothing_attaches(adapter, "in the model"), str(adapter.place),
        evidence=f"the adapter has {listed((c.path for c in adapter.changes), 3)}\n"
        f"the model has {theirs}",
        help=_elsewhere(adapter, modules),
    )  # fmt: skip


def _elsewhere(adapter: Adapter, modules: Sequence[str]) -> str:
    if not modules:
        return "`--base-weights model.safetensors` finds weights by their values, without names"
    if _is_wrapped(adapter.changes[0].path, modules):
        return _WRAPPED
    return "give the model that the adapter was trained on; see `cuvilc explain CUV720`"


def _is_wrapped(module: str, modules: Iterable[str]) -> bool:
    """Whether a module of the model is what PEFT's layer puts in place of this one."""
    return any(f".{m}".endswith(f".{module}.base_layer") for m in modules)


def no_parameter(want: Wanted, path: str) -> Diagnostic:
    """The module is there, the parameter is not."""
    dropped = want.parameter == "bias"  # by far the usual reason: a new classifier's bias is zeros
    return Diagnostic(
        codes.NO_PARAMETER,
        f"{_about(want)}: the model's `{path}` has no `{want.parameter}` that could be changed",
        want.place,
        evidence=_tensors(want),
        help=_UNSURE if dropped else "",
    )


def not_tied(want: Wanted, ends: Sequence[str]) -> Diagnostic:
    """Modules that get no rows of their own, as tied to another, and are not in the model."""
    return Diagnostic(
        codes.OTHER_BASE,
        f"{_about(want)}: {listed(ends)} of `trainable_token_indices` is tied to it, and in the"
        " model it is not",
        want.place,
        help="export the model that the adapter was trained on, with its weights tied",
    )


def misfit(want: Wanted, tried: Sequence[tuple[Claim, str]]) -> Diagnostic:
    """The weights at the module's path have other sizes or uses."""
    shown = dict.fromkeys(f"{c.weight} ({c.evidence}): {why}" for c, why in tried)
    return Diagnostic(
        codes.SITE_MISFIT, f"{_about(want)} does not fit the model's weight", want.place,
        evidence="\n".join([*shown][:_SHOWN]),
        notes=[f"from {_tensors(want)}"] if want.change.tensors else [],
    )  # fmt: skip


def ambiguous(want: Wanted, why: str, claims: Iterable[Claim]) -> Diagnostic:
    """Several candidates, each with its evidence."""
    shown = dict.fromkeys(f"{c.weight} of `{c.path}`: {c.evidence}" for c in claims)
    return Diagnostic(
        codes.AMBIGUOUS_SITE, f"{_about(want)}: {why}", want.place,
        evidence="\n".join([*shown][:_SHOWN]), help=_MAP.format(want.module),
    )  # fmt: skip


def unrelated_base(want: Wanted, base: Path, names: Sequence[str]) -> Diagnostic:
    """A checkpoint that has none of the parameters proves nothing of the model."""
    return Diagnostic(
        codes.OTHER_BASE,
        f"the base checkpoint has no weight of the modules that adapter `{want.adapter}` changes",
        str(base),
        evidence=f"`{want.name}` is sought, and there are {listed(names)}",
    )


def claimed_twice(first: Wanted, second: Wanted, claim: Claim) -> Diagnostic:
    """Two parameters of one adapter would change the same weight."""
    return Diagnostic(
        codes.AMBIGUOUS_SITE,
        f"{_about(first)} and `{second.name}` would both change {claim.weight}",
        first.place,
        evidence=f"{claim.weight} of `{claim.path}`: {claim.evidence}",
        help=_MAP.format(second.module),
    )


def changed(want: Wanted, claim: Claim, why: str) -> Diagnostic:
    """The weight is not the module's own any more."""
    return Diagnostic(
        codes.CHANGED_WEIGHT, f"{_about(want)}: {why}", want.place,
        evidence=f"{claim.weight}: {claim.evidence}, read by node `{claim.reader.label}`",
    )  # fmt: skip


def other_base(want: Wanted, claim: Claim, name: str) -> Diagnostic:
    """The checkpoint has other values."""
    return Diagnostic(
        codes.OTHER_BASE, f"{_about(want)}: the model's weight is not the base checkpoint's",
        want.place,
        evidence=f"{claim.weight} ({claim.evidence}) differs from the checkpoint's `{name}`",
    )  # fmt: skip
