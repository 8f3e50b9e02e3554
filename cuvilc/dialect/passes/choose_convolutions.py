"""Compute 3×3, 1×3 and 3×1 convolutions by Winograd's filtering where that is faster and precise
enough.

The choice is made layer by layer from shapes and facts of the chip: `costs` estimates the time of
the direct schedule and of F(2×2, 3×3) and F(4×4, 3×3), which do 4/9 and 1/4 of its products (with
a stride of 2, 25/36 and 9/16) but read 16/9 and 4 times its weights, and transform inputs and
results. Windows of 3 taps along one axis take F(2, 3) and F(4, 3): 2/3 and 1/2 of the products, 4/3
and 2 times the weights. The weights are transformed when the package is opened
(docs/adr/010-prepared-memory.md), so the package does not grow, but the process that runs it does.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, evaluate, symbols
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.winograd import (
    STRIDES,
    TAPS,
    TILES,
    WINDOWS,
    Tile,
    error_bound,
    points,
    tile_of,
    weight_points,
)

NAME = "choose-convolutions"
VERSION = 1
RULE = "winograd"

MOST_ERROR = 2e-5  # of error_bound: a fifth of what tests allow a float32 result
# Sizes where they are known only at run time.
_USUAL_IMAGES, _USUAL_SIZE = 1, 224
# A multiply-add of the schedules takes this share of the time that it could; a transform so many
# vector operations for each of a tile's values, by the number of axes that it goes along.
_DIRECT, _PRODUCTS = 0.95, 0.93
_TRANSFORM = {1: 6.0, 2: 7.0}
# Of the shorter one of computing and reading weights: what does not hide behind the other.
_VISIBLE = 0.3
# What a slower but smaller form may cost: of the faster one, with `prefer` balanced.
_SMALLER = 1.1
# Of the direct time: beyond, it is not worth another form of the weights.
_GAIN = {"balanced": 0.9, "speed": 0.97}
# Of the direct time: what the direct convolution takes with bfloat16 weights. A layer that stays
# float32 has twice their bytes in the package and eight times in memory (F(4×4, 3×3)), so unless
# told otherwise it must save a seventh of the time. Layers of residual networks of 28×28 pixels and
# more take 0.6 of it, those of 14×14 0.76 (0.83 estimated); beyond, a little is gained or nothing.
_BF16, _GAIN_BF16 = 0.51, 0.85
# Rows of so many pixels are too short for the direct schedule to be near its best, by the number of
# axes along which windows have 3 taps.
_SHORT = {1: 1.0, 2: 2.5}

# Weights of a block that are transformed already, by plain ones, tile and strides.
Made = dict[tuple[Value, Tile, tuple[int, int]], Value]


def run(program: Program, context: PassContext) -> None:
    """After it, convolutions for which it pays are ai.conv_winograd."""
    with program:
        for function in program.functions():
            for block in ir.blocks(ir.body(function)):
                made: Made = {}
                for operation in ir.operations(block):
                    if operation.name == "ai.conv" and _is_candidate(operation):
                        _visit(program, context, operation, made)


def _visit(program: Program, context: PassContext, operation: Operation, made: Made) -> None:
    try:
        tile = choose(program, context, operation)
    except Miss as miss:
        context.miss(RULE, operation, str(miss))
        return
    _replace(operation, tile, made)
    context.apply(RULE)


def _is_candidate(operation: Operation) -> bool:
    """Windows of 3 taps along some axis on float32 that nothing has laid out yet."""
    x, w = (ir.type_of(v) for v in list(operation.operands)[:2])
    return x.rank == 4 and x.dtype == "float32" and w.shape[2:] in WINDOWS and not x.layout


def choose(program: Program, context: PassContext, operation: Operation) -> Tile:
    """The tile. Raises Miss where the direct convolution is better, or the only one."""
    attrs = ir.attrs(operation)
    x, w = (ir.type_of(v) for v in list(operation.operands)[:2])
    if context.math_exact:
        raise Miss("--math exact keeps the sums of the definition")
    if context.prefer == "size":
        raise Miss("--prefer size keeps no second form of the weights in memory")
    strides, dilations = attrs["strides"], attrs["dilations"]
    if any(s not in STRIDES for s in strides):
        raise Miss(f"strides {strides[0]}×{strides[1]}")
    if dilations != (1, 1):
        raise Miss(f"dilations {dilations[0]}×{dilations[1]}")
    if attrs["groups"] != 1:
        raise Miss(f"{attrs['groups']} groups")
    source = ir.defining(operation.operands[1])
    if source is None or source.name != "ai.constant":
        exchanged = source is not None and source.name == "ai.parameter"
        raise Miss(
            "adapters may exchange the weights" if exchanged else "the weights are no constants"
        )
    outputs, channels, *window = w.static_shape
    if channels < context.channel_block:
        raise Miss(f"{channels} input channels do not fill a block of {context.channel_block}")
    if attrs["stack"] > 1 and x.shape[1] % context.channel_block:
        raise Miss(f"a stack of images of {x.shape[1]} channels")
    images, _, *counted = ir.type_of(operation.results[0]).shape
    sizes = usual_sizes(program, (images, *x.shape[2:]))
    counts = usual_sizes(program, tuple(counted), images=False)
    layer = Layer(channels, outputs, sizes, counts, tuple(window), attrs["pads_begin"], strides)
    return cheapest(context, layer)


class Layer(NamedTuple):
    """What the choice depends on: inputs [N, h, w] and results [h, w]."""

    channels: int
    outputs: int
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    window: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, int]

    @property
    def axes(self) -> int:
        """Along how many the windows have 3 taps."""
        return self.window.count(TAPS)


def cheapest(context: PassContext, layer: Layer) -> Tile:
    """The tile for a layer. Raises Miss."""
    channels = layer.channels
    direct = direct_cost(context, layer)
    direct *= _BF16 if context.precision == "bf16" else 1
    if direct == 0:
        raise Miss("nothing to compute")
    every = {t: tile_cost(context, layer, t) for t in (tile_of(n, layer.window) for n in TILES)}
    precise = {t: cost for t, cost in every.items() if error_bound(t, channels) <= MOST_ERROR}
    if not precise:
        raise Miss(f"sums over {channels} channels would lose too many digits")
    best = min(precise, key=lambda t: precise[t])
    small = min(precise)  # the smallest tile has the fewest weights
    if context.prefer != "speed" and precise[small] <= _SMALLER * precise[best]:
        best = small
    gain = _GAIN[context.prefer]
    if context.precision == "bf16" and context.prefer != "speed":
        gain = _GAIN_BF16
    if precise[best] > gain * direct:
        raise Miss(f"estimated at {precise[best] / direct:.2f} of the direct convolution's time")
    return best


def direct_cost(context: PassContext, layer: Layer) -> float:
    """Of the direct schedule, in multiply-adds of one vector: taps beyond the edge are left out."""
    sides = (layer.sizes[1:], layer.counts, layer.pads, layer.window, layer.strides)
    taps = layer.sizes[0] * prod(
        sum(_windows_with(t - p, n, m, stride) for t in range(size))
        for n, m, p, size, stride in zip(*sides, strict=True)
    )
    blocks = _half_blocks(context, layer.outputs)
    share = _DIRECT * max(1 - (_SHORT[layer.axes] / max(layer.counts[-1], 1)) ** 2, 0.25)
    steps = taps * layer.channels * blocks * _block_steps(context) / share
    weights = 4 * prod(layer.window) * layer.channels * blocks * context.channel_block
    return _time(context, steps, weights)


def _windows_with(start: int, size: int, count: int, stride: int) -> int:
    """Of `count` windows, those of which a tap lies inside, which is at `start` in the first."""
    first = max(-(start // stride), 0)
    return max(min((size - 1 - start) // stride + 1, count) - first, 0)


def tile_cost(context: PassContext, layer: Layer, tile: Tile) -> float:
    """Of F(tile, 3), F(tile × tile, 3×3), in the same unit."""
    n2, channels = prod(points(tile, layer.strides)), layer.channels
    tiles = layer.sizes[0] * prod(-(-m // t) for m, t in zip(layer.counts, tile, strict=True))
    blocks = _half_blocks(context, layer.outputs)
    products = n2 * tiles * channels * blocks / _PRODUCTS
    moved = _blocks(context, layer.outputs) + _blocks(context, channels)
    transforms = _TRANSFORM[layer.axes] * n2 * tiles * moved
    weights = 4 * prod(weight_points(tile)) * channels * blocks * context.channel_block
    return _time(context, (products + transforms) * _block_steps(context), weights)


def _time(context: PassContext, steps: float, weight_bytes: float) -> float:
    reading = weight_bytes / context.memory_bytes_per_step
    return max(steps, reading) + _VISIBLE * min(steps, reading)


def _blocks(context: PassContext, channels: int) -> int:
    return -(-channels // context.channel_block)


def _half_blocks(context: PassContext, channels: int) -> float:
    """Of output channels that are multiplied: a last half of a block is half the work."""
    return -(-channels // (context.channel_block // 2)) / 2


def _block_steps(context: PassContext) -> float:
    return max(context.channel_block / context.vector_lanes, 1)


def usual_sizes(program: Program, shape: tuple[Dim, ...], images: bool = True) -> tuple[int, ...]:
    """A shape with a likely number for each symbol, within its range; the first dim is of images,
    if there is one.
    """
    return tuple(
        _usual(program, d, _USUAL_IMAGES if images and i == 0 else _USUAL_SIZE)
        for i, d in enumerate(shape)
    )


def _usual(program: Program, dim: Dim, number: int) -> int:
    sizes = {}
    for name in symbols(dim):
        lo, hi = program.ranges.get(name, (0, None))
        sizes[name] = max(number if hi is None else min(number, hi), lo)
    return max(evaluate(dim, sizes), 0)


def _replace(operation: Operation, tile: Tile, made: Made) -> None:
    x, w, *bias = operation.operands
    attrs = ir.attrs(operation)
    strides = attrs["strides"]
    with ir.before(operation):
        u = made.get((w, tile, strides))
        if u is None:
            u = ir.build("ai.winograd_weights", w, tile=tile, strides=strides)
            made[w, tile, strides] = u
        result = ir.build(
            "ai.conv_winograd", x, u, *bias, tile=tile, strides=strides,
            pads_begin=attrs["pads_begin"], pads_end=attrs["pads_end"], stack=attrs["stack"],
            stack_step=attrs["stack_step"],
        )  # fmt: skip
    ir.replace(operation, result)
