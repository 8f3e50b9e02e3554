"""The project itself: files small, links whole, documented commands real, no machine's paths."""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

from benchmarks import models

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 500
COUNTED = {".py", ".c", ".h", ".hpp", ".cpp", ".S", ".md", ".toml"}
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples")
# A folder of one machine; this file spells them apart so as not to find itself.
MACHINE = re.compile(r"/(?:ro" + r"ot|ho" + r"me/\w|wo" + r"rk|U" + r"sers)/|\.\./sha" + r"red")
HOSTS = re.compile(
    "(?:py" + r"pi\.org|pytho" + r"nhosted|download\.pyto" + r"rch|npm" + r"js\.(?:org|com))"
)


@lru_cache
def tracked() -> tuple[Path, ...]:
    """Files that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return tuple(p for line in listed.stdout.splitlines() if (p := ROOT / line).is_file())


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def documents() -> list[Path]:
    found: list[Path] = []
    for name in DOCUMENTS:
        path = ROOT / name
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def test_files_are_short() -> None:
    generated = ROOT / "docs" / "conformance.md"
    long = {
        str(p.relative_to(ROOT)): n
        for p in tracked()
        if p.suffix in COUNTED
        and p != generated
        and (n := len(text_of(p).splitlines())) > MOST_LINES
    }
    assert not long


def test_nothing_of_one_machine() -> None:
    found = [
        f"{p.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for p in tracked()
        for number, line in enumerate(text_of(p).splitlines(), 1)
        if MACHINE.search(line) or HOSTS.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(path)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


def commands(language: str = "sh") -> list[str]:
    """Lines of the documents' shell blocks, without comments."""
    found = []
    for path in documents():
        for block in re.findall(rf"```{language}\n(.*?)```", text_of(path), re.DOTALL):
            found += [line.split("  #")[0].split(" #")[0].strip() for line in block.splitlines()]
    return sorted({line for line in found if line})


def test_documented_make_targets_exist() -> None:
    makefile = text_of(ROOT / "Makefile")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    used = {w for line in commands() if line.startswith("make ") for w in line.split()[1:2]}
    assert used <= targets
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    assert set(phony.split()[1:]) <= targets


def test_documented_options_exist() -> None:
    """Every `cuvilc COMMAND --option` of the documents is one of that command's, or of the command
    below it (`cuvilc adapter build`).
    """
    typer_main = pytest.importorskip("typer.main")
    from cuvilc.cli import app

    wrong = []
    for line in commands():
        words = line.removeprefix(".venv/bin/").split()
        if words[:1] != ["cuvilc"] or len(words) < 2 or words[1].startswith("-"):
            continue
        command, words = typer_main.get_command(app), words[1:]
        while hasattr(command, "commands") and words:
            command, words = command.commands.get(words[0]), words[1:]
        options = {o for p in command.params for o in p.opts} if command else set()
        wrong += [f"{line}: {w}" for w in words if w.startswith("-") and w not in options]
        if command is None:
            wrong.append(f"{line}: no such command")
    assert not wrong


def test_documented_programs_exist() -> None:
    text = "\n".join(text_of(p) for p in documents())
    for program in re.findall(r"python ((?:benchmarks|examples)/[\w/]+\.py)", text):
        assert (ROOT / program).is_file(), program


def test_benchmark_models_are_the_networks() -> None:
    """models.py names them without importing torch."""
    for file, table, names in (
        ("networks.py", "NETWORKS", models.NAMES),
        ("further_networks.py", "FURTHER", models.FURTHER),
    ):
        source = text_of(ROOT / "benchmarks" / file)
        keys = re.findall(r'^    "(\w+)":', source[source.index(f"{table}:") :], re.MULTILINE)
        assert tuple(keys) == names
    assert len(set(models.ALL)) == len(models.ALL)


def test_the_runtime_ships_the_license() -> None:
    """Wheels take files from their own folder, so it has a link."""
    assert (ROOT / "runtime" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
