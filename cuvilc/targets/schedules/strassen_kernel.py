"""What a kernel by Strassen's method does besides its operands' places and its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import GROUP_BYTES, PAIRS
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules import conv_strassen_texts, conv_words_parts
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import first_of, lesser
from cuvilc.targets.schedules.strassen_sizes import Sizes
from cuvilc.targets.tir import Buffer, as_expr

Each = Callable[[Callable[[Any, Any], None]], None]  # body(tile, its first row) of a task's tiles


class Strassen:
    """Scratch memory and steps of a task; `results` are a tile's sums [row, block, BLOCK]."""

    def __init__(self, emitter: Emitter, chip: Chip, sizes: Sizes) -> None:
        self.emitter, self.sizes = emitter, sizes
        self.b, self.k = emitter.builder, emitter.k
        self._weigh = conv_words_parts.strassen_weights(chip, sizes.depth)
        self._products = conv_words_parts.products(chip, sizes.tiles)
        b = self.b
        self.seen = b.scratch(sizes.points * sizes.point, PAIRS.laid)
        self.weights = b.scratch(sizes.points * sizes.weights_point, PAIRS.laid)
        self.made = b.scratch(sizes.points * sizes.made_point, PAIRS.sums)
        self.results = b.scratch(sizes.parts**2 * BLOCK, PAIRS.sums)

    def task(
        self, t: Any, unit: Any, row_group: Any, w: Buffer, transform: Callable[[Each], None],
        store: Callable[[Any], None],
    ) -> None:  # fmt: skip
        """Task t: `transform` its rows, unless the task before it had the same, multiply them with
        a unit of weights, and store(first row) the `results` of each tile.
        """
        sizes, b = self.sizes, self.b
        low = b.let(row_group * sizes.rows)
        rows = b.let(lesser(sizes.total - low, sizes.rows))
        first = self.k.either(self.k.eq(t, b.begin), self.k.eq(unit, 0))
        alone = None if sizes.units == 1 else first
        tiles = b.let(self.k.floordiv(rows + (sizes.parts - 1), sizes.parts))

        def each(body: Callable[[Any, Any], None]) -> None:
            with b.loop(tiles, name="t") as tile:
                # The last tile may have some rows of the one before.
                ahead = b.let(lesser(tile * sizes.parts, rows - sizes.parts))
                body(tile, b.let(low + ahead))

        def finish(tile: Any, start: Any) -> None:
            self._sum_up(tile)
            store(start)

        first_of(b, [(alone, lambda: transform(each))])
        self._multiply(w, unit, tiles)
        each(finish)

    def see(self, x: Buffer, tile: Any, places: Sequence[Any], plane: Any) -> None:
        """Transform a tile's rows, which begin at these bytes, blocks of channels `plane` apart."""
        sizes, b = self.sizes, self.b
        name = f"cuvil_left{sizes.depth}"
        b.llvm(name, conv_strassen_texts.left_text(name, sizes.depth))
        with b.loop(sizes.inner // BLOCK, name="c") as c:
            ahead = c * (sizes.parts * plane)
            call = tirx.call_extern(
                "int32", name, x.data, *(as_expr(place + ahead) for place in places),
                as_expr(plane), self.seen.data, as_expr(tile * sizes.inner + c * BLOCK),
                as_expr(sizes.point),
            )  # fmt: skip
            b.emit(tirx.Evaluate(call))

    def _multiply(self, w: Buffer, unit: Any, tiles: Any) -> None:
        """Transform a unit's weights, and multiply the inputs of so many tiles with them."""
        sizes, b = self.sizes, self.b
        block = b.let(unit * sizes.parts)
        panel = self.k.floordiv(block, PANEL // BLOCK)
        half = (block - panel * (PANEL // BLOCK)) * BLOCK
        first = b.let(panel * (sizes.channels * PANEL) + half * GROUP_BYTES)
        self.emitter.call(
            self._weigh, (w, self.weights), (first, sizes.inner // BLOCK, sizes.weights_point)
        )
        self.emitter.call(
            self._products, (self.seen, self.weights, self.made),
            (sizes.points, tiles, sizes.inner, sizes.point, sizes.weights_point, sizes.made_point),
        )  # fmt: skip

    def _sum_up(self, tile: Any) -> None:
        """A tile's products become its results."""
        b, depth = self.b, self.sizes.depth
        name = f"cuvil_sums{depth}"
        b.llvm(name, conv_strassen_texts.sums_text(name, depth, self.sizes.made_point))
        call = tirx.call_extern(
            "int32", name, self.made.data, as_expr(tile * BLOCK), self.results.data
        )
        b.emit(tirx.Evaluate(call))
