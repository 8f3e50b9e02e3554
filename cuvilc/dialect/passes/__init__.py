"""The passes in their order. A pass is a module: NAME, VERSION, run(program, context)."""

from __future__ import annotations

from types import ModuleType

from cuvilc.dialect.passes import (
    add_merges,
    batch_adapters,
    canonicalize,
    choose_convolutions,
    choose_layouts,
    float_levels,
    fold_batch_norm,
    fold_constants,
    fuse,
    merge_lora,
    narrow_weights,
    outline_kernels,
    plan_convolutions,
    plan_memory,
    raise_integers,
    raise_nbits,
    raise_patterns,
    require_sizes,
    simplify_shapes,
)

PIPELINE: tuple[ModuleType, ...] = (
    require_sizes,
    merge_lora,
    canonicalize,
    raise_integers,
    raise_nbits,
    fold_constants,
    simplify_shapes,
    raise_patterns,
    fold_batch_norm,
    plan_convolutions,
    canonicalize,
    fold_constants,
    choose_convolutions,
    narrow_weights,
    batch_adapters,
    choose_layouts,
    fuse,
    float_levels,
    outline_kernels,
    plan_memory,
    add_merges,
)

# What turns the layout level into the launch level.
LOWERING: tuple[ModuleType, ...] = (outline_kernels, plan_memory, add_merges)
