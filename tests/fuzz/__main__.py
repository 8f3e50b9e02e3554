"""python -m tests.fuzz [--seconds S] [--first SEED] [--jobs N]: `make fuzz`, an hour of hostile
models. What is found is kept in build/fuzz/; `--again FILE...` builds such files once more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock

from tests.fuzz.bombs import BOMBS
from tests.fuzz.child import Child
from tests.fuzz.run import Finding, try_bomb, try_model, try_seed

KNOWN_LINES = 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bombs", action="store_true", help="only the files that ask for much")
    parser.add_argument("--again", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    if options.again:
        return _again(options.again)
    found = _bombs(options.jobs)
    if not options.bombs:
        found += _seeds(options.first, options.seconds, options.jobs)
    kinds = Counter(f.kind for f in found)
    print(f"{len(found)} findings: {dict(kinds)}")
    return 1 if found else 0


def _again(paths: list[Path]) -> int:
    child, bad = Child(), 0
    for path in paths:
        finding = try_model(child, f"again-{path.stem}", path.read_bytes(), "null")
        bad += finding is not None
        print(path.name, "well" if finding is None else f"{finding.kind}\n{finding.details}")
    child.close()
    return 1 if bad else 0


def _bombs(jobs: int) -> list[Finding]:
    def one(name: str) -> Finding | None:
        child = Child()
        try:
            return _show(try_bomb(child, name))
        finally:
            child.close()

    with ThreadPoolExecutor(jobs) as pool:
        return [f for f in pool.map(one, BOMBS) if f]


def _seeds(first: int, seconds: float, jobs: int) -> list[Finding]:
    end, seeds, lock = time.monotonic() + seconds, count(first), Lock()
    found: list[Finding] = []

    def work() -> None:
        child = Child()
        while time.monotonic() < end:
            with lock:
                seed = next(seeds)
            if seed % 500 == 0:
                print(f"seed {seed}, {end - time.monotonic():.0f} s left", flush=True)
            finding = _show(try_seed(child, seed))
            if finding:
                found.append(finding)
        child.close()

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()
    print(f"seeds {first} to {next(seeds) - 1}")
    return found


def _show(finding: Finding | None) -> Finding | None:
    if finding:
        last = "\n    ".join(finding.details.splitlines()[-KNOWN_LINES:])
        print(f"{finding.kind}: {finding.path}\n    {last}", flush=True)
    return finding


if __name__ == "__main__":
    sys.exit(main())
