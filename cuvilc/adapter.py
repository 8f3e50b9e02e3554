"""A LoRA adapter in memory, whatever files it came from: what changes in which module of a model.

Shapes follow torch: a linear layer's weight is [N, K] (K features in, N out), a convolution's
[N, K / groups, *kernel], an embedding table [V, D]. In all three, ΔW = scale · B · A over flattened
axes (Hu et al. 2021, eq. 3):

    linear       a [r, K]                    b [N, r]      ΔW = scale · b · a
    convolution  a [r, K, *kernel]           b [N, r]      ΔW = scale · (b · a[r, ..]) as [N, ..]
    embedding    a [r, V]                    b [D, r]      ΔW = scale · (b · a)ᵀ

The A of a grouped convolution reads all K channels (PEFT's, and kohya's), so ΔW is dense,
[N, K, ..]: it does not fit the layer's own weight, which has K / groups. Where a module has both
`replaced` and `low_rank`, ΔW is added to the parameter that replaces the base's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
else:
    Array = Any  # the command line imports this module, and NumPy for a command only that needs it


@dataclass(frozen=True)
class LowRank:
    """The factors of one module as they are stored (float32, float16 or bfloat16).

    scale: alpha / r, or alpha / √r where the adapter is rank-stabilised (Kalajdzievski 2023).
    magnitude: DoRA's m [N]: W' = m · V / ‖V‖ with V = W + ΔW, the norm over all axes but the
    output's (Liu et al. 2024, eq. 5). bias: of B [N], added to the output times `scale`.
    """

    a: Array
    b: Array
    scale: float
    rank: int
    alpha: float
    magnitude: Array | None = None
    bias: Array | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of a table that an adapter brings: values [T, D] for the tokens `indices` (T of them,
    each once) of an embedding's weight [V, D], or of a head's that is tied to one.

    tied: names of modules that the adapter says have the same rows, as ends of their paths.
    """

    indices: tuple[int, ...]
    values: Array
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleChange:
    """What an adapter does to one module, named by its path in the base model ("h.0.attn.c_attn").

    kind: "linear", "convolution", "embedding", or "" where only parameters are replaced.
    replaced: whole parameters by name ("weight", "bias"), from modules_to_save and bias training.
    rows: of the weight, where only these are replaced; then there is no `low_rank`, nor a weight
    in `replaced`.
    fan_in_fan_out: what the configuration says, for all modules alike: that the base weight is
    stored [K, N], as in GPT-2's Conv1D; `low_rank` never is. PEFT goes by the layer, whatever is
    said here, so only the base model tells.
    tensors: the names in the file that this came from, for diagnostics.
    """

    path: str
    kind: str = ""
    low_rank: LowRank | None = None
    replaced: Mapping[str, Array] = field(default_factory=dict)
    rows: Rows | None = None
    fan_in_fan_out: bool = False
    tensors: tuple[str, ...] = ()


CROSS_ATTENTION = "cross-attention"
ADDITIVE = "additive"


@dataclass(frozen=True)
class GraphSemantics:
    """The adapter's contract with the compiler: `graph_semantics` of its configuration.

    dependency_level "cross-attention": it must change q and v, or k and v, projections of one
    layer. fusion_strategy "additive": its scale must stay apart from the factors. "" where unsaid.
    """

    dependency_level: str = ""
    fusion_strategy: str = ""


@dataclass(frozen=True)
class Adapter:
    """All changes of one adapter, in the order of their paths.

    place: folder or file; sha256: of the tensor file; config: what the configuration says, as read
    (JSON), for reports: r, lora_alpha, lora_dropout, target_modules, …
    """

    name: str
    place: Path
    changes: tuple[ModuleChange, ...]
    sha256: str
    semantics: GraphSemantics = GraphSemantics()
    config: Mapping[str, Any] = field(default_factory=dict)
