"""Convolutions by Winograd's filtering, on channel-blocked activations: one kernel a layer.

A task is some tiles of the result times some output channels. It transforms the inputs that the
tiles see into scratch, multiplies them for each of the tile's points with that point's weights, and
transforms the products back, unit of output channels by unit, at whose store the epilogue follows.
Tasks of one call that differ only in output channels share the transformed inputs. Layers that
differ only in sizes share all of it (winograd_sizes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.dialect.dims import symbol
from cuvilc.dialect.winograd import matrices
from cuvilc.targets.chip import Chip
from cuvilc.targets.facts import Facts
from cuvilc.targets.part import Part, call_numbered, part
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules import winograd_parts
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import first_of, greater, lesser, opaque, split
from cuvilc.targets.schedules.winograd_plan import Plan, plan_of
from cuvilc.targets.schedules.winograd_sizes import Sizes, decides, renamed_types, sizes_of
from cuvilc.targets.schedules.winograd_transforms import combine
from cuvilc.targets.tir import Buffer, as_expr


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_winograd with an elementwise epilogue."""
    plan = plan_of(region, chip)
    parts, types = _parts(plan, chip), renamed_types(region, plan)
    sizes = sizes_of(plan, parts, shared=types is not None)
    if types is None:
        return vectorized(
            lambda vector: _Winograd(region, chip, name, plan, sizes, parts, vector).build()
        )
    code = _shared(replace(region, renamed=types), chip, plan, sizes, parts)
    called = (*parts.values(), code)
    facts = Facts(
        "winograd", (*region.scalars, *sizes.passed()), plan.tasks, sizes.scratch_bytes,
        plan.flops, region.moved_bytes(), parts=tuple(p.symbol for p in called), code=code.symbol,
    )  # fmt: skip
    return Scheduled(None, facts, called)


def _parts(plan: Plan, chip: Chip) -> dict[str, Part]:
    """What a layer calls, by the names of sizes."""
    size, _, spread = plan.row_sizes

    def products(width: int) -> Part:
        rest = plan.channels % BLOCK
        return winograd_parts.products(chip, size, spread, width, rest)

    found = {
        "inputs": winograd_parts.inputs(chip, plan.tile, plan.strides),
        "products": products(plan.unit_width),
        "results": winograd_parts.results(chip, plan.tile, plan.strides),
    }
    narrow = plan.last_width != plan.unit_width
    return found | ({"last_products": products(plan.last_width)} if narrow else {})


def _shared(region: Region, chip: Chip, plan: Plan, sizes: Sizes, parts: dict[str, Part]) -> Part:
    """The code of all layers that differ from this one in sizes only."""
    before = tuple(symbol(f"before{i}") for i in range(len(region.scalars)))
    passed = (*before, *sizes.named())

    def build(chip: Chip, name: str) -> Any:
        own = replace(region, scalars=passed)
        with region.program:
            made = vectorized(
                lambda vector: _Winograd(own, chip, name, plan, sizes, parts, vector).build()
            )
        assert made.facts.scalars == passed  # shared code reads nothing else
        return made.function

    return part(chip, build, f"winograd_{decides(region, plan)}")


class _Winograd:
    """Code of a layer: of `plan` only what `decides` tells, everything else is in `sizes`."""

    def __init__(
        self, region: Region, chip: Chip, name: str, plan: Plan, sizes: Sizes,
        parts: dict[str, Part], vectorize: bool,
    ) -> None:  # fmt: skip
        self.chip, self.plan, self.sizes, self.parts = chip, plan, sizes, parts
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.x, self.u = (self.emitter.argument(v) for v in plan.anchor.operands[:2])
        self.store = ChannelStore(self.emitter, plan.anchor, plan.outputs, vectorize)
        self.at_once = plan.one_axis and self.store.epilogue.unrolls
        self.seen = self.b.scratch(sizes["seen_lines"] * BLOCK, "float32")
        self.made = self.b.scratch(sizes["made_lines"] * BLOCK, "float32")
        # Between the two halves of a transform; not on the stack, which is aligned to 16 bytes.
        self.half = self.b.scratch(plan.products * BLOCK, "float32")

    def size(self, name: str) -> Any:
        """A size of the layer, as an index."""
        return self.b.scalar(self.sizes[name])

    def split(self, flat: Any, name: str) -> tuple[Any, Any]:
        """(flat mod a size, flat div it) of an index, which is never negative."""
        size = self.size(name)
        if isinstance(size, int):
            return split(self.emitter, flat, size)
        whole = self.b.let(tirx.truncdiv(flat, size))
        return self.b.let(flat - whole * size), whole

    def call(self, name: str, buffers: Sequence[Buffer], indices: Sequence[Any]) -> None:
        """Call one of the parts."""
        if self.sizes.shared:
            call_numbered(self.b, self.size(name), buffers, indices)
        else:
            self.emitter.call(self.parts[name], buffers, indices)

    def build(self) -> Scheduled:
        b = self.b
        with b.tasks() as t:
            unit_group, group = self.split(t, "unit_groups")
            row_tiles, units = self.size("row_tiles"), self.size("units")
            low = b.let(group * row_tiles)
            high = b.let(lesser(low + row_tiles, self.size("row_tile_count")))
            rows = _Rows(self, low, high)
            first = b.let(unit_group * units)
            last = b.let(lesser(first + units, self.size("unit_count")))
            if isinstance(unit_group, int):
                self._see_all(rows)
            else:
                with b.when(self.k.either(self.k.eq(t, b.begin), self.k.eq(unit_group, 0))):
                    self._see_all(rows)
            with b.loop(last - first, start=first, name="u") as unit:
                self._unit(rows, unit)
        return self.emitter.finish("winograd", self.plan.tasks, self.plan.flops)

    def _unit(self, rows: _Rows, unit: Any) -> None:
        plan = self.plan

        def of(width: int, name: str) -> None:
            block = self.b.let(unit * plan.unit_blocks)
            self._multiply(rows, block, name)
            rows.each(partial(self._finish, block, -(-width // BLOCK)))

        cases: list[tuple[Any, Callable[[], None]]]
        cases = [(None, lambda: of(plan.unit_width, "products"))]
        if "last_products" in self.parts:
            cases[0] = (unit < self.size("unit_count") - 1, cases[0][1])
            cases.append((None, lambda: of(plan.last_width, "last_products")))
        first_of(self.b, cases)

    def _see_all(self, rows: _Rows) -> None:
        """Transform all inputs that the rows see."""
        names = (
            "tiles_down", "tiles_across", "channel_blocks", "image_blocks", "height", "width",
            "pad_top", "pad_left", "point_stride", "block_stride",
        )  # fmt: skip
        self.call(
            "inputs", (self.x, self.seen, self.half),
            (rows.first, rows.last, *map(self.size, names)),
        )  # fmt: skip

    def _multiply(self, rows: _Rows, block: Any, name: str) -> None:
        """The products of all points for some blocks of output channels."""
        share = PANEL // BLOCK
        panel = self.k.floordiv(block, share)
        weights = self.b.let(panel * self.size("panel") + (block - panel * share) * BLOCK)
        size = self.size
        self.call(
            name, (self.seen, self.u, self.made),
            (size("points"), size("points_across"), size("weights_down"), size("weights_across"),
             *rows.range, size("many"), weights, size("channels"), size("point_stride"),
             size("block_stride")),
        )  # fmt: skip

    # ---- the results

    def _finish(self, block: Any, blocks: int, row: tuple[Any, Any, Any], place: Any) -> None:
        """Transform the products of the tile at `row` back, and store them."""
        b = self.b
        image, down, across = row
        top, lines = self._results(down, "tile_down", "out_height")
        left, columns = self._results(across, "tile_across", "out_width")
        point_stride, block_stride = self.size("point_stride"), self.size("block_stride")
        with b.loop(opaque(b, blocks), name="h") as h:
            source = b.let(h * block_stride + place * BLOCK)
            channels = b.let(block + h)

            def whole() -> None:
                self._whole(source, image, channels, (top, left))

            def partly() -> None:
                self.call("results", (self.made, self.half), (source, point_stride))
                # LLVM shall unroll neither loop: what follows would be as often in the code.
                rows = b.loop(opaque(b, lines), name="i")
                with rows as i, b.loop(opaque(b, columns), name="p") as p:
                    at = b.let((i * self.size("points_across") + p) * BLOCK)
                    self.store.pixel(self.half, at, image, channels, (top + i, left + p))

            if not self.at_once:
                partly()
            else:
                axis = self.plan.axis
                full = self.k.eq((lines, columns)[axis], self.plan.tile[axis])
                first_of(b, [(full, whole), (None, partly)])

    def _whole(self, source: Any, image: Any, channels: Any, start: tuple[Any, Any]) -> None:
        """Transform and store a block of channels of a whole tile of one axis, from `start` on."""
        b, k, axis = self.b, self.k, self.plan.axis
        matrix = matrices(self.plan.tile, self.plan.strides)[axis].output
        steps = [b.let(source + p * self.size("point_stride")) for p in range(len(matrix[0]))]
        top, left = start

        def values(lane: Any) -> list[Any]:
            loads = [k.let(b.load(self.made, step + lane)) for step in steps]
            return [k.let(value) for value in combine(k, matrix, loads)]

        places = [(top + i, left) if axis == 0 else (top, left + i) for i in range(len(matrix))]
        self.store.pixels_of(values, image, channels, places)

    def _results(self, number: Any, tile: str, size: str) -> tuple[Any, Any]:
        """(the first, how many) of the tile of that number along an axis."""
        most = self.size(tile)
        first = self.b.let(number * most)
        return first, self.b.let(lesser(self.size(size) - first, most))


class _Rows:
    """The tiles of a task: those of row tiles [low, high)."""

    def __init__(self, owner: _Winograd, low: Any, high: Any) -> None:
        self.owner, self.b = owner, owner.b
        b, size = owner.b, owner.size("row_size")
        if owner.plan.row_sizes[2] == "open":
            self.first = b.let(low * size)
            self.last = b.let(lesser(high * size, owner.size("total")))
            self.range = self.first, self.last
        else:
            many = owner.size("many")
            self.first, self.last = (
                b.let(tile * size - greater(tile - many, 0)) for tile in (low, high)
            )
            self.range = low, high

    def each(self, body: Callable[[tuple[Any, Any, Any], Any], None]) -> None:
        """body(tile as (image, down, across), its place in the scratch) of every tile."""
        b, owner = self.b, self.owner
        tiles_across, tiles_down = owner.size("tiles_across"), owner.size("tiles_down")
        x, rest = owner.split(self.first, "tiles_across")
        y, n = owner.split(rest, "tiles_down")
        across, down, image = (b.variable(as_expr(start)) for start in (x, y, n))
        with b.loop(self.last - self.first, name="r") as place:
            body(tuple(b.let(v.get()) for v in (image, down, across)), place)
            winograd_parts.advance(b, (across, tiles_across), (down, tiles_down), image)
