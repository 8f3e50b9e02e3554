"""Sizes from text."""

from __future__ import annotations

import ast
from functools import lru_cache

from cuvilc.dialect.dims import FUNCTIONS, Dim, floordiv, mod, symbol


@lru_cache(maxsize=4096)
def parse(text: str) -> Dim:
    """Read what `str` prints, and `//` and `%` besides. Raises ValueError with the wrong part."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not a dimension expression") from error
    return _parse_node(tree, text)


def _parse_node(node: ast.expr, text: str) -> Dim:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return 0 - _parse_node(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _parse_node(left, text), _parse_node(right, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Mod():
                    return mod(a, b)
        case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_parse_node(x, text) for x in args))
    raise ValueError(f"{ast.unparse(node)!r} in {text!r} is not a dimension expression")
