"""Matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of, learn_bounds, reshape, scalar, shape_of


@importer("MatMul")
def matmul(n: Node) -> ir.Value:
    a, b = n.shape(0), n.shape(1)
    if a and b:
        n.require_equal(a[-1], b[-2] if len(b) > 1 else b[0])
    return product(n[0], n[1])


def product(a: ir.Value, b: ir.Value) -> ir.Value:
    """NumPy's matmul."""
    return ai("matmul", a, b)


@importer("Gemm")
def gemm(n: Node) -> ir.Value:
    """alpha · A' B' + beta · C."""
    turn_a, turn_b = bool(n.attr("transA", 0)), bool(n.attr("transB", 0))
    if len(n.shape(0)) != 2 or len(n.shape(1)) != 2:
        raise ShapeError("Gemm multiplies matrices")
    n.require_equal(n.shape(0)[0 if turn_a else 1], n.shape(1)[1 if turn_b else 0])
    y = ai("matmul", n[0], n[1], transpose_a=turn_a, transpose_b=turn_b)
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    if alpha != 1.0:
        y = ai("elemwise_mul", y, scalar(alpha, y))
    if not n.has(2) or beta == 0.0:
        return y
    c = n[2]
    if beta != 1.0:
        c = ai("elemwise_mul", c, scalar(beta, c))
    learn_bounds(shape_of(y), shape_of(c))
    return ai("elemwise_add", y, c)


@importer("Einsum")
def einsum(n: Node) -> ir.Value:
    terms, output = _parse(n)
    sizes: dict[str, Dim] = {}
    for i, letters in enumerate(terms):
        for letter, d in zip(letters, n.shape(i), strict=True):
            if letter in sizes:
                n.require_equal(sizes[letter], d)
            if sizes.get(letter, 1) == 1:
                sizes[letter] = d
    value, letters = n[0], terms[0]
    value, letters = _take_diagonals(value, letters)
    for i in range(1, len(terms)):
        other, more = _take_diagonals(n[i], terms[i])
        later = set(output).union(*terms[i + 1 :])
        value, letters = _contract(value, letters, other, more, later, sizes)
    value, letters = _sum_out(value, letters, set(output))
    return _arrange(value, letters, output)


def _parse(n: Node) -> tuple[list[str], str]:
    """Each operand's letters and the result's; an ellipsis becomes Greek letters."""
    text = n.attr("equation").replace(" ", "")
    left, arrow, output = text.partition("->")
    terms, broad = left.split(","), ""
    if len(terms) != len(n):
        raise ShapeError(f"equation {text!r} has {len(terms)} operands, the node {len(n)}")
    for i, term in enumerate(terms):
        if "..." in term:
            count = len(n.shape(i)) - (len(term) - 3)
            spelled = "".join(chr(0x3B1 + k) for k in reversed(range(count)))  # aligned right
            broad = max(broad, spelled, key=len)
            terms[i] = term.replace("...", spelled)
        if len(terms[i]) != len(n.shape(i)):
            rank = len(n.shape(i))
            raise ShapeError(f"equation {text!r} does not fit operand {i} of rank {rank}")
    if not arrow:
        joined = "".join(terms)
        once = sorted(c for c in set(joined) if joined.count(c) == 1 and c not in broad)
        output = "..." + "".join(once)
    return terms, output.replace("...", broad)


def _take_diagonals(value: ir.Value, letters: str) -> tuple[ir.Value, str]:
    """A letter twice in one operand means the diagonal of its axes."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            i = letters.index(letter)
            j = letters.index(letter, i + 1)
            sizes = shape_of(value)
            axis = tuple(d if k == i else 1 for k, d in enumerate(sizes))
            line = ai("iota", shape=axis, axis=i, dtype="int64", start=0, step=1)
            target = (*sizes[:j], 1, *sizes[j + 1 :])
            picked = ai("gather_elements", value, ai("broadcast_to", line, shape=target), axis=j)
            value = reshape(picked, (*sizes[:j], *sizes[j + 1 :]))
            letters = letters[:j] + letters[j + 1 :]
    return value, letters


def _sum_out(value: ir.Value, letters: str, kept: set[str]) -> tuple[ir.Value, str]:
    gone = tuple(i for i, c in enumerate(letters) if c not in kept)
    if not gone:
        return value, letters
    return ai("reduce_sum", value, axes=gone, keepdims=False), "".join(
        c for c in letters if c in kept
    )


def _arrange(value: ir.Value, letters: str, order: str) -> ir.Value:
    perm = tuple(letters.index(c) for c in order)
    return value if perm == tuple(range(len(perm))) else ai("transpose", value, perm=perm)


def _contract(
    a: ir.Value, la: str, b: ir.Value, lb: str, later: set[str], sizes: dict[str, Dim]
) -> tuple[ir.Value, str]:
    """Multiply two operands and sum what nobody needs any more: one batched matrix product."""
    a, la = _sum_out(a, la, later | set(lb))
    b, lb = _sum_out(b, lb, later | set(la))
    batch = [c for c in la if c in lb and c in later]
    summed = [c for c in la if c in lb and c not in later]
    rows, columns = [c for c in la if c not in lb], [c for c in lb if c not in la]
    if not summed:
        return _outer(a, la, b, lb)

    def matrix(value: ir.Value, letters: str, first: list[str], second: list[str]) -> ir.Value:
        value = _arrange(value, letters, "".join(batch + first + second))
        own = dict(zip("".join(batch + first + second), shape_of(value), strict=True))
        lead = tuple(own[c] for c in batch)
        return reshape(
            value, (*lead, *(D.product(own[c] for c in part) for part in (first, second)))
        )

    wide = ai("matmul", matrix(a, la, rows, summed), matrix(b, lb, summed, columns))
    letters = "".join(batch + rows + columns)
    return reshape(wide, tuple(sizes[c] for c in letters)), letters


def _outer(a: ir.Value, la: str, b: ir.Value, lb: str) -> tuple[ir.Value, str]:
    """No letter is summed: a broadcast product."""
    letters = la + "".join(c for c in lb if c not in la)
    a = reshape(a, (*shape_of(a), *[1] * (len(letters) - len(la))))
    order = "".join(c for c in letters if c in lb)
    b = _arrange(b, lb, order)
    own = dict(zip(order, shape_of(b), strict=True))
    b = reshape(b, tuple(own.get(c, 1) for c in letters))
    return ai("elemwise_mul", a, b), letters


@importer("MatMulInteger")
def matmul_integer(n: Node) -> ir.Value:
    zero_a, zero_b = n.get(2), n.get(3)
    if zero_a is None and zero_b is not None:
        zero_a = ir.full(0, (), n.type(0).dtype)
    n.require_equal(n.shape(0)[-1], n.shape(1)[-2] if len(n.shape(1)) > 1 else n.shape(1)[0])
    return ai("matmul_integer", n[0], n[1], zero_a, zero_b)


@importer("Det")
def det(n: Node) -> ir.Value:
    """Of 1×1 and 2×2 matrices; ONNX allows any size, models use these."""
    sizes = n.shape(0)
    if sizes[-2:] not in ((1, 1), (2, 2)):
        raise ShapeError(f"determinants are imported of 2×2 matrices only, not {sizes[-2:]}")
    flat = reshape(n[0], (*sizes[:-2], D.product(sizes[-2:])))
    if sizes[-1] == 1:
        return reshape(flat, sizes[:-2])
    parts = [_entry(flat, i) for i in range(4)]
    main, side = ai("elemwise_mul", parts[0], parts[3]), ai("elemwise_mul", parts[1], parts[2])
    return cast(ai("elemwise_sub", main, side), dtype_of(flat))


def _entry(flat: ir.Value, i: int) -> ir.Value:
    rank = len(shape_of(flat))
    index = ir.full(i, (), "int64")
    return ai("gather", flat, index, axis=rank - 1)
