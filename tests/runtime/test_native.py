"""The C API from C: under the sanitizers, its allocations, its symbols and size, the examples."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import fake_adapters
import fake_computed
import fake_models
import fake_prepared
import numpy as np
import pytest
import test_hostile_adapters
from fake_package import ROOT, RUNTIME, WARNINGS, Image, compile_objects, link, seal
from test_corruption import field, loops

DRIVER = Path(__file__).parent / "driver.c"
ADAPTERS = Path(__file__).parent / "driver_adapters.c"
BATCH = Path(__file__).parent / "driver_batch.c"
EXAMPLES = ROOT / "examples"
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(request, tmp_path_factory):
    """Flags and objects of a sanitizer."""
    flags = ["-g", "-O1", "-fno-omit-frame-pointer", *SANITIZERS[request.param]]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    probe = ["cc", *flags, "-o", str(folder / "probe"), str(folder / "probe.c")]
    for command in (probe, randomless([str(folder / "probe")])):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            pytest.skip(f"cc has no working {request.param} sanitizer: {run.stderr[:200]}")
    return flags, compile_objects(folder, flags)


def randomless(command: list[str]) -> list[str]:
    """Without address randomisation, whose full width older thread sanitizers do not stand."""
    return ["setarch", "-R", *command]


MODELS = {
    "mlp": lambda: fake_models.mlp(cost=10**9),
    "gather": lambda: fake_models.gather(cost=10**9),
    "nonzero": fake_computed.nonzero,
    "grow": fake_computed.grow,
}


@pytest.mark.parametrize("model", MODELS)
def test_sanitizers_find_nothing(sanitized, tmp_path, model):
    flags, objects = sanitized
    image = MODELS[model]()
    program = tmp_path / "driver"
    link(image, program, [str(DRIVER), *objects], [*flags, *WARNINGS, "-lm"])
    run = subprocess.run(
        randomless([str(program), model]), capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stderr == ""


def drive_adapters(sanitized, folder: Path, *arguments: object, batch: bool = False) -> str:
    """What driver_adapters, or driver_batch, prints; sanitizers have nothing to say."""
    flags, objects = sanitized
    program = folder / "driver"
    image = fake_adapters.batched() if batch else fake_adapters.numbered()
    driver = BATCH if batch else ADAPTERS
    link(image, program, [str(driver), *objects], [*flags, *WARNINGS, "-lm"])
    command = randomless([str(program), *map(str, arguments)])
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr[-3000:]
    return run.stdout


def test_no_run_sees_a_mixture_of_adapters(sanitized, tmp_path):
    """Runs, swaps, loads, unloads and listings at once; each run checks what it sees."""
    drive_adapters(sanitized, tmp_path, "threads", fake_adapters.write_numbered(tmp_path, 7), 7)


def test_every_row_has_its_adapter_while_tenants_come_and_go(sanitized, tmp_path):
    """Batches, loads, unloads and counts at once; each row checks what it sees."""
    files = [fake_adapters.write_batch(tmp_path, number) for number in (1, 7)]
    drive_adapters(sanitized, tmp_path, *files, batch=True)


@pytest.mark.parametrize("sanitized", ["address"], indirect=True)
def test_sanitizers_find_nothing_in_damaged_adapters(sanitized, tmp_path):
    original = test_hostile_adapters.whole_adapter()
    damages = list(test_hostile_adapters.damages(original, random.Random(8)))
    files = [tmp_path / f"{i}.cuvla" for i in range(len(damages))]
    for file, (_, adapter) in zip(files, damages, strict=True):
        file.write_bytes(adapter)
    answers = drive_adapters(sanitized, tmp_path, "load", *files).split()
    good = [test_hostile_adapters.is_good(adapter) for _, adapter in damages]
    assert answers == ["ran" if g else "refused" for g in good]
    assert len(set(answers)) == 2


def test_sanitizers_find_nothing_in_preparing(sanitized, tmp_path):
    """On several threads, from the opening on to the end of a run."""
    flags, objects = sanitized
    program = tmp_path / "driver"
    link(fake_prepared.twice(), program, [str(DRIVER), *objects], [*flags, *WARNINGS, "-lm"])
    command = randomless([str(program), "run"])
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout, run.stderr) == (0, "ran\n", ""), run.stderr[-3000:]


@pytest.mark.parametrize(
    "models", [fake_models, fake_computed, fake_prepared], ids=["static", "computed", "prepared"]
)
@pytest.mark.parametrize("sanitized", ["address"], indirect=True)
def test_sanitizers_find_nothing_in_damaged_images(sanitized, tmp_path, models):
    flags, objects = sanitized
    program, damaged = tmp_path / "driver", tmp_path / "damaged"
    link(models.inert(), program, [str(DRIVER), *objects], [*flags, *WARNINGS, "-lm"])
    whole = program.read_bytes()
    start = whole.rindex(b"CUVILIMG")
    rng, answers = random.Random(3), []
    for _ in range(60):
        place, image = field(whole[start:], rng)
        damaged.unlink(missing_ok=True)
        damaged.write_bytes(whole[:start] + seal(image))
        damaged.chmod(0o755)
        command = randomless([str(damaged), "infer" if loops(image) else "run"])
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stderr) == (0, ""), f"byte {place}: {run.stderr[-3000:]}"
        answers.append(run.stdout.strip())
    assert set(answers) == {"ran", "refused"}


def count_allocations(image: Image, driver: Path, objects: list[str], program: Path) -> list[int]:
    """What the driver counts."""
    functions = ["malloc", "calloc", "realloc", "posix_memalign", "mmap"]
    wraps = [f"-Wl,--wrap={name}" for name in functions]
    link(image, program, [str(driver), *objects], ["-DCOUNT_ALLOCATIONS", *wraps, "-lm"])
    run = subprocess.run([str(program), "count"], capture_output=True, text=True, check=True)
    return [int(word) for word in run.stdout.split()]


def test_repeated_run_allocates_nothing(objects, tmp_path):
    """The first run maps its block; the same or smaller shapes fit in it, without one call."""
    counts = count_allocations(fake_models.mlp(), DRIVER, objects, tmp_path / "driver")
    assert counts == [1, 0, 0, 0, 0, 0]


def test_only_the_first_swap_allocates(objects, tmp_path):
    """Two shadows, gains of 1, and threads where there are CPUs for them."""
    image = fake_adapters.numbered()
    first, *others = count_allocations(image, ADAPTERS, objects, tmp_path / "driver")
    assert first in (3, 4)
    assert others == [0] * 5


@pytest.fixture
def library(make):
    return make(fake_models.mlp()) / "model.so"


DL_HEADER = RUNTIME / "include/cuvil_dl.h"


def read_symbols(library: Path, which: str) -> set[str]:
    command = ["nm", "-D", which, str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


def test_exports_are_the_header(library):
    header = (RUNTIME / "include/cuvil.h").read_text()
    declared = set(re.findall(r"^CUVIL_API [^;(]*?(cuvil_\w+)\(", header, flags=re.M))
    for_the_loader = {"cuvil_python_bind", "cuvil_python_run"}
    assert read_symbols(library, "--defined-only") == declared | for_the_loader
    lists = re.split(r"#define CUVIL_(?:LATER_)?FUNCTIONS", DL_HEADER.read_text())[1:3]
    members = [m for text in lists for m in re.findall(r"F\((\w+)\)", text.split("#define")[0])]
    assert {f"cuvil_{name}" for name in members} == declared


def test_needs_the_c_library_alone(library):
    command = ["readelf", "-dW", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {
        name for name in re.findall(r"NEEDED.*\[(.*?)\]", text) if not name.startswith("ld-linux")
    }
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0"}
    versions = {s.split("@")[1] for s in read_symbols(library, "--undefined-only") if "@" in s}
    assert all(v.startswith("GLIBC_2.") and int(v.split(".")[1]) <= 34 for v in versions), versions


def test_code_is_small(library):
    command = ["size", "-A", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(re.search(r"^\.text +(\d+)", text, flags=re.M)[1]) < 50_000


def run_example(program: Path, *arguments: object) -> str:
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_c_example(library, tmp_path):
    """Built by the very line in its README."""
    readme = (EXAMPLES / "c/README.md").read_text()
    (line,) = re.findall(r"^cc .*run\.c.*$", readme, flags=re.M)
    command = line.removesuffix("-o run").split()
    program = tmp_path / "run"
    subprocess.run([*command, *WARNINGS, "-o", str(program)], cwd=EXAMPLES / "c", check=True)
    zeros = run_example(program, library)
    assert "level base\ninput  x: float32[batch, 5]\noutput y: float32[batch, 7]" in zeros
    assert values(zeros, "y") == pytest.approx(fake_models.BIAS.tolist(), rel=1e-4)
    assert values(zeros, "shape") == [1, 7]
    x = np.arange(5, dtype=np.float32).reshape(1, 5)
    x.tofile(tmp_path / "x.bin")
    text = run_example(program, library, tmp_path / "x.bin")
    assert values(text, "y") == pytest.approx(fake_models.mlp_reference(x)[0].tolist(), rel=1e-4)
    short = subprocess.run(
        [program, library, DRIVER.parent / "none"], capture_output=True, text=True
    )
    assert (short.returncode, "cannot be read" in short.stderr) == (1, True)
    for path in (library.parent, "model.so", "."):  # a folder, and a name without a slash
        command = [str(program), str(path)]
        assert subprocess.check_output(command, text=True, cwd=library.parent) == zeros
    for path in ("none.so", "a" * 5000, str(tmp_path)):
        failed = subprocess.run([program, path], capture_output=True, text=True)
        assert (failed.returncode, "cannot load: " in failed.stderr) == (1, True)


def values(text: str, name: str) -> list[float]:
    return [float(word) for word in re.search(rf"^{name} \[.*\]:(.*)$", text, re.M)[1].split()]


def test_cpp_example(make, tmp_path):
    program = tmp_path / "run"
    command = ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I", "runtime/include"]
    subprocess.run([*command, "examples/cpp/run.cpp", "-o", str(program)], cwd=ROOT, check=True)
    image = fake_models.branch()
    failed = subprocess.run([program, make(image) / "model.so"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "error 605: input `flag` is float32, the model declares bool" in failed.stderr
    text = run_example(program, make(floats()) / "model.so")
    assert text == "y: 1 1 1\n"
    swapped = make(fake_adapters.numbered()) / "model.so"
    assert run_example(program, swapped).startswith("panels: 0\nrows: 0\n")
    assert run_example(program, swapped, "two").startswith("panels: 2\nrows: 2\n")
    failed = subprocess.run([program, swapped, "three"], capture_output=True, text=True)
    assert "error 612: there is no adapter `three`; loaded: one, two" in failed.stderr


CPP = """
#include <cassert>
#include "cuvil.hpp"

int main(int, char **argv)
{
    cuvil::Model model(argv[1]);
    cuvil::Context context = model.context(1);
    assert(model.adapters().size() == 2 && std::string(model.adapters()[1].name) == "two");
    model.load_adapter(argv[2]);
    model.load_adapter(argv[2], "seven");
    model.unload_adapter("number 7");
    model.use(std::string("seven"));
    context.run();
    assert(static_cast<int>(context.output<float>(0)[0]) == 7);
    assert(model.adapters().size() == 3 && model.adapters()[2].active);
    try {
        model.unload_adapter("seven");
        return 1;
    } catch (const cuvil::Error &error) {
        assert(error.code == CUVIL_ERROR_ADAPTER);
    }
    model.use(nullptr);
    model.unload_adapter("seven");
    context.run();
    return static_cast<int>(context.output<float>(0)[0]);
}
"""


def test_adapters_from_cpp(make, tmp_path):
    program, source = tmp_path / "run", tmp_path / "run.cpp"
    source.write_text(CPP)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(RUNTIME / "include")]
    subprocess.run(["c++", *flags, str(source), "-o", str(program)], check=True)
    package = make(fake_adapters.numbered()) / "model.so"
    run_example(program, package, fake_adapters.write_numbered(tmp_path, 7))


def test_truncated_library_is_refused_by_the_library_itself(make, tmp_path):
    """The dynamic linker maps a file cut short without complaint; reading it would be a SIGBUS."""
    image = fake_models.mlp()
    image.weight(np.zeros(1 << 18, np.float32))
    library = make(image) / "model.so"
    program = tmp_path / "run"
    command = ["cc", "-I", "runtime/include", "examples/c/run.c", "-o", str(program)]
    subprocess.run(command, cwd=ROOT, check=True)
    whole = library.read_bytes()
    for cut in (1 << 13, len(whole) - whole.rindex(b"CUVILIMG")):
        library.unlink()
        library.write_bytes(whole[:-cut])
        run = subprocess.run([program, library], capture_output=True, text=True)
        assert run.returncode == 1
        assert "truncated package: the image has" in run.stderr


def floats() -> fake_models.Image:
    image = fake_models.Image()
    n = image.symbol("n", 0, 0, 3)
    image.arena_bytes = image.const(0)
    x = image.port(fake_models.INPUT, "x", "float32", [n])
    y = image.port(fake_models.OUTPUT, "y", "float32", [n])
    image.step(fake_models.COPY, buffers=[x, y])
    return image
