"""Many random models of each operator: python -m tests.properties [--only WORD] [--examples N]."""

from __future__ import annotations

import argparse
import sys
import time

from tests.properties.registry import operators
from tests.properties.test_properties import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--derandomize", action="store_true", help="the same models every time")
    parser.add_argument("--compiled-of", type=int, default=1, help="compile one of so many")
    options = parser.parse_args()
    start, failed = time.monotonic(), 0
    for name in operators():
        if options.only not in name or time.monotonic() - start > options.seconds:
            continue
        try:
            print(
                name,
                run(name, options.examples, options.derandomize, options.compiled_of),
                flush=True,
            )
        except Exception as error:  # the table of all is the point
            failed += 1
            notes = "\n    ".join(getattr(error, "__notes__", ()))
            print(f"{name} FAILED {type(error).__name__}: {error}\n    {notes}", flush=True)
    print(f"{failed} operators failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
