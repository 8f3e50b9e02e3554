"""From the tensors of one module to its ModuleChange, with every shape checked.

What PEFT, diffusers and kohya store is the same but for names: A (down) [r, inputs], B (up)
[outputs, r], for convolutions with the kernel's axes behind, perhaps a magnitude (DoRA), perhaps a
bias of B.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cuvilc.adapter import Array, LowRank, ModuleChange, Rows

from . import lora_codes as codes
from .lora_problems import Problems

A, B, EMBEDDING_A, EMBEDDING_B = "A", "B", "embedding A", "embedding B"
MAGNITUDE, BIAS = "magnitude", "bias"


@dataclass
class Found:
    """Tensors of one module by role, and their names in the file.

    replaced: by parameter; rows: of the weight; others: names of tensors that compute nothing;
    times: how often its writer adds ΔW.
    """

    path: str
    roles: dict[str, Array] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, Array] = field(default_factory=dict)
    rows: Rows | None = None
    others: list[str] = field(default_factory=list)
    times: int = 1

    def put(self, role: str, name: str, tensor: Array, problems: Problems) -> None:
        """CUV705 where two tensors take one role."""
        if role in self.roles:
            message = f"`{name}` and `{self.names[role]}` are both {role} of `{self.path}`"
            problems.add(codes.UNEXPLAINED_TENSOR, message)
            return
        self.roles[role] = tensor
        self.names[role] = name

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*self.names.values(), *self.others)


@dataclass(frozen=True)
class ModuleConfig:
    """What the configuration says of one module."""

    scale: float
    alpha: float
    rank: int
    fan_in_fan_out: bool = False
    magnitude: bool = False
    bias: bool = False


def change(found: Found, wanted: ModuleConfig | None, problems: Problems) -> ModuleChange | None:
    """The module's change; None where problems (CUV705 to CUV707) were added instead."""
    kind, low_rank = "", None
    whole = found.rows and (found.roles or "weight" in found.replaced)
    if whole or (wanted is None and not found.replaced and not found.rows):
        for name in found.tensors:
            why = "beside rows of its module" if whole else "no other belongs to its module"
            message = f"nothing explains the tensor `{name}`: {why}"
            problems.add(codes.UNEXPLAINED_TENSOR, message)
        return None
    if wanted is not None:
        pair = _pair(found, problems)
        if pair is None or not _complete(found, wanted, problems):
            return None
        kind = pair[0]
        low_rank = _low_rank(found, wanted, *pair, problems)
        if low_rank is None:
            return None
    return ModuleChange(
        found.path,
        kind=kind,
        low_rank=low_rank,
        replaced=dict(sorted(found.replaced.items())),
        rows=found.rows,
        fan_in_fan_out=bool(wanted and wanted.fan_in_fan_out and kind == "linear"),
        tensors=found.tensors,
    )


def _pair(found: Found, problems: Problems) -> tuple[str, str, str] | None:
    """Kind, role of A, role of B."""
    has = set(found.roles)
    embedding = bool(has & {EMBEDDING_A, EMBEDDING_B})
    if embedding and has & {A, B}:
        message = f"`{found.path}` has LoRA of a layer and of an embedding at once"
        problems.add(codes.UNEXPLAINED_TENSOR, message, evidence="\n".join(found.tensors))
        return None
    first, second = (EMBEDDING_A, EMBEDDING_B) if embedding else (A, B)
    missing = [role for role in (first, second) if role not in has]
    if missing:
        message = f"`{found.path}` lacks {' and '.join(missing)}"
        problems.add(codes.INCOMPLETE_MODULE, message, evidence="\n".join(found.tensors))
        return None
    if embedding:
        return "embedding", first, second
    return ("convolution" if found.roles[A].ndim > 2 else "linear"), first, second


def _complete(found: Found, wanted: ModuleConfig, problems: Problems) -> bool:
    fine = True
    embedding = EMBEDDING_A in found.roles
    for role, needed, option in (
        (MAGNITUDE, wanted.magnitude, "use_dora"),
        (BIAS, wanted.bias and not embedding, "lora_bias"),
    ):
        if needed and role not in found.roles:
            message = f"`{found.path}` lacks its {role}, which `{option}` asks for"
            problems.add(codes.INCOMPLETE_MODULE, message, evidence="\n".join(found.tensors))
            fine = False
        elif role in found.roles and not needed:
            message = f"`{found.names[role]}` is a {role}, but `{option}` is not set"
            problems.add(codes.UNEXPLAINED_TENSOR, message)
            fine = False
    return fine


def _low_rank(
    found: Found, wanted: ModuleConfig, kind: str, first: str, second: str, problems: Problems
) -> LowRank | None:
    a, b = found.roles[first], found.roles[second]
    rank = wanted.rank
    wrong = _wrong_pair(a, b, kind, rank)
    outputs = b.shape[0] if b.ndim else 0
    magnitude, bias = found.roles.get(MAGNITUDE), found.roles.get(BIAS)
    if not wrong and magnitude is not None and not _one_each(magnitude, outputs):
        wrong = f"the magnitude is {_text(magnitude)} for {outputs} outputs"
    elif not wrong and bias is not None and bias.shape != (outputs,):
        wrong = f"the bias is {_text(bias)} for {outputs} outputs"
    if wrong:
        evidence = "\n".join(f"{found.names[role]}: {_text(t)}" for role, t in found.roles.items())
        message = f"`{found.path}`: {wrong}"
        problems.add(codes.BAD_TENSOR_SHAPE, message, evidence=evidence)
        return None
    if kind == "convolution":
        b = _dense(b.reshape(b.shape[:2]), rank)
    return LowRank(
        a, b, found.times * wanted.scale, rank, wanted.alpha,
        magnitude=None if magnitude is None else magnitude.reshape(-1), bias=bias,
    )  # fmt: skip


def _wrong_pair(a: Array, b: Array, kind: str, rank: int) -> str:
    """What is wrong with the shapes of A and B; "" for nothing."""
    dims = a.ndim if kind == "convolution" else 2
    if a.ndim != dims or b.ndim != dims or dims > 5 or 0 in a.shape or 0 in b.shape:
        return f"A is {_text(a)} and B {_text(b)}: these are no factors of a {kind}"
    if a.shape[0] != rank:
        return f"A is of rank {a.shape[0]}, but the configuration says {rank}"
    if kind != "convolution" and b.shape[1] != rank:
        return f"A is of rank {a.shape[0]}, B of rank {b.shape[1]}"
    if kind == "convolution":
        groups, rest = divmod(rank, b.shape[1])
        if rest or b.shape[0] % groups:
            return f"A is of rank {a.shape[0]}, B of rank {b.shape[1]}"
        if any(n != 1 for n in b.shape[2:]):
            return f"B is {_text(b)}: it must have a kernel of one point"
    return ""


def _one_each(magnitude: Array, outputs: int) -> bool:
    """[N], or with axes of size 1 around, as PEFT and LyCORIS keep it."""
    return magnitude.size == outputs and outputs in magnitude.shape


def _dense(b: Array, rank: int) -> Array:
    """B of a grouped convolution, [N, r / groups], as [N, r]: zero outside of each group's block.

    PEFT's A of such a layer reads all channels and only B is grouped, so ΔW is dense.
    """
    groups = rank // b.shape[1]
    if groups == 1:
        return b
    outputs, width = b.shape[0] // groups, b.shape[1]
    dense = np.zeros((b.shape[0], rank), b.dtype)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * width : (g + 1) * width] = b[rows]
    return dense


def _text(tensor: Array) -> str:
    return str(list(tensor.shape))


def in_order(changes: Iterable[ModuleChange]) -> tuple[ModuleChange, ...]:
    """By path, numbers in it as numbers: layer 2 before layer 10."""
    return tuple(sorted(changes, key=lambda c: natural(c.path)))


def natural(path: str) -> list[tuple[int, int, str]]:
    """A sort key: digits compare as numbers, before letters."""
    parts = re.findall(r"[0-9]+|[^0-9]+", path)
    return [(0, int(p[:18]), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in parts]
