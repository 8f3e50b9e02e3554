"""Regular expressions of an adapter's configuration, matched in bounded time.

They come with the adapter, and Python's own matcher backtracks: `(a+)+$` would keep it busy for
ever. This one carries the set of all places where a part may end, so its time is at most pattern ×
text². It answers whether there is a match, which is all that is asked. Python parses the patterns,
so their language is Python's; references back to a group, which need backtracking, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]
from typing import Any

Places = frozenset[int]

_LONGEST = 4096
_STEPS = 2_000_000
_PLAIN = re.compile(r"[A-Za-z0-9_.]{1,4096}")


class BadPattern(ValueError):
    """Why a pattern is not taken."""


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text, as re.fullmatch. BadPattern."""
    return len(text) in _Matcher(text).ends(_parse(pattern), frozenset({0}))


def matches_end(pattern: str, text: str) -> bool:
    """Whether it matches the text from its beginning or from a dot, to its end. BadPattern.

    PEFT's way with `rank_pattern`: re.match(rf"(.*\\.)?({pattern})$", text).
    """
    if _PLAIN.fullmatch(pattern):
        return _plain_end(pattern, text)
    starts = frozenset({0, *(i + 1 for i, c in enumerate(text) if c == ".")})
    return len(text) in _Matcher(text).ends(_parse(pattern), starts)


def _plain_end(pattern: str, text: str) -> bool:
    """For a path as pattern, its dots being any character: some adapters name every module so."""
    start = len(text) - len(pattern)
    if start < 0 or (start and text[start - 1] != "."):
        return False
    pairs = zip(pattern, text[start:], strict=True)
    return all(p == c or (p == "." and c != "\n") for p, c in pairs)


@lru_cache(maxsize=256)
def _parse(pattern: str) -> Any:
    if len(pattern) > _LONGEST:
        raise BadPattern(f"it is longer than {_LONGEST} characters")
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern(f"it is no regular expression: {error}") from None
    if parsed.state.flags & ~re.UNICODE.value:
        raise BadPattern("it sets flags")
    _check(parsed)
    return parsed


def _check(parts: Any) -> None:
    """All that the matcher would meet, whatever the text, is known to it."""
    for kind, value in parts:
        name = str(kind).lower()
        if not hasattr(_Matcher, f"_{name}"):
            raise BadPattern(f"it uses {name}, which is not supported here")
        if name == "subpattern" and (value[1] or value[2]):
            raise BadPattern("it sets flags")
        if name in ("assert", "assert_not") and value[0] < 0:
            raise BadPattern("it looks behind, which is not supported here")
        inner = {"branch": 1, "subpattern": 3, "max_repeat": 2, "min_repeat": 2,
                 "assert": 1, "assert_not": 1}.get(name)  # fmt: skip
        if inner is not None:
            for below in value[inner] if name == "branch" else (value[inner],):
                _check(below)


class _Matcher:
    def __init__(self, text: str) -> None:
        self._text = text
        self._left = _STEPS

    def ends(self, parts: Any, starts: Places) -> Places:
        """Where `parts`, one after another, may end when they begin at any of `starts`."""
        for kind, value in parts:
            if not starts:
                break
            self._left -= len(starts)
            if self._left < 0:
                raise BadPattern("it takes too long")
            starts = getattr(self, f"_{str(kind).lower()}")(value, starts)
        return starts

    def _one(self, starts: Places, allowed: Callable[[str], bool]) -> Places:
        text = self._text
        return frozenset(i + 1 for i in starts if i < len(text) and allowed(text[i]))

    def _literal(self, value: int, starts: Places) -> Places:
        return self._one(starts, lambda c: ord(c) == value)

    def _not_literal(self, value: int, starts: Places) -> Places:
        return self._one(starts, lambda c: ord(c) != value)

    def _any(self, _: Any, starts: Places) -> Places:
        return self._one(starts, lambda c: c != "\n")

    def _in(self, value: Any, starts: Places) -> Places:
        return self._one(starts, lambda c: _in_set(value, c))

    def _branch(self, value: Any, starts: Places) -> Places:
        return frozenset().union(*(self.ends(parts, starts) for parts in value[1]))

    def _subpattern(self, value: Any, starts: Places) -> Places:
        return self.ends(value[3], starts)

    def _max_repeat(self, value: Any, starts: Places) -> Places:
        least, most, parts = value
        reached = starts
        for _ in range(least):
            after = self.ends(parts, reached)
            if after == reached:  # further turns change nothing
                break
            reached = after
        found, fresh = reached, reached
        for _ in range(min(most - least, len(self._text) + 1)):
            fresh = self.ends(parts, fresh) - found
            if not fresh:
                break
            found |= fresh
        return found

    _min_repeat = _max_repeat

    def _assert(self, value: Any, starts: Places) -> Places:
        return frozenset(i for i in starts if self.ends(value[1], frozenset({i})))

    def _assert_not(self, value: Any, starts: Places) -> Places:
        return starts - self._assert(value, starts)

    def _at(self, value: Any, starts: Places) -> Places:
        text, where = self._text, str(value).lower()
        if where in ("at_beginning", "at_beginning_string"):
            return starts & {0}
        if where in ("at_end", "at_end_string"):
            return starts & {len(text)}
        word = [False, *(c.isalnum() or c == "_" for c in text), False]
        edges = frozenset(i for i in range(len(text) + 1) if word[i] != word[i + 1])
        return starts & edges if where == "at_boundary" else starts - edges


def _in_set(members: Any, c: str) -> bool:
    """Whether a character is of the class [members]."""
    found, wanted = False, True
    for kind, value in members:
        name = str(kind).lower()
        if name == "negate":
            wanted = False
        elif name == "literal":
            found = found or ord(c) == value
        elif name == "range":
            found = found or value[0] <= ord(c) <= value[1]
        else:
            found = found or _CATEGORIES[str(value).lower()](c)
    return found is wanted


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "category_digit": str.isdecimal,
    "category_not_digit": lambda c: not c.isdecimal(),
    "category_space": str.isspace,
    "category_not_space": lambda c: not c.isspace(),
    "category_word": lambda c: c.isalnum() or c == "_",
    "category_not_word": lambda c: not (c.isalnum() or c == "_"),
}
