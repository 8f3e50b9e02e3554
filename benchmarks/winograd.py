"""Convolutions one by one: the direct schedule beside Winograd's, with tiles of 2 and of 4.

`python benchmarks/winograd.py [v3|v4] [CHANNELSxSIZE[xWIDTH][:WINDOW][/2]…]`, else layers of
residual networks and some of windows 1×3 and 3×1.
Kernels are timed in turns, on one thread and on two that share a layer's tasks; each cell is the
least time and the median. The last column is what choose-convolutions takes, by `--prefer`.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from itertools import count
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from cuvilc.dialect import ir
from cuvilc.dialect.passes import choose_convolutions
from cuvilc.dialect.passes.choose_convolutions import Layer
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import TILES, tile_of, weight_points
from cuvilc.targets import x86
from cuvilc.targets.schedules import conv, winograd
from tests.targets.kernel_harness import Kernel, Launch, guarded_array, program_of, random_feeds

LAYERS = (
    "64x56", "128x28", "256x14", "512x7", "128x56/2", "256x28/2", "512x14/2",
    "24x74x32:1x3", "48x34x16:3x1", "96x12x4:3x1", "192x17:1x3", "512x1x249:1x3",
)  # fmt: skip
SECONDS = 3.0  # a layer and number of threads


def layer_of(text: str) -> Layer:
    sizes, _, stride = text.partition("/")
    sizes, _, window = sizes.partition(":")
    channels, *size = map(int, sizes.split("x"))
    size = (size * 2)[:2]
    taps = tuple(map(int, (window or "3x3").split("x")))
    down, across = (int(stride or 1) if n > 1 else 1 for n in taps)
    counts = -(-size[0] // down), -(-size[1] // across)
    pads = tuple(n // 2 for n in taps)
    return Layer(channels, channels, (1, *size), counts, taps, pads, (down, across))


def program(layer: Layer, tile: Any = None) -> Any:
    """Of the layer and a ReLU, direct without a tile; and its schedule."""
    c, pads = layer.channels, {"pads_begin": layer.pads, "pads_end": layer.pads}
    weights = (c, c, *layer.window) if tile is None else (c, prod(weight_points(tile)), c)
    types = [
        TensorType((1, c, *layer.sizes[1:]), layout="NCHW16c"),
        TensorType(weights, layout="pack0_32"),
        TensorType((c,)),
    ]

    def body(*operands: Any) -> Any:
        if tile is None:
            attrs = {"strides": layer.strides, "dilations": (1, 1)}
            value = ir.build("ai.conv", *operands, **attrs, **pads, out_layout="NCHW16c")
        else:
            attrs = {"tile": tile, "strides": layer.strides, "out_layout": "NCHW16c"}
            value = ir.build("ai.conv_winograd", *operands, **attrs, **pads)
        return ir.build("ai.relu", value)

    return program_of(types, body), (conv if tile is None else winograd).schedule


def spelled(tile: Any) -> str:
    return f"F({tile[0]}×{tile[1]})"


class Team:
    """One launch, whose tasks several threads take one after the other."""

    def __init__(self, launch: Launch, threads: int) -> None:
        self.launches = [launch, *(copy.copy(launch) for _ in range(threads - 1))]
        for other in self.launches[1:]:
            other._scratch = guarded_array(launch._scratch.shape, np.dtype(np.uint8))

    def __call__(self) -> float:
        """Seconds from the first task to the end of the last."""
        if len(self.launches) == 1:
            start = time.perf_counter()
            self.launches[0](0, self.launches[0].tasks)
            return time.perf_counter() - start
        tasks, gate = count(), threading.Barrier(len(self.launches) + 1)

        def work(launch: Launch) -> None:
            gate.wait()
            while (task := next(tasks)) < launch.tasks:
                launch(task, task + 1)
            gate.wait()

        members = [threading.Thread(target=work, args=(one,)) for one in self.launches]
        for member in members:
            member.start()
        gate.wait()
        start = time.perf_counter()
        gate.wait()
        seconds = time.perf_counter() - start
        for member in members:
            member.join()
        return seconds


def chosen(layer: Layer) -> str:
    """What the compiler takes, by preference."""
    found = {}
    for prefer in ("balanced", "speed"):
        context = PassContext(prefer=prefer)
        try:
            found[prefer] = spelled(choose_convolutions.cheapest(context, layer))
        except choose_convolutions.Miss:
            found[prefer] = "direct"
    return ", ".join(f"{prefer} {name}" for prefer, name in found.items())


def measure(text: str, chip: Any) -> None:
    layer = layer_of(text)
    programs = {"direct": program(layer)}
    for tile in (tile_of(t, layer.window) for t in TILES):
        programs[spelled(tile)] = program(layer, tile)
    launches = {
        name: Launch(Kernel(program, chip, schedule), random_feeds(program))
        for name, (program, schedule) in programs.items()
    }
    for threads in (1, 2):
        teams = {name: Team(launch, threads) for name, launch in launches.items()}
        times: dict[str, list[float]] = {name: [] for name in teams}
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for name, team in teams.items():
                times[name].append(team() * 1e3)
        least = {name: min(t) for name, t in times.items()}
        cells = [
            f"{name} {least[name]:.3f} ({median(t):.3f}) ms {least['direct'] / least[name]:.2f}x"
            for name, t in times.items()
        ]
        print(f"{chip.name} {text:12} {threads} thread{'s' * (threads > 1)}: ", end="")
        print("   ".join(cells), "  ", chosen(layer), flush=True)


def main(words: list[str]) -> None:
    chips = [x86.CHIPS[f"x86-64-{v}"] for v in ("v4", "v3") if v in words]
    for chip in chips or [x86.CHIPS["x86-64-v4"]]:
        for layer in [w for w in words if "x" in w] or LAYERS:
            measure(layer, chip)


if __name__ == "__main__":
    main(sys.argv[1:])
