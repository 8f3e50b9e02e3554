"""non_max_suppression: each class goes down its ranking; boxes that stay are noted in scratch."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules.special_common import argument, lone, unravel
from cuvilc.targets.tir import as_expr, const

Box = tuple[Any, Any, Any, Any]  # y0, x0, y1, x1


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one non_max_suppression alone; a task is a class of a batch's element."""
    anchor = lone(region, "ai.non_max_suppression")
    for value in anchor.operands:
        argument(region, value)
    emitter = Emitter(region, name)
    batch, classes, count = ir.type_of(anchor.operands[1]).shape
    suppression = _Suppression(emitter, anchor)
    with emitter.builder.tasks() as t:
        suppression.rank(unravel(emitter, t, (batch, classes)))
    # at worst every box is compared with every other: some ten operations each
    return emitter.finish("suppression", batch * classes, product((batch, classes, count)) * count)


class _Suppression:
    """The operands, and the boxes of one class that have stayed so far."""

    def __init__(self, emitter: Emitter, anchor: Any) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.center = ir.attrs(anchor)["center"]
        each = [emitter.accessor(v) for v in anchor.operands]
        self.boxes, self.scores, self.order, self.most, self.overlap, self.least = each
        count = ir.type_of(anchor.operands[1]).shape[2]
        self.count = as_expr(self.b.scalar(count))
        self.kept = self.b.scratch(count + 1, "int64")  # room for one even without boxes

    def rank(self, task: list[Any]) -> None:
        """One class: `task` is (batch, class)."""
        b = self.b
        found = b.variable(const(0))
        most = b.let(self.most[()])
        overlap, least = b.let(self.overlap[()]), b.let(self.least[()])
        with b.loop(self.count) as r:
            stays = b.variable(const(0))
            score = b.let(self.scores[(*task, r)])
            with b.when(tirx.And(found.get() < most, score > least)):
                box = b.let(self.order[(*task, r)])
                mine = self._corners(task[0], box)
                other = b.variable(const(0))
                stays.set(const(1))
                with b.repeat(tirx.And(other.get() < found.get(), stays.get() > const(0))):
                    theirs = self._corners(task[0], b.let(b.load(self.kept, other.get())))
                    with b.when(self._suppresses(mine, theirs, overlap)):
                        stays.set(const(0))
                    other.set(other.get() + 1)
                with b.when(stays.get() > const(0)):
                    b.store(self.kept, found.get(), box)
                    found.set(found.get() + 1)
            self.emitter.store(0, (*task, r), b.let(stays.get() > const(0)))

    def _corners(self, batch: Any, box: Any) -> Box:
        b = self.b
        p, q, r, s = (b.let(self.boxes[batch, box, const(i)]) for i in range(4))
        if self.center:
            half = self.k.const(0.5, "float32")
            ends = (p - r * half, q - s * half, p + r * half, q + s * half)
        else:
            ends = (tirx.min(p, r), tirx.min(q, s), tirx.max(p, r), tirx.max(q, s))
        return tuple(b.let(x) for x in ends)

    def _suppresses(self, a: Box, c: Box, overlap: Any) -> Any:
        """Whether the two boxes' intersection over union is above the threshold."""
        b, zero = self.b, self.k.const(0.0, "float32")
        height = b.let(tirx.min(a[2], c[2]) - tirx.max(a[0], c[0]))
        width = b.let(tirx.min(a[3], c[3]) - tirx.max(a[1], c[1]))
        areas = [b.let((box[2] - box[0]) * (box[3] - box[1])) for box in (a, c)]
        solid = tirx.And(tirx.And(height > zero, width > zero), tirx.min(*areas) > zero)
        shared = b.let(height * width)
        return tirx.And(solid, shared / (areas[0] + areas[1] - shared) > overlap)
