"""Run the cases of every category and write the tables: `make conformance`.

python -m tests.conformance [--target x86] [--jobs N] [--only WORD | --category NAME | --failed]
                            [--fresh] [--alone]

onnxruntime runs them too, for the column beside cuvilc's; `--target onnxruntime` runs it alone.
Outcomes are kept as they come in build/conformance/TARGET.jsonl: an interrupted run goes on where
it stopped. --fresh, or a change of any file under cuvilc/ or runtime/, starts over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.conformance.cases import CATEGORIES, all_cases, not_at_hand
from tests.conformance.report import KINDS, report
from tests.conformance.worker import RIVAL, ROOT, Worker

REPORT = ROOT / "docs" / "conformance.md"
EVER_FAILED = Path(__file__).with_name("ever_failed.txt")  # cases that `make test` runs for good
BAR = 30


def main() -> int:
    options = arguments()
    cases = all_cases()
    names = [n for n in cases if options.only in n]
    names = [n for n in names if options.category in ("", cases[n].category)]
    part = bool(options.only or options.category or options.failed)
    if options.failed:
        last = read(kept_file(options.target))
        names = [n for n in names if last.get(n, {}).get("kind") == "failed"]
    outcomes = outcomes_of(names, options.target, options, part)
    if part or options.target == RIVAL:
        return 0
    remember([n for n in names if outcomes[n]["kind"] == "failed"])
    rival = None if options.alone or not installed(RIVAL) else outcomes_of(names, RIVAL, options)
    results = [
        {**outcomes[n], "operator": cases[n].operator, "category": cases[n].category} for n in names
    ]
    options.report.write_text(report(results, options.target, rival, not_at_hand()))
    print(f"wrote {options.report}")
    return 0


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="x86")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this; no report")
    parser.add_argument("--category", default="", choices=("", *CATEGORIES), help="no report")
    parser.add_argument("--failed", action="store_true", help="what failed last time; no report")
    parser.add_argument("--fresh", action="store_true", help="forget earlier outcomes")
    parser.add_argument("--alone", action="store_true", help="without onnxruntime's column")
    parser.add_argument("--report", type=Path, default=REPORT)
    return parser.parse_args()


def installed(package: str) -> str:
    """The package's version; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def outcomes_of(
    wanted: list[str], target: str, options: Any, part: bool = False
) -> dict[str, dict[str, str]]:
    """The outcome of every wanted case: kept ones, and those that now run."""
    kept = kept_file(target)
    outcomes = {} if part else earlier(kept, code_digest(target), options.fresh)
    left = [name for name in wanted if name not in outcomes]
    print(f"{target}: {len(wanted)} cases, {len(wanted) - len(left)} of them done", flush=True)
    for outcome in run(left, target, options.jobs, None if part else kept):
        outcomes[outcome["name"]] = outcome
        if part or (outcome["kind"] == "failed" and target != RIVAL):
            clear = "\r\033[K" if sys.stdout.isatty() else ""
            print(f"{clear}{outcome['kind']:8} {outcome['name']}: {outcome['reason']}", flush=True)
    counts = {k: sum(outcomes[n]["kind"] == k for n in wanted) for k in KINDS}
    print(f"{target}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()), flush=True)
    return outcomes


def run(names: list[str], target: str, jobs: int, kept: Path | None) -> Iterator[dict[str, str]]:
    """Outcomes as they come, each kept before it is given."""
    workers: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(jobs):
        workers.put(Worker(target))

    def one(name: str) -> dict[str, str]:
        worker = workers.get()
        try:
            return worker.run(name)
        finally:
            workers.put(worker)

    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        for done, future in enumerate(as_completed([pool.submit(one, n) for n in names]), 1):
            outcome = future.result()
            if kept:
                with kept.open("a") as file:
                    file.write(json.dumps(outcome) + "\n")
            yield outcome
            show_progress(done, len(names), time.monotonic() - start)
    while not workers.empty():
        workers.get().close()


def show_progress(done: int, total: int, seconds: float) -> None:
    """A bar that redraws itself on a terminal; a line now and then elsewhere."""
    says = f"{done}/{total}  {seconds / done * (total - done):.0f} s left"
    if sys.stdout.isatty():
        full = BAR * done // total
        end = "\n" if done == total else ""
        print(f"\r\033[K[{'#' * full}{' ' * (BAR - full)}] {says}", end=end, flush=True)
    elif done % 50 == 0 or done == total:
        print(says, flush=True)


def remember(failed: list[str]) -> None:
    """What fails once stays in the sample of tests/conformance/test_sample.py."""
    known = EVER_FAILED.read_text().splitlines() if EVER_FAILED.exists() else []
    if set(failed) - set(known):
        EVER_FAILED.write_text("\n".join(sorted({*known, *failed})) + "\n")


def kept_file(target: str) -> Path:
    return ROOT / "build" / "conformance" / f"{target}.jsonl"


def earlier(kept: Path, code: str, fresh: bool) -> dict[str, dict[str, str]]:
    """Outcomes of an earlier run of the same code; else the file is begun anew."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    first = json.dumps({"code": code})
    lines = kept.read_text().splitlines() if kept.exists() else []
    if fresh or not lines or lines[0] != first:
        kept.write_text(first + "\n")
        return {}
    return read(kept)


def read(kept: Path) -> dict[str, dict[str, str]]:
    """The outcomes of the last run, by name."""
    found = {}
    lines = kept.read_text().splitlines() if kept.exists() else []
    for line in lines[1:]:
        try:
            outcome = json.loads(line)
        except ValueError:  # the run ended while it wrote
            continue
        found[outcome["name"]] = outcome
    return found


def code_digest(target: str) -> str:
    """SHA-256 of what runs the cases: these tests, with the compiler and runtime or onnxruntime."""
    digest = hashlib.sha256()
    if target == RIVAL:
        digest.update(f"{RIVAL} {installed(RIVAL)} onnx {installed('onnx')}".encode())
    for folder in ("tests/conformance", *(() if target == RIVAL else ("cuvilc", "runtime"))):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".S", ".json"):
                digest.update(path.read_bytes())
    for path in ("tests/tolerances.py", "tests/import/onnx_cases.py"):
        digest.update((ROOT / path).read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
