"""A network to try the rule on: two convolutions with relu, of 16 and of 4 channels."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.op import write_attr
from cuvilc.dialect.types import TensorType


def two_convolutions() -> ir.Program:
    """relu(conv(relu(conv(x)))) on x [1, 3, 8, 8]."""
    program = ir.Program.create("two_convolutions")
    rng = np.random.default_rng(0)
    with program:
        block = ir.define_function(program, "main", [TensorType((1, 3, 8, 8))])
        x = block.arguments[0]
        with ir.at_end(block):
            for name, shape in (("wide", (16, 3, 3, 3)), ("narrow", (4, 16, 3, 3))):
                w = ir.constant(program, rng.standard_normal(shape, np.float32), f"{name}.weight")
                with ir.named(name):
                    y = ir.build(
                        "ai.conv", x, w, strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1),
                        dilations=(1, 1),
                    )  # fmt: skip
                with ir.named(f"{name}.relu"):
                    x = ir.build("ai.relu", y)
        main = block.owner.operation
        main.attributes["input_names"] = write_attr(("x",))
        main.attributes["output_names"] = write_attr(("y",))
        ir.finish_function(block, [x])
    return program
