"""Names of modules: parsed from a weight's name, and compared between an adapter and a model.

An adapter names modules as the model that it was trained on does; an export prefixes them (`m.`
for a wrapper) or drops a prefix (`model.` where only the inner model was exported).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

# Attributes that hold a whole model and say nothing of which part it is.
WRAPPERS = frozenset(
    {"m", "mod", "model", "module", "base", "base_model", "net", "network", "inner", "wrapped",
     "wrapper", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)  # fmt: skip
# A prefix with one of these tells one part of a model from another, so it is never dropped.
_PARTS = re.compile(
    r"\d|encoder|decoder|text|vision|visual|image|audio|language|unet|vae|draft|teacher|student"
    r"|generator|discriminator|expert"
)
# What tools append to a weight's name: onnxruntime's quantisers and transformations of its layout.
_ENDINGS = re.compile(
    r"(_quantized|_transposed|_[tT]ranspose|_fp16|_bf16|_DQ|_Q\d|_qweight|\.\d+)$"
)
# onnxruntime-genai names weights by the node: q_proj.MatMul.weight, q_proj.Add.bias.
_NODE = re.compile(r"\.(MatMul|Gemm|Add|MatMulNBits)$")
_CHANGED = re.compile(r"[A-Za-z]*Fusion_")
_LONGEST = 1000  # characters of a name of a weight
_MODULE_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")

# onnxruntime-genai's word for what PyTorch's models call otherwise.
_SAME = {"self_attn": "attn"}

EXACT, SUFFIX, WRAPPED, RESPELLED = range(4)


def split_parameter(name: str) -> tuple[str, str] | None:
    """`m.layers.0.fc.weight_quantized` → (`m.layers.0.fc`, `weight`).

    None for a name that is no path: `onnx::MatMul_12`, `/m/Constant_output_0`, or one that
    onnxruntime gave a weight that it changed, `ConvBnFusion_W_m.conv.weight`.
    """
    if len(name) > _LONGEST:
        return None
    while (shorter := _ENDINGS.sub("", name)) != name:
        name = shorter
    if not _MODULE_NAME.fullmatch(name) or _CHANGED.match(name):
        return None
    path, _, parameter = name.rpartition(".")
    return _NODE.sub("", path), parameter


@dataclass(frozen=True)
class Relation:
    """How an adapter's path and a model's agree: less is better, `common` parts from the end."""

    tier: int
    common: int
    dropped: str  # what the adapter's path begins with and the model's does not
    added: str  # and the other way round

    @property
    def order(self) -> tuple[int, int]:
        return (self.tier, -self.common)

    @property
    def moves(self) -> bool:
        """Whether one path lacks a part of the other's that tells of more than a wrapper."""
        words = [*self.dropped.split("."), *self.added.split(".")]
        return self.tier == SUFFIX and any(word and word not in WRAPPERS for word in words)


@lru_cache(1 << 18)
def relate(path: str, found: str) -> Relation | None:
    """Whether two paths can mean the same module; None if not.

    One ends with the other, or both do with the same and all before is wrappers. What one lacks
    must not tell parts of a model apart: `encoder.layers.0` is not the decoder's `layers.0`.
    """
    if not path or not found:
        return Relation(EXACT, 0, "", "") if path == found else None
    mine, theirs = path.split("."), found.split(".")
    relation = _relate(mine, theirs)
    if relation is None:
        respelled = [[_SAME.get(part, part) for part in parts] for parts in (mine, theirs)]
        if respelled != [mine, theirs]:
            other = _relate(*respelled)
            return replace(other, tier=RESPELLED) if other else None
    return relation


def _relate(mine: list[str], theirs: list[str]) -> Relation | None:
    common = 0
    while common < min(len(mine), len(theirs)) and mine[-1 - common] == theirs[-1 - common]:
        common += 1
    if common == 0:
        return None
    dropped, added = mine[: len(mine) - common], theirs[: len(theirs) - common]
    words = (".".join(dropped), ".".join(added))
    if not dropped and not added:
        return Relation(EXACT, common, *words)
    if any(_PARTS.search(part) for part in (*dropped, *added)):
        return None
    if not dropped or not added:
        return Relation(SUFFIX, common, *words)
    wrapped = common > 1 and all(part in WRAPPERS for part in added)
    return Relation(WRAPPED, common, *words) if wrapped else None


def is_there(prefix: str, names: Iterable[str]) -> bool:
    """Whether names begin with what a path is to lose: then they are spelled as the path is, and
    what is called otherwise is another module.
    """
    return bool(prefix) and any(is_within(name, prefix) for name in names)


def closest(path: str, found: Iterable[str]) -> str | None:
    """The one of `found` that agrees best with `path`; None where none does, or two do alike."""
    related = [(r.order, name) for name in found if (r := relate(path, name)) is not None]
    best = min((order for order, _ in related), default=None)
    names = [name for order, name in related if order == best]
    return names[0] if len(names) == 1 else None


def is_same_call(path: str, other: str) -> bool:
    """Whether `other` may be `path` in a module's second call: the TorchScript exporter counts
    calls, `block_1.fc` for `block.fc`. Modules may be called so too. What stands before may
    differ as `relate` has it: that exporter leaves out a container that is not called itself.
    """
    mine, theirs = path.split("."), other.split(".")
    common = counted = 0
    for a, b in zip(reversed(mine), reversed(theirs), strict=False):
        again = re.fullmatch(rf"{re.escape(a)}_\d+", b) is not None
        if a != b and not again:
            break
        common, counted = common + 1, counted + again
    if not counted:
        return False
    plain = [*theirs[: len(theirs) - common], *mine[len(mine) - common :]]
    return plain == mine or relate(path, ".".join(plain)) is not None


def ends_as(path: str, scope: str) -> bool:
    """Whether a module's path ends with a node's scope: the TorchScript exporter leaves out
    containers that are not called themselves, and counts what is then called alike.
    """
    mine, theirs = path.split("."), scope.split(".")
    pairs = zip(reversed(mine), reversed(theirs), strict=False)
    return bool(scope) and len(theirs) <= len(mine) and all(
        a == b or re.fullmatch(rf"{re.escape(a)}_\d+", b) for a, b in pairs
    )  # fmt: skip


def is_within(inner: str, outer: str) -> bool:
    """Whether `inner` is `outer` or a module inside it; everything is inside "", the root."""
    return not outer or inner == outer or inner.startswith(f"{outer}.")
