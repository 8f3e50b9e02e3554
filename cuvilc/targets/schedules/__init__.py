"""The schedules in the order they are tried: the first that does not miss takes the region."""

from __future__ import annotations

from collections.abc import Callable

from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Region, Scheduled
from cuvilc.targets.schedules import (
    attention,
    attention_narrow,
    conv,
    conv_dot,
    conv_words,
    depthwise,
    depthwise_dot,
    elementwise,
    empty,
    fallback,
    gemm,
    gemm_dot,
    gemm_lora,
    gemm_nbits,
    lora_merge,
    lora_shrink,
    pool,
    reduction,
    relayout,
    resize,
    rnn,
    rows,
    special_coupling,
    special_cumsum,
    special_grid,
    special_roi,
    special_scatter,
    special_suppression,
    special_top_k,
    tree,
    winograd,
    winograd_weights,
)

Schedule = Callable[[Region, Chip, str], Scheduled]

SCHEDULES: tuple[tuple[str, Schedule], ...] = (
    ("empty", empty.schedule),
    ("attention-narrow", attention_narrow.schedule),
    ("attention", attention.schedule),
    ("gemm", gemm.schedule),
    ("gemm-dot", gemm_dot.schedule),
    ("gemm-nbits", gemm_nbits.schedule),
    ("gemm-lora", gemm_lora.schedule),
    ("lora-merge", lora_merge.schedule),
    ("lora-shrink", lora_shrink.schedule),
    ("conv", conv.schedule),
    ("conv-words", conv_words.schedule),
    ("conv-dot", conv_dot.schedule),
    ("winograd", winograd.schedule),
    ("winograd-weights", winograd_weights.schedule),
    ("depthwise-dot", depthwise_dot.schedule),
    ("depthwise", depthwise.schedule),
    ("pool", pool.schedule),
    ("rows", rows.schedule),
    ("reduction", reduction.schedule),
    ("resize", resize.schedule),
    ("rnn", rnn.schedule),
    ("cumsum", special_cumsum.schedule),
    ("coupling", special_coupling.schedule),
    ("grid-sample", special_grid.schedule),
    ("roi-align", special_roi.schedule),
    ("scatter", special_scatter.schedule),
    ("top_k", special_top_k.schedule),
    ("suppression", special_suppression.schedule),
    ("tree", tree.schedule),
    ("relayout", relayout.schedule),
    ("elementwise", elementwise.schedule),
    ("fallback", fallback.schedule),
)
