"""Attention without its score matrix: blocks of keys against a chunk of queries, softmax carried
along.

A task is (batch, head, chunk of query rows). Per block of keys: kᵀ is packed so that scores come
as vectors over keys (for one or two queries it is read as it lies, with vectors over features),
each row's maximum and sum move on (Milakov & Gimelshein 2018, alg. 3), and p·v is added with
vectors over v's features (Dao et al. 2022). q, k and v may come through injective
operations, such as the reshape and transpose that cut heads out of a projection; the result may
pass through elementwise operations, then through transposes and reshapes, and is stored where they
put it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv, floordiv, product
from cuvilc.dialect.ops._index import reshape_index
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.attention_tile import outer_product
from cuvilc.targets.schedules.elementwise_loops import sweep
from cuvilc.targets.schedules.microkernel import balanced, lesser
from cuvilc.targets.schedules.reduction_fold import Fold
from cuvilc.targets.schedules.row_sums import row_sums
from cuvilc.targets.schedules.transpose_block import transpose_block
from cuvilc.targets.tir import as_expr, const, is_load, var

# Keys of a block at most: of few, sums of p·v go through memory often, and each row's maximum and
# sum are begun and ended for few scores. What a task holds of a block is then some 200 KiB.
_KEYS = 256
_ROUND = 64  # what its size is a multiple of
_CHUNK = 96  # query rows of a task at most: kᵀ is packed for each chunk anew
_TILE = 6  # query rows whose accumulators are in registers together
# A row's base stays while its maximum exceeds it by no more: e⁸ is far from any limit, and the sums
# so far need not be scaled for every block.
_SLACK = 8.0
FEW = 2  # queries for which packing kᵀ costs more than it spares
_MOVES = ("ai.transpose", "ai.reshape")


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions with one ai.attention."""
    parts = parts_of(region)
    return vectorized(lambda vector: Attention(region, *parts, chip, name, vector).build())


def parts_of(region: Region) -> tuple[Any, tuple[Any, list[Any]]]:
    """(the attention, what the loops compute at its index and what then moves it). Raises Miss."""
    anchors = region.named("ai.attention")
    if len(anchors) != 1:
        raise Miss(f"{len(anchors)} attentions, not one")
    (anchor,) = anchors
    ending = _moves(region, anchor)
    region.need_elements(anchor)
    return anchor, ending


def _moves(region: Region, anchor: Any) -> tuple[Any, list[Any]]:
    """(value, operations): what the loops compute at attention's own index, what then moves it."""
    if len(region.results) != 1 or ir.type_of(region.results[0]).layout:
        raise Miss("attention has one row-major result")
    chain: list[Any] = []
    value = region.results[0]
    while value != anchor.results[0] and (owner := ir.defining(value)) and owner.name in _MOVES:
        chain.insert(0, owner)
        value = owner.operands[0]
    if ir.type_of(value).shape != ir.type_of(anchor.results[0]).shape:
        raise Miss("attention's result changes shape other than by transposes and reshapes")
    return value, chain


class Attention:
    """One kernel. Buffers in scratch: queries, kᵀ, scores, sums of p·v, maxima and sums of rows."""

    def __init__(
        self,
        region: Region, anchor: Any, ending: tuple[Any, list[Any]], chip: Chip, name: str,
        vector: bool,
    ) -> None:  # fmt: skip
        self.region, self.chip, self.attrs = region, chip, ir.attrs(anchor)
        self.result, self.moves = ending
        self.element: Any = None  # attention's element at the place that `_finish` is at
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        types = [ir.type_of(v) for v in anchor.operands]
        self.batch, self.heads, self.queries, self.depth = types[0].shape
        _, self.groups, self.keys, _ = types[1].shape
        self.features = types[2].shape[3]
        self.emitter.define(anchor.results[0], lambda _: self.element)
        values = [self.emitter.accessor(v) for v in anchor.operands]
        self.q, self.key, self.v = values[:3]
        self.mask = values[3] if len(values) > 3 else None
        self.dtype = self.q.dtype
        lanes = chip.lanes if self.dtype == "float32" else chip.lanes // 2
        self.lanes = lanes if vector else 1
        self.vectors = 4 if chip.registers >= 32 else 2
        queries = self.queries if isinstance(self.queries, int) else _CHUNK
        self.tile = min(_TILE, queries) or _TILE
        tiles = max(-(-queries // self.tile), 1)
        self.chunk = balanced(tiles, _CHUNK // self.tile)[0] * self.tile
        known = min(self.keys, _KEYS) if isinstance(self.keys, int) else _KEYS
        self.block = max(-(-known // _ROUND) * _ROUND, _ROUND)

    def build(self) -> Scheduled:
        tasks = product([self.batch, self.heads, ceildiv(self.queries, self.chunk)])
        total = product([self.batch, self.heads, self.queries, self.features])
        if not (isinstance(total, int) and total == 0):
            self._allocate()
            with self.b.tasks() as t:
                self._task(t)
        work = product([self.batch, self.heads, self.queries, self.keys])
        return self.emitter.finish("attention", tasks, work * (self.depth + self.features) * 2)

    def _allocate(self) -> None:
        b, dtype = self.b, self.dtype
        self.packed_q = b.scratch(self.depth * self.chunk, dtype)
        self.packed_k = b.scratch(self.depth * self.block, dtype)
        self._allocate_rows()

    def _allocate_rows(self) -> None:
        """What each query row has: scores of a block, sums of p·v, maximum and sum."""
        b, dtype = self.b, self.dtype
        self.scores = b.scratch(self.chunk * self.block, dtype)
        self.sums = b.scratch(self.features * self.chunk, dtype)
        self.top = b.scratch(self.chunk, dtype)
        self.total = b.scratch(self.chunk, dtype)

    def _task(self, t: Any) -> None:
        b, k = self.b, self.k
        chunks = b.scalar(ceildiv(self.queries, self.chunk))
        part, rest = b.let(k.mod(t, chunks)), b.let(k.floordiv(t, chunks))
        heads = b.scalar(self.heads)
        self.at = (b.let(k.floordiv(rest, heads)), b.let(k.mod(rest, heads)))
        share = b.scalar(floordiv(self.heads, self.groups))
        self.group = b.let(k.floordiv(self.at[1], share))
        queries = as_expr(b.scalar(self.queries))
        chunk: Any = const(self.chunk)
        if not isinstance(self.queries, int):  # chunks that are as alike
            tiles = b.scalar(ceildiv(self.queries, self.tile))
            chunk = b.let(tirx.floordiv(tiles + chunks - 1, as_expr(chunks)) * self.tile)
        self.first = b.let(part * chunk)
        self.rows = b.let(tirx.min(queries - self.first, chunk))
        self.tiles = b.let(tirx.floordiv(self.rows + (self.tile - 1), const(self.tile)))
        self._start(queries)
        keys = as_expr(b.scalar(self.keys))
        seen = tirx.min(keys, self.first + self.rows) if self.attrs["causal"] else keys
        with b.loop(b.let(tirx.floordiv(seen + (self.block - 1), const(self.block)))) as block:
            self.key0 = b.let(block * self.block)
            self.count = b.let(tirx.min(seen - self.key0, const(self.block)))
            if self._are_few():
                self._score_few()
            else:
                self._pack_keys()
                self._score()
            with b.loop(self.rows) as r:
                self._soften(r)
            self._add_values()
        with b.loop(self.rows) as r:
            self._finish(r)

    def _start(self, queries: Any) -> None:
        """Scaled queries row by row; rows up to a whole tile repeat the last one."""
        b = self.b
        features = b.scalar(self.features)
        with b.loop(self.tiles * self.tile) as r:
            s = b.let(tirx.min(self.first + r, queries - const(1)))

            self._copy_query(r, s)
            zero = const(0.0, self.dtype)

            def clear(e: Any, _: Any) -> None:
                b.store(self.sums, r * features + e, zero)

            sweep(self.emitter, 0, features, self.lanes, 1, clear)
            b.store(self.top, r, const(float("-inf"), self.dtype))
            b.store(self.total, r, zero)

    def _query(self, s: Any, d: Any) -> Any:
        return self.q[(*self.at, s, d)] * const(self.attrs["scale"], self.dtype)

    def _copy_query(self, r: Any, s: Any) -> None:
        """packed_q[r] = scale · q[s]."""
        depth = self.b.scalar(self.depth)

        def copy(d: Any, _: Any) -> None:
            self.b.store(self.packed_q, r * depth + d, self._query(s, d))

        sweep(self.emitter, 0, depth, self.lanes, 1, copy)

    def _key(self, t: Any, d: Any) -> Any:
        return self.key[(self.at[0], self.group, self.key0 + t, d)]

    def _value(self, t: Any, e: Any) -> Any:
        return self.v[(self.at[0], self.group, self.key0 + t, e)]

    def _are_few(self) -> bool:
        """Whether the queries are so few, and k such that it can be read as it lies."""
        depth, n = self.depth, self.lanes
        few = isinstance(self.queries, int) and 0 < self.queries <= FEW
        whole = isinstance(depth, int) and depth > 0 and depth % n == 0
        return few and whole and self.dtype == "float32" and self._is_plain()

    def _is_plain(self) -> bool:
        """Whether k's features lie side by side in memory, as vectors of float32."""
        direct = self._key(const(0), const(0))
        loaded = is_load(direct) and not self.b.is_named(direct)
        floats = loaded and str(direct.ty.dtype) == "float32"
        return self.lanes > 1 and floats and self._dense()

    def _score_few(self) -> None:
        """scores[r, t] = q[r]·k[t], as many keys at once as a vector has lanes: sums over lanes of
        products over features. Keys beyond the last repeat it, nothing reads their scores.
        """
        b, n, depth = self.b, self.lanes, self.depth
        assert isinstance(depth, int)
        with b.loop(b.let(tirx.floordiv(self.count + (n - 1), const(n))), name="t") as i:
            first = b.let(i * n)
            rows = [b.let(lesser(first + t, self.count - 1)) for t in range(n)]
            for r in range(self.tile):
                sums = b.local(n * n, self.dtype)
                for t, key in enumerate(rows):
                    with b.loop(n, "vectorized") as lane:
                        terms = [
                            b.load(self.packed_q, r * depth + d + lane) * self._key(key, d + lane)
                            for d in range(0, depth, n)
                        ]
                        b.store(sums, t * n + lane, sum(terms[1:], terms[0]))
                row_sums(b, n, sums, (self.scores, r * self.block + first))

    def _pack_keys(self) -> None:
        """packed_k[d, t] = k[t, d] of this block."""
        b, n = self.b, self.lanes
        depth = self.depth
        done: Any = 0
        whole = depth // n * n if isinstance(depth, int) else 0
        if whole and self._is_plain():
            with b.loop(b.let(tirx.floordiv(self.count, const(n)))) as i, b.loop(whole // n) as j:
                t, d = i * n, j * n
                here, below = self._key(t, d), self._key(t + 1, d)
                step = below.indices[0] - here.indices[0]
                source = (here.source, here.indices[0], step)
                transpose_block(
                    b, n, source, (self.packed_k, d * self.block + t, const(self.block))
                )
            done = b.let(tirx.floordiv(self.count, const(n)) * n)
        else:
            whole = 0
        with b.loop(self.count) as t, b.loop(b.scalar(depth) - whole) as d:
            b.store(self.packed_k, (d + whole) * self.block + t, self._key(t, d + whole))
        if whole:
            with b.loop(self.count - done) as t, b.loop(whole) as d:
                b.store(self.packed_k, d * self.block + (t + done), self._key(t + done, d))

    def _dense(self) -> bool:
        """Whether neighbouring features of k are neighbours in memory."""
        d = var("d")
        step = self._key(const(0), d + 1).indices[0] - self._key(const(0), d).indices[0]
        found = self.b.simplify(step)
        return isinstance(found, tirx.IntImm) and found.value == 1

    def _score(self) -> None:
        """scores[r, t] = q[r]·k[t]. What is beyond the last key nothing reads."""
        b, n = self.b, self.lanes
        width = min(self.vectors * n, _ROUND)
        wide = b.let(tirx.floordiv(self.count + (n - 1), const(width)))
        rest = b.let(tirx.floordiv(self.count - wide * width + (n - 1), const(n)))
        with b.loop(self.tiles) as i:
            row = b.let(i * self.tile)
            with b.loop(wide) as j:
                self._score_tile(row, b.let(j * width), width // n)
            with b.loop(rest) as j:
                self._score_tile(row, b.let(wide * width + j * n), 1)

    def _score_tile(self, row: Any, t: Any, vectors: int) -> None:
        b, depth = self.b, self.b.scalar(self.depth)
        outer_product(
            b, self.tile, vectors, self.lanes, depth, self.dtype,
            lambda r, d: b.load(self.packed_q, (row + r) * depth + d),
            lambda d, c: b.load(self.packed_k, d * self.block + (t + c)),
            None,
            lambda r, c, value: b.store(self.scores, (row + r) * self.block + (t + c), value),
        )  # fmt: skip

    def _soften(self, r: Any) -> None:
        """Scores of a row become exponentials; where its base moves, its sum and p·v move too."""
        b, k, dtype = self.b, self.k, self.dtype
        s = b.let(self.first + r)
        count = self.count
        if self.attrs["causal"]:
            count = b.let(tirx.max(tirx.min(s + 1 - self.key0, self.count), const(0)))
        unroll = 2 if self.lanes > 1 else 1
        highest = Fold(k, "max", dtype, self.lanes, unroll, exact=False)
        whole = b.let(tirx.floordiv(count + (self.lanes - 1), const(self.lanes)) * self.lanes)

        def look(t: Any, place: Any) -> None:
            value = b.load(self.scores, r * self.block + t)
            if self._masks:
                value = k.let(self._masked(value, s, t))
                b.store(self.scores, r * self.block + t, value)
            highest.add(place, value)

        if self._masks:
            sweep(self.emitter, 0, count, self.lanes, unroll, look)
        self._hide(r, count, whole)
        if not self._masks:
            sweep(self.emitter, 0, whole, self.lanes, unroll, look)
        old, block = b.let(b.load(self.top, r)), highest.total()
        new = b.let(tirx.Select(old + const(_SLACK, dtype) < block, block, old))
        with b.when(old < new):
            self._move(r, old, new)
        low = const(float("-inf"), dtype)
        base = b.let(tirx.Select(new > low, new, const(0.0, dtype)))
        added = Fold(k, "sum", dtype, self.lanes, unroll)

        def weigh(t: Any, place: Any) -> None:
            value = k.let(k.exp_below(b.load(self.scores, r * self.block + t) - base))
            b.store(self.scores, r * self.block + t, value)
            added.add(place, value)

        sweep(self.emitter, 0, whole, self.lanes, unroll, weigh)
        if self.attrs["causal"]:
            self._clear(r, whole)
        b.store(self.total, r, b.load(self.total, r) + added.total())

    def _hide(self, r: Any, count: Any, whole: Any) -> None:
        """Scores from `count` to `whole`, in the last vector, become -∞: their exponentials are 0
        then.
        """
        b, n = self.b, self.lanes
        with b.when(as_expr(count) < whole), b.loop(n, "vectorized" if n > 1 else "serial") as lane:
            t = whole - n + lane
            score, none = b.load(self.scores, r * self.block + t), const(float("-inf"), self.dtype)
            b.store(self.scores, r * self.block + t, tirx.Select(t < count, score, none))

    def _clear(self, r: Any, done: Any) -> None:
        """Weights from `done` to the block's end become 0."""
        b, n = self.b, self.lanes
        rest = b.let(tirx.floordiv(self.count - done + (n - 1), const(n)))
        with b.loop(rest) as i, b.loop(n, "vectorized" if n > 1 else "serial") as lane:
            b.store(self.scores, r * self.block + (done + i * n + lane), const(0.0, self.dtype))

    def _move(self, r: Any, old: Any, new: Any) -> None:
        """The row's base becomes `new`."""
        b = self.b
        share = b.let(self.k.exp_below(old - new))
        b.store(self.total, r, b.load(self.total, r) * share)
        b.store(self.top, r, new)
        self._shrink(r, share)

    def _shrink(self, r: Any, share: Any) -> None:
        """sums[r, e] *= share."""
        b, features = self.b, self.b.scalar(self.features)

        def shrink(e: Any, _: Any) -> None:
            b.store(self.sums, r * features + e, b.load(self.sums, r * features + e) * share)

        sweep(self.emitter, 0, features, self.lanes, 1, shrink)

    @property
    def _masks(self) -> bool:
        return bool(self.attrs["softcap"]) or self.mask is not None

    def _masked(self, value: Any, s: Any, t: Any) -> Any:
        k, cap = self.k, self.attrs["softcap"]
        if cap:
            # Infinity times a score of 0 would be NaN.
            inverse = min(1 / cap, float(np.finfo(self.dtype).max))
            value = const(cap, self.dtype) * k.tanh(value * const(inverse, self.dtype))
        if self.mask is None:
            return value
        shape = (self.batch, self.heads, self.queries, self.keys)
        mask = self.mask.at((*self.at, s, self.key0 + t), shape)
        if self.mask.dtype == "bool":
            return tirx.Select(mask, value, const(float("-inf"), self.dtype))
        return value + mask

    def _add_values(self) -> None:
        """sums[r, e] += Σ scores[r, t] · v[t, e]."""
        if not isinstance(self.features, int):
            with self.b.loop(self.b.scalar(self.features)) as e:
                self._add_columns(e, 1, 1)
            return
        e, width = 0, self.lanes
        while e < self.features:
            while width > self.features - e:
                width //= 2
            vectors = min(self.vectors, (self.features - e) // width)
            self._add_columns(e, vectors, width)
            e += vectors * width

    def _add_columns(self, e: Any, vectors: int, width: int) -> None:
        b, features = self.b, self.b.scalar(self.features)
        with b.loop(self.tiles) as i:
            row = i * self.tile
            outer_product(
                b, self.tile, vectors, width, self.count, self.dtype,
                lambda r, t: b.load(self.scores, (row + r) * self.block + t),
                lambda t, c: self._value(t, c + e),
                lambda r, c: b.load(self.sums, (row + r) * features + (c + e)),
                lambda r, c, value: b.store(self.sums, (row + r) * features + (c + e), value),
            )  # fmt: skip

    def _finish(self, r: Any) -> None:
        b, features = self.b, self.b.scalar(self.features)
        share = b.let(const(1.0, self.dtype) / b.load(self.total, r))
        if not (isinstance(self.keys, int) and self.keys > 0):  # the sum over no keys is 0
            none = tirx.EQ(as_expr(b.scalar(self.keys)), const(0))
            share = b.let(tirx.Select(none, const(0.0, self.dtype), share))
        s = b.let(self.first + r)

        def write(e: Any, _: Any) -> None:
            self.element = self.k.let(b.load(self.sums, r * features + e) * share)
            index = (*self.at, s, e)
            value = self.emitter.accessor(self.result)[index]
            self.emitter.store(0, self._place(index), value)

        sweep(self.emitter, 0, features, self.lanes, 1, write)

    def _place(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """Where the operations after attention put its element `index`."""
        for move in self.moves:
            if move.name == "ai.transpose":
                index = tuple(index[p] for p in ir.attrs(move)["perm"])
                continue
            before, after = (
                self.emitter.extents(ir.type_of(v).shape)
                for v in (move.operands[0], move.results[0])
            )
            index = reshape_index(self.k, index, after, before)
        return index
