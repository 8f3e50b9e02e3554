"""Measure what benchmarks/README.md shows: `python benchmarks/pages.py [SECTION ...]`.

Runs the programs of SECTIONS one after the other; each writes its table between two marks of the
page, `<!-- NAME: begin -->` and `<!-- NAME: end -->`. All take about an hour, on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("README.md")
SECTIONS = {
    "compare": "compare.py --peers all --together --rounds 3 --seconds 0.2 --quiet 1",
    "quantised": "compare.py --section quantised --compact --together --rounds 5 --seconds 0.3 "
    "--quiet 1 --models resnet18-int8 resnet50-int8 mobilenetv2-int8 bert_base-int8 minilm-int8 "
    "minilm-dynamic --peers cuvil onnxruntime openvino-f32 openvino",
    "bf16": "compare.py --section bf16 --compact --together --rounds 5 --seconds 0.3 --quiet 1 "
    "--peers cuvil-bf16 openvino",
    "further": "compare.py --section further --compact --together --rounds 3 --seconds 0.2 "
    "--quiet 1 --models further --peers cuvil onnxruntime openvino-f32",
    "further-bf16": "compare.py --section further-bf16 --compact --together --rounds 3 "
    "--seconds 0.2 --quiet 1 --models further --peers cuvil-bf16 openvino",
    "busy": "busy.py --peers all --rounds 5 --seconds 0.3 --quiet 1",
    "zoo": "zoo.py --rounds 3 --seconds 0.1 --quiet 1",
    "operators": "operators.py --rounds 3 --seconds 0.02",
    "roofline": "roofline.py",
    "techniques": "techniques.py",
}
# Options that say where output goes, and how many values each takes; a page names no folders.
WHERE = {"--out": 1, "--folder": 1, "--json": 0, "--readme": 0, "--write": 0, "--section": 1}


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the marks of `name`. Raises ValueError where there are none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    _, also, after = rest.partition(end)
    if not (found and also):
        raise ValueError(f"{page.name} has no marks of {name}")
    page.write_text(f"{before}{begin}\n{text.rstrip()}\n{end}{after}")


def command(arguments: Sequence[str] | None = None) -> str:
    """The command that this program was started with, without where its output goes."""
    kept: list[str] = []
    words = iter(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in WHERE:
            kept.append(word)
        elif WHERE[option] and not equals:
            next(words, None)
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *kept])


def place(report: dict[str, Any]) -> str:
    """The line below a table: machine, date, versions, command, as far as they are known."""
    where = report["machine"]
    parts = [f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['date']}"]
    if report.get("versions"):
        parts.append(", ".join(f"{k} {v}" for k, v in report["versions"].items()))
    if report.get("command"):
        parts.append(f"`{report['command']}`")
    return "; ".join(parts) + "."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}")
    failed = 0
    for name in options.sections or SECTIONS:
        program, *words = SECTIONS[name].split()
        command = [sys.executable, str(PAGE.parent / program), *words, "--write"]
        failed |= subprocess.run(command).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
