"""Which convolutions Winograd's filtering computes: same values; every refusal has a reason."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes import (
    PIPELINE,
    choose_convolutions,
    choose_layouts,
    fuse,
    outline_kernels,
    plan_memory,
)
from cuvilc.dialect.passes.choose_convolutions import MOST_ERROR, RULE, usual_sizes
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.verify_launch import LaunchError, verify_launch
from cuvilc.dialect.winograd import error_bound
from tests.dialect.passes.programs import make, same
from tests.tolerances import REWRITTEN


def convolution(
    channels: int = 32, outputs: int = 32, size: Any = "20,20", window: Any = (3, 3),
    groups: int = 1, stride: int = 1, dilation: int = 1, batch: str = "1", ranges: Any = None,
    strides: Any = None,
) -> Any:  # fmt: skip
    def body(m: Any, x: Any) -> Any:
        w = m.weight(outputs, channels // groups, *window)
        pads = tuple(n // 2 for n in window)
        y = ir.build(
            "ai.conv", x, w, m.weight(outputs), strides=strides or (stride,) * 2, pads_begin=pads,
            pads_end=pads, dilations=(dilation,) * 2, groups=groups,
        )  # fmt: skip
        return m.relu(y)

    return make({"x": f"[{batch},{channels},{size}]"}, body, ranges)


def names(program: Any) -> list[str]:
    with program:
        return [o.name for o in ir.walk(ir.body(program.function("main")))]


def chosen(program: Any, **options: Any) -> tuple[int, PassContext]:
    """(results along a side of a tile, 0 for the direct convolution; the context) of the one
    convolution.
    """
    context = PassContext(**options)
    choose_convolutions.run(program, context)
    program.verify()
    with program:
        made = [
            o for o in ir.walk(ir.body(program.function("main"))) if o.name == "ai.conv_winograd"
        ]
        return (max(ir.attrs(made[0])["tile"]) if made else 0), context


@pytest.mark.parametrize(
    ("size", "batch", "stride", "window"),
    [
        ("20,20", "1", 1, (3, 3)), ("7,13", "3", 1, (3, 3)), ("8,8", "2", 1, (3, 3)),
        ("n,9", "1", 1, (3, 3)), ("41,56", "2", 2, (3, 3)), ("7,16", "3", 1, (1, 3)),
        ("19,n", "1", 1, (3, 1)),
    ],
)  # fmt: skip
def test_same_values(size: str, batch: str, stride: int, window: Any) -> None:
    program = convolution(64, 64, size, batch=batch, stride=stride, window=window)
    same(program, choose_convolutions, limit=REWRITTEN, sizes={"n": 11})
    assert names(program).count("ai.conv_winograd") == 1


def test_twice_is_once() -> None:
    program = convolution()
    chosen(program)
    text = program.text()
    chosen(program)
    assert program.text() == text


@pytest.mark.parametrize(
    ("channels", "size", "stride", "tile"),
    [
        (64, 56, 1, 4), (128, 28, 1, 4), (256, 14, 1, 4), (512, 7, 1, 2),
        (128, 56, 2, 4), (256, 28, 2, 2), (512, 14, 2, 0),
    ],
)  # fmt: skip
def test_residual_networks(channels: int, size: int, stride: int, tile: int) -> None:
    """Few pixels of many channels: there the smaller tile reads weights as fast as it counts."""
    found, context = chosen(convolution(channels, channels, f"{size},{size}", stride=stride))
    assert found == tile
    assert context.applied[RULE] == (tile > 0)


@pytest.mark.parametrize(
    ("channels", "size", "window", "strides", "tile"),
    [
        (24, "74,32", (1, 3), (1, 1), 4), (48, "34,16", (3, 1), (1, 1), 4),
        (96, "8,2", (3, 1), (1, 1), 2), (512, "1,249", (1, 3), (1, 1), 4),
        (512, "1,799", (1, 3), (1, 2), 4), (64, "1,50", (1, 3), (1, 2), 0),
        (32, "5,5", (1, 3), (1, 1), 0), (96, "10,2", (1, 3), (1, 1), 0),
    ],
)  # fmt: skip
def test_windows_of_one_axis(
    channels: int, size: str, window: Any, strides: Any, tile: int
) -> None:
    """Planes of few pixels stay direct: half of a tile, or more, would lie beyond them."""
    layer = convolution(channels, channels, size, window, strides=strides)
    found, context = chosen(layer)
    assert found == tile
    assert context.applied[RULE] == (tile > 0)


def test_speed_has_no_regard_for_memory() -> None:
    """A layer where both tiles are about as fast."""
    layer = {"channels": 384, "outputs": 384, "size": "10,10"}
    small, _ = chosen(convolution(**layer))
    fast, _ = chosen(convolution(**layer), prefer="speed")
    assert (small, fast) == (2, 4)


def test_bfloat16_must_be_beaten() -> None:
    """With --precision bf16 only the layers are left that are much faster so, with --prefer speed
    those that are faster at all.
    """
    for size, channels, balanced, speed in (
        ("56,56", 64, 4, 4), ("14,14", 256, 4, 4), ("13,13", 384, 0, 4), ("7,7", 512, 0, 0),
    ):  # fmt: skip
        layer = {"channels": channels, "outputs": channels, "size": size}
        assert chosen(convolution(**layer), precision="bf16")[0] == balanced, size
        assert chosen(convolution(**layer), precision="bf16", prefer="speed")[0] == speed, size
        assert chosen(convolution(**layer))[0] > 0, size


@pytest.mark.parametrize(
    ("layer", "options", "why"),
    [
        ({"stride": 3}, {}, "strides 3×3"),
        ({"strides": (1, 3)}, {}, "strides 1×3"),
        ({"window": (1, 3), "size": "1,9"}, {}, "of the direct convolution's time"),
        ({"window": (1, 3)}, {"math_exact": True}, "--math exact keeps the sums of the definition"),
        ({"window": (1, 3)}, {"precision": "bf16"}, "of the direct convolution's time"),
        ({"dilation": 2}, {}, "dilations 2×2"),
        ({"groups": 2}, {}, "2 groups"),
        ({"channels": 8}, {}, "8 input channels do not fill a block of 16"),
        ({"size": "1,1"}, {}, "of the direct convolution's time"),
        ({"outputs": 0}, {}, "nothing to compute"),
        ({"channels": 20_000, "outputs": 8}, {}, "would lose too many digits"),
        ({}, {"math_exact": True}, "--math exact keeps the sums of the definition"),
        ({}, {"prefer": "size"}, "--prefer size keeps no second form of the weights"),
        ({}, {"precision": "bf16", "prefer": "size"}, "--prefer size keeps no second form"),
    ],
    ids=str,
)
def test_refusals(layer: Any, options: Any, why: str) -> None:
    tile, context = chosen(convolution(**layer), **options)
    assert tile == 0
    (found,) = context.why(RULE)
    assert why in found


@pytest.mark.parametrize("window", [(1, 1), (5, 5), (1, 5), (3, 5), (2, 3)])
def test_other_windows_are_no_candidates(window: Any) -> None:
    tile, context = chosen(convolution(window=window))
    assert (tile, context.why(RULE)) == (0, [])


def test_the_larger_tile_is_refused_first_where_sums_are_long() -> None:
    channels = 2048
    assert error_bound((2, 2), channels) < MOST_ERROR < error_bound((4, 4), channels)
    tile, _ = chosen(convolution(channels, 16, "56,56"), prefer="speed")
    assert tile == 2


def test_weights_that_are_not_constant() -> None:
    def computed(m: Any, x: Any, w: Any) -> Any:
        return m.conv(x, w, pad=1)

    tile, context = chosen(make({"x": "[1,32,20,20]", "w": "[32,32,3,3]"}, computed))
    assert (tile, context.why(RULE)) == (0, ["the weights are no constants"])


def test_weights_that_adapters_exchange() -> None:
    def body(m: Any, x: Any) -> Any:
        attrs = ir.attrs(ir.defining(m.weight(32, 32, 3, 3)))
        w = ir.build("ai.parameter", **attrs, parts=(), out_axis=0)
        return m.conv(x, w, pad=1)

    tile, context = chosen(make({"x": "[1,32,20,20]"}, body))
    assert (tile, context.why(RULE)) == (0, ["adapters may exchange the weights"])


def test_equal_weights_are_transformed_once() -> None:
    def body(m: Any, x: Any) -> Any:
        w = m.weight(32, 32, 3, 3)
        return m.conv(m.relu(m.conv(x, w, pad=1)), w, pad=1)

    program = make({"x": "[1,32,20,20]"}, body)
    chosen(program)
    assert names(program).count("ai.winograd_weights") == 1
    assert names(program).count("ai.conv_winograd") == 2


def test_usual_sizes_stay_within_ranges() -> None:
    program = convolution(
        size="h,w", batch="n", ranges={"n": (2, 4), "h": (0, 64), "w": (300, None)}
    )
    with program:
        x = ir.body(program.function("main")).arguments[0]
        shape = ir.type_of(x).shape
    assert usual_sizes(program, (shape[0], *shape[2:])) == (2, 64, 300)


def lowered() -> Any:
    program = convolution(33, 40, "9,10")
    same(program, choose_convolutions, choose_layouts, fuse, outline_kernels, plan_memory,
         limit=REWRITTEN)  # fmt: skip
    return program


def test_lowered_weights_are_prepared() -> None:
    """Same values at every level, and the launch of constants lies in prepared memory."""
    program = lowered()
    with program:
        places = [
            place
            for o in ir.walk(ir.body(program.function("main")))
            if o.name == "ai.cpu.launch"
            for place in ir.attrs(o)["places"]
        ]
    assert ("prepared", 0) in places
    assert [m.NAME for m in PIPELINE].index("choose-convolutions") < [
        m.NAME for m in PIPELINE
    ].index("choose-layouts")


def test_what_needs_a_run_cannot_be_prepared() -> None:
    program = lowered()
    with program:
        last = [o for o in ir.walk(ir.body(program.function("main"))) if o.name == "ai.cpu.launch"][
            -1
        ]
        last.attributes["places"] = ir.write_attr((("prepared", 1 << 20),))
    with pytest.raises(LaunchError, match="is prepared and needs a run"):
        verify_launch(program)


def test_prepared_places_are_apart() -> None:
    def body(m: Any, x: Any) -> Any:
        first = m.relu(m.conv(x, m.weight(32, 32, 3, 3), pad=1))
        return m.conv(first, m.weight(32, 32, 3, 3), pad=1)

    program = make({"x": "[1,32,20,20]"}, body)
    for each in (choose_convolutions, choose_layouts, fuse, outline_kernels, plan_memory):
        each.run(program, PassContext())
    with program:
        prepared = [
            o
            for o in ir.walk(ir.body(program.function("main")))
            if any(kind == "prepared" for kind, _ in ir.places(o))
        ]
        assert [ir.places(o)[0][1] for o in prepared] == [0, 36 * 32 * 32 * 4]
        prepared[1].attributes["places"] = ir.write_attr((("prepared", 64),))
    with pytest.raises(LaunchError, match="is in use"):
        verify_launch(program)
