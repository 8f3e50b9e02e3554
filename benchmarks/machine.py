"""What a measurement was made on, and how busy it was meanwhile."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine() -> dict[str, str | int]:
    """CPU, cores, memory, system; the date."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_seconds() -> float:
    """CPU time that the whole machine used so far; time stolen by its host counts as used."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(limit_s: float, cores: float = 0.15) -> None:
    """Return when others use less than so many cores, or the time is over."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        before = cpu_seconds()
        time.sleep(0.2)
        if (cpu_seconds() - before) / 0.2 < cores:
            return
