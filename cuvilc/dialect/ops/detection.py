"""What detectors do with their boxes."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import need, need_rank, need_shape
from cuvilc.dialect.types import TensorType


@op("ai.non_max_suppression")
class NonMaxSuppression:
    """Which boxes stay when each suppresses the lower ones that it overlaps: bool[B, C, N].

    boxes [B, N, 4] are two opposite corners (y, x, y, x), or with `center` (x, y, width, height).
    scores [B, C, N] descend along the last axis; order [B, C, N] says which box each is of. Box r
    of a class stays if fewer than `most` have stayed, its score is above `least`, and with none
    that stayed its intersection over union is above `overlap`. An empty box overlaps none.
    (Greedy non-maximum suppression, as ONNX's NonMaxSuppression and ONNX Runtime define it.)
    """

    boxes: Tensor
    scores: Tensor
    order: Tensor
    most: Tensor
    overlap: Tensor
    least: Tensor
    center: bool

    def shape(boxes, scores, order, most, overlap, least, *, center):
        need_rank(boxes, 3, "boxes")
        need_rank(scores, 3, "scores")
        batch, _, count = scores.shape
        need_shape(boxes, (batch, count, 4), "boxes")
        need_shape(order, scores.shape, "order")
        for scalar, name in ((most, "most"), (overlap, "overlap"), (least, "least")):
            need_rank(scalar, 0, name)
        need(order.dtype == most.dtype == "int64", "order and most are int64")
        dtypes = {boxes.dtype, scores.dtype, overlap.dtype, least.dtype}
        need(dtypes == {"float32"}, "boxes, scores and thresholds are float32")
        return TensorType(scores.shape, "bool")

    def reference(boxes, scores, order, most, overlap, least, *, center):
        keep = np.zeros(scores.shape, bool)
        corners = _corners(boxes, center)
        for b, c in np.ndindex(*scores.shape[:2]):
            kept: list[np.ndarray] = []
            for r, score in enumerate(scores[b, c]):
                box = corners[b, order[b, c, r]]
                if len(kept) < most and score > least:
                    keep[b, c, r] = not any(_overlap(box, other) > overlap for other in kept)
                    kept += [box] if keep[b, c, r] else []
        return keep

    samples = (
        sample(
            np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [3, 3, 2, 2], [0, 0, 0, 0]]], np.float32),
            np.array([[[0.9, 0.8, 0.7, 0.6]], ], np.float32), np.array([[[1, 0, 2, 3]]], np.int64),
            np.array(3), np.array(0.5, np.float32), np.array(0.1, np.float32), center=False,
        ),
        sample(
            np.array([[[0, 0, 2, 2], [0.5, 0, 2, 2], [9, 9, 1, 1]]], np.float32),
            np.array([[[0.9, 0.8, 0.7], [0.5, 0.4, 0.3]]], np.float32),
            np.array([[[0, 1, 2], [1, 0, 2]]], np.int64),
            np.array(9), np.array(0.4, np.float32), np.array(0.35, np.float32), center=True,
        ),
        sample(
            np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32),
            np.zeros((1, 2, 0), np.int64), np.array(9), np.array(0.4, np.float32),
            np.array(0.0, np.float32), center=True,
        ),
    )  # fmt: skip


def _corners(boxes, center):
    """Least and greatest coordinate along both axes: [..., (y0, x0, y1, x1)]."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center:
        return np.concatenate([first - second / 2, first + second / 2], -1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlap(a, b):
    """Intersection over union; 0 where either is empty or they only touch."""
    areas = [np.prod(box[2:] - box[:2]) for box in (a, b)]
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if min(areas) <= 0 or sides.min() <= 0:
        return -np.inf
    shared = sides.prod()
    return shared / (sum(areas) - shared)
