"""3×3 convolutions one by one: the direct schedule beside Winograd's F(2×2) and F(4×4).

`python benchmarks/winograd.py [v3|v4] [CHANNELSxSIZE[/2]…]`, else layers of residual networks.
Kernels are timed in turns, on one thread and on two that share a layer's tasks; each cell is the
least time and the median. The last column is what choose-convolutions takes, by `--prefer`.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks.kernels import conv
from cuvilc.dialect import ir
from cuvilc.dialect.passes import choose_convolutions
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import TILES, weight_points
from cuvilc.targets import x86
from cuvilc.targets.schedules import winograd
from tests.targets.kernel_harness import Kernel, Launch, guarded_array, program_of, random_feeds

LAYERS = ("64x56", "128x28", "256x14", "512x7", "128x56/2", "256x28/2", "512x14/2")
SECONDS = 3.0  # a layer and number of threads


def tiled(channels: int, size: int, tile: int, stride: int) -> Any:
    types = [
        TensorType((1, channels, size, size), layout="NCHW16c"),
        TensorType((channels, weight_points(tile) ** 2, channels), layout="pack0_32"),
        TensorType((channels,)),
    ]

    def body(x: Any, u: Any, bias: Any) -> Any:
        value = ir.build(
            "ai.conv_winograd", x, u, bias, tile=tile, stride=stride, pads_begin=(1, 1),
            pads_end=(1, 1), out_layout="NCHW16c",
        )  # fmt: skip
        return ir.build("ai.relu", value)

    return program_of(types, body), winograd.schedule


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


def chosen(channels: int, size: int, stride: int) -> str:
    """What the compiler takes, by preference."""
    found = {}
    for prefer in ("balanced", "speed"):
        context = PassContext(prefer=prefer)
        sizes, counts = (1, size, size), (-(-size // stride),) * 2
        try:
            tile = choose_convolutions.cheapest(
                context, channels, channels, sizes, counts, (1, 1), stride
            )
            found[prefer] = f"F({tile}×{tile})"
        except choose_convolutions.Miss:
            found[prefer] = "direct"
    return ", ".join(f"{prefer} {name}" for prefer, name in found.items())


def measure(layer: str, chip: Any) -> None:
    sizes, _, strided = layer.partition("/")
    (channels, size), stride = map(int, sizes.split("x")), int(strided or 1)
    programs = {"direct": conv(channels, size, channels, 3, stride)}
    programs |= {f"F({t}×{t})": tiled(channels, size, t, stride) for t in TILES}
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
        print(f"{chip.name} {layer:9} {threads} thread{'s' * (threads > 1)}: ", end="")
        print("   ".join(cells), "  ", chosen(channels, size, stride), flush=True)


def main(words: list[str]) -> None:
    chips = [x86.CHIPS[f"x86-64-{v}"] for v in ("v4", "v3") if v in words]
    for chip in chips or [x86.CHIPS["x86-64-v4"]]:
        for layer in [w for w in words if "x" in w] or LAYERS:
            measure(layer, chip)


if __name__ == "__main__":
    main(sys.argv[1:])
