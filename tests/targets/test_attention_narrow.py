"""Attention whose products are of bfloat16: its error is that of rounding, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import attention, attention_narrow
from tests.targets.kernel_harness import V4, Kernel, program_of, random_feeds, tensor
from tests.targets.samples import BF16
from tests.tolerances import RELATIVE


def program(*shapes: str, narrow: bool = True, mask: str = "", **attrs: Any) -> Any:
    types = [tensor(shape) for shape in shapes] + ([tensor(mask)] if mask else [])
    attrs = {"scale": 0.2, "narrow": narrow, **attrs}
    return program_of(types, lambda *x: ir.build("ai.attention", *x, **attrs))


def error(kernel: Kernel, sizes: dict[str, int] | None = None) -> float:
    """The largest, relative to the result's scale; tasks may be split in any way."""
    feeds = random_feeds(kernel.program, sizes or {})
    (wanted,) = interpret(kernel.program, feeds).values()
    whole, split = kernel.run(feeds)[0], kernel.run(feeds, splits=(1, 3, 7))[0]
    assert whole.tobytes() == split.tobytes()
    assert np.isfinite(whole).all()
    return float(np.abs(whole - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize(("depth", "features"), [(64, 64), (16, 48), (80, 96), (128, 16)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["", "b,1,s,t"])
def test_any_size(depth: int, features: int, causal: bool, mask: str) -> None:
    shapes = (f"b,4,s,{depth}", f"b,2,t,{depth}", f"b,2,t,{features}")
    kernel = Kernel(program(*shapes, mask=mask, causal=causal), BF16, attention_narrow.schedule)
    worst = 0.0
    sizes = [(1, 1, 1), (2, 7, 64), (1, 48, 65), (1, 50, 130), (1, 97, 33), (1, 131, 131)]
    for b, s, t in [*sizes, (1, 261, 261), (1, 9, 515)]:
        worst = max(worst, error(kernel, {"b": b, "s": s, "t": t}))
    assert 1e-5 < worst < RELATIVE["bfloat16"]


def test_one_instruction_multiplies() -> None:
    made = program("1,2,197,64", "1,2,197,64", "1,2,197,64")
    narrow, wide = (Kernel(made, BF16, s) for s in (attention_narrow.schedule, attention.schedule))
    assert "vdpbf16ps" in narrow.assembly()
    assert "vdpbf16ps" not in wide.assembly()
    assert error(wide) < 1e-6 < error(narrow)


@pytest.mark.parametrize("t", [1, 3, 64, 65, 257])
def test_an_infinite_value_is_no_nan(t: int) -> None:
    """Also of the last key, which may be alone in its group."""
    kernel = Kernel(program("1,1,5,16", f"1,1,{t},16", f"1,1,{t},16"), BF16,
                    attention_narrow.schedule)  # fmt: skip
    feeds = random_feeds(kernel.program, {})
    feeds["x2"][0, 0, -1, :7] = np.inf
    (found,) = kernel.run(feeds)
    assert np.isposinf(found[..., :7]).all() and np.isfinite(found[..., 7:]).all()


def test_keys_between_other_features() -> None:
    """q, k and v as slices of one projection, as models have them."""

    def body(x: Any) -> Any:
        parts = []
        for i in range(3):
            start, sizes = (0, 0, 64 * i), (1, 70, 64)
            part = ir.build("ai.slice", x, starts=start, steps=(1, 1, 1), sizes=sizes)
            part = ir.build("ai.reshape", part, shape=(1, 70, 2, 32))
            parts.append(ir.build("ai.transpose", part, perm=(0, 2, 1, 3)))
        return ir.build("ai.attention", *parts, scale=0.2, narrow=True)

    kernel = Kernel(program_of([tensor("1,70,192")], body), BF16, attention_narrow.schedule)
    assert 1e-5 < error(kernel) < RELATIVE["bfloat16"]


@pytest.mark.parametrize(
    ("shapes", "narrow", "chip"),
    [
        (("1,2,9,64", "1,2,9,64", "1,2,9,64"), False, BF16),
        (("1,2,9,64", "1,2,9,64", "1,2,9,64"), True, V4),
        (("1,2,9,24", "1,2,9,24", "1,2,9,64"), True, BF16),
        (("1,2,9,64", "1,2,9,64", "1,2,9,40"), True, BF16),
        (("1,2,1,64", "1,2,9,64", "1,2,9,64"), True, BF16),
        (("1,2,9,d", "1,2,9,d", "1,2,9,64"), True, BF16),
    ],
    ids=["not asked for", "no instruction", "depth", "features", "one query", "open depth"],
)
def test_refusals(shapes: Any, narrow: bool, chip: Any) -> None:
    with pytest.raises(Miss):
        Kernel(program(*shapes, narrow=narrow), chip, attention_narrow.schedule)
