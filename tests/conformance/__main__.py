"""Run every operator case and write the table: `make conformance`.

python -m tests.conformance [--target x86] [--jobs N] [--only WORD | --failed] [--fresh]

Outcomes are kept as they come in build/conformance/TARGET.jsonl: an interrupted run goes on where
it stopped. --fresh, or a change of any file under cuvilc/ or runtime/, starts over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.conformance.cases import all_cases
from tests.conformance.report import report
from tests.conformance.worker import ROOT, Worker

REPORT = ROOT / "docs" / "conformance.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="x86")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this; no report")
    parser.add_argument("--failed", action="store_true", help="what failed last time; no report")
    parser.add_argument("--fresh", action="store_true", help="forget earlier outcomes")
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()

    cases = {name: case.operator for name, case in all_cases().items()}
    kept = ROOT / "build" / "conformance" / f"{options.target}.jsonl"
    part = bool(options.only or options.failed)
    wanted = [name for name in cases if options.only in name]
    if options.failed:
        last = read(kept)
        wanted = [n for n in wanted if last.get(n, {}).get("kind") == "failed"]
    outcomes = {} if options.fresh or part else earlier(kept)
    left = [name for name in wanted if name not in outcomes]
    print(f"{len(wanted)} cases, {len(wanted) - len(left)} of them done", flush=True)

    for outcome in run(left, options.target, options.jobs, None if part else kept):
        outcome["operator"] = cases[outcome["name"]]
        outcomes[outcome["name"]] = outcome
        if part or outcome["kind"] == "failed":
            clear = "\r\033[K" if sys.stdout.isatty() else ""
            print(f"{clear}{outcome['kind']:8} {outcome['name']}: {outcome['reason']}", flush=True)

    results = [{**outcomes[name], "operator": cases[name]} for name in wanted]
    counts = {k: sum(r["kind"] == k for r in results) for k in ("passed", "failed", "refused")}
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    if not part:
        options.report.write_text(report(results, options.target))
        print(f"wrote {options.report.relative_to(ROOT)}")
    return 0


def run(names: list[str], target: str, jobs: int, kept: Path | None):
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
            if done % 50 == 0 or done == len(names):
                rate = (time.monotonic() - start) / done
                print(f"{done}/{len(names)}  {rate * (len(names) - done):.0f} s left", flush=True)
    while not workers.empty():
        workers.get().close()


def earlier(kept: Path) -> dict[str, dict[str, str]]:
    """Outcomes of an earlier run of the same code; else the file is begun anew."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    first = json.dumps({"code": code_digest()})
    lines = kept.read_text().splitlines() if kept.exists() else []
    if not lines or lines[0] != first:
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


def code_digest() -> str:
    """SHA-256 of the compiler, the runtime and these tests."""
    digest = hashlib.sha256()
    for folder in ("cuvilc", "runtime", "tests/conformance"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".S", ".json"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
