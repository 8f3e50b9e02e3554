"""Loading: what is refused and how; CPU levels; what the file looks like in memory."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import cuvil
import fake_models
import numpy as np
import pytest
from fake_package import FLAGS, RUNTIME, WEIGHTS, kernel_table

FEATURES = {
    name: int(bit)
    for bit, name in re.findall(r'FEATURE\((\d+), "(.*?)"\)', (RUNTIME / "src/cpu.h").read_text())
}
ALIASES = {"sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm"}
UNNAMED = 63  # a feature that no CPU has


def refused(code: str, path: Path, **options) -> cuvil.CuvilError:
    with pytest.raises(cuvil.CuvilError) as caught:
        cuvil.load(path, **options)
    assert caught.value.code == code, caught.value
    assert str(path) in caught.value.place
    return caught.value


@pytest.fixture
def path(make):
    return make(fake_models.mlp())


def test_checksums_match(path):
    assert cuvil.load(path, threads=1, check=True).level == "base"


def test_bare_library(path):
    model = cuvil.load(str(path / "model.so"), threads=1)
    assert model.metadata == {"schema_version": "1.0", "model": {"name": "fake"}}
    assert "metadata.json" in refused("CUV610", path / "model.so", check=True).message


def test_rendered_error(tmp_path):
    missing = tmp_path / "no.cuvil"
    assert str(refused("CUV601", missing)) == (
        f"error[CUV601]: no such file or folder\n  --> {missing}\n"
        "   = help: is the path spelled right?"
    )


def test_a_damaged_name_that_is_no_utf8(path):
    """The dynamic linker quotes it, and ctypes would raise UnicodeDecodeError."""
    library = path / "model.so"
    data = library.read_bytes()
    assert b"\0memcpy\0" in data
    library.write_bytes(data.replace(b"\0memcpy\0", b"\0m\xe9mcpy\0", 1))
    assert "dynamic linker" in refused("CUV601", path).message


def test_incomplete_folder(path):
    (path / "metadata.json").rename(path / "elsewhere")
    assert "has no metadata.json" in refused("CUV601", path).message
    (path / "elsewhere").rename(path / "metadata.json")
    (path / "model.so").unlink()
    assert "has no model.so" in refused("CUV601", path).message


@pytest.mark.parametrize("content", [b"", b"PK\3\4 a zip file", b"\x7fELF", b"x" * 100])
def test_not_a_library(tmp_path, content):
    file = tmp_path / "model.so"
    file.write_bytes(content)
    assert "not a shared library" in refused("CUV601", file).message


@pytest.mark.parametrize("keep", [64, 200, 4096, 30000, -65536, -1])
def test_truncated(path, keep):
    file = path / "model.so"
    file.write_bytes(file.read_bytes()[:keep])
    assert "truncated" in refused("CUV601", path).message


def rewrite(file: Path, offset: int, value: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[offset : offset + len(value)] = value
    file.unlink()
    file.write_bytes(data)


def test_other_machine(path):
    rewrite(path / "model.so", 18, struct.pack("<H", 243))
    assert "built for riscv64, this machine is" in refused("CUV603", path).message
    rewrite(path / "model.so", 18, struct.pack("<H", 999))
    assert "ELF machine 999" in refused("CUV603", path).message
    rewrite(path / "model.so", 4, b"\1")
    assert "32-bit" in refused("CUV603", path).message


def test_program_instead_of_library(path):
    rewrite(path / "model.so", 16, struct.pack("<H", 2))
    assert "no shared library" in refused("CUV601", path).message


def test_some_other_library(tmp_path):
    file, source = tmp_path / "other.so", tmp_path / "other.c"
    source.write_text("int one(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", file, source], check=True)
    assert "without the cuvil API" in refused("CUV601", file).message


def test_linked_but_not_packed(tmp_path, objects):
    file, table = tmp_path / "model.so", tmp_path / "table.c"
    table.write_text(kernel_table(fake_models.mlp()))
    subprocess.run(["cc", "-shared", *FLAGS, "-o", file, table, *objects], check=True)
    assert "linked, not packed" in refused("CUV601", file).message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('{"schema_version": "2.0"}', "CUV602", "metadata schema 2.0, this cuvil reads 1.x"),
        ('{"schema_version": ', "CUV601", "not JSON"),
        ("{}", "CUV601", "no schema_version"),
        ('{"schema_version": 1}', "CUV601", "no schema_version"),
        ("[]", "CUV601", "no schema_version"),
        ("\ud800", "CUV601", "not JSON"),
    ],
)
def test_bad_metadata(path, text, code, message):
    (path / "metadata.json").write_bytes(text.encode(errors="surrogatepass"))
    assert message in refused(code, path).message


def test_newer_minor_schema_loads(path):
    metadata = json.loads((path / "metadata.json").read_text()) | {
        "schema_version": "1.9",
        "new": 1,
    }
    (path / "metadata.json").write_text(json.dumps(metadata))
    assert cuvil.load(path, threads=1).metadata["new"] == 1


def test_one_flipped_weight_is_found_by_check_alone(path):
    file = path / "model.so"
    data = file.read_bytes()
    place = data.rindex(b"CUVILIMG")
    start, size = struct.unpack_from("<QQ", data, place + 32 + 16 * WEIGHTS)
    last = place + start + size - 1
    rewrite(file, last, bytes([data[last] ^ 1]))
    cuvil.load(path, threads=1).close()
    assert "corrupt model.so: SHA-256" in refused("CUV601", path, check=True).message
    metadata = json.loads((path / "metadata.json").read_text())
    metadata["files"]["model.so"]["sha256"] = sha256(file.read_bytes()).hexdigest()
    (path / "metadata.json").write_text(json.dumps(metadata))
    assert "corrupt weights" in refused("CUV601", path, check=True).message


def test_check_wants_every_listed_file(path):
    metadata = json.loads((path / "metadata.json").read_text())
    metadata["files"]["vectors.npz"] = {"sha256": "0" * 64}
    (path / "metadata.json").write_text(json.dumps(metadata))
    assert "lacks its file `vectors.npz`" in refused("CUV601", path, check=True).message


def test_image_of_another_version(path):
    file = path / "model.so"
    offset = file.read_bytes().rindex(b"CUVILIMG")
    rewrite(file, offset + 8, struct.pack("<I", 3))
    assert "image format 3, this runtime reads 2" in refused("CUV602", path).message


@pytest.mark.parametrize("threads", [0, -1])
def test_bad_thread_count(path, threads):
    assert "must be at least 1" in refused("CUV610", path, threads=threads).message
    assert "allowed is 0..1024" in refused("CUV610", path, threads=5000).message


def test_missing_features_are_listed(make):
    image = fake_models.mlp()
    image.levels = [("future", 1 << UNNAMED | 1 << 62), ("later", 1 << UNNAMED)]
    message = refused("CUV603", make(image)).message
    assert message == ("this CPU lacks feature 62, feature 63 (for future); feature 63 (for later)")


def test_sizes_may_depend_on_the_level(make):
    image = fake_models.Image()
    image.levels = [("first", 0), ("second", 0), ("third", 0)]
    image.arena_bytes = image.const(0)
    image.port(fake_models.INPUT, "x", "int8", [])
    number = image.expr("level")
    image.port(fake_models.OUTPUT, "y", "int8", [image.expr("add", number, image.const(5))])
    path = make(image)
    for size, level in ((5, None), (6, "second"), (7, "third")):
        assert cuvil.load(path, threads=1, level=level)(np.int8(0)).shape == (size,)


def test_level_is_the_first_that_runs_or_the_one_asked_for(make):
    image = fake_models.mlp()
    image.levels = [("future", 1 << UNNAMED), ("second", 0), ("third", 0)]
    path = make(image)
    for level, chosen in [(None, "second"), ("second", "second"), ("third", "third")]:
        model = cuvil.load(path, threads=1, level=level)
        assert model.level == chosen
        np.testing.assert_allclose(model(np.zeros((1, 5), "f4")).y[0], fake_models.BIAS)
    assert refused("CUV603", path, level="future").message.endswith("feature 63 (for future)")
    message = refused("CUV610", path, level="none").message
    assert message == "the package has no level `none`, only future, second, third"


@pytest.mark.skipif(sys.platform != "linux" or not FEATURES, reason="reads /proc/cpuinfo")
def test_features_agree_with_the_kernel(make):
    """One level for each feature, in turn: chosen exactly when /proc/cpuinfo lists it."""
    words = set(re.search(r"flags\s*: (.*)", Path("/proc/cpuinfo").read_text())[1].split())
    words |= {word.replace("_", "").replace("amx", "amx-") for word in words}
    for name, bit in FEATURES.items():
        image = fake_models.mlp()
        image.levels = [(name, 1 << bit), ("without", 0)]
        model = cuvil.load(make(image), threads=1)
        assert model.level == (name if ALIASES.get(name, name) in words else "without")
        model.close()


def test_feature_numbers_are_dense_and_unique():
    assert sorted(FEATURES.values()) == list(range(len(FEATURES)))


def test_weights_stay_clean_and_file_backed(make):
    image = fake_models.mlp()
    image.weight(np.arange(1 << 18, dtype=np.int64))
    path = make(image)
    model = cuvil.load(path, threads=1)
    model(np.ones((3, 5), np.float32))
    entries = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M
    )
    (image_entry,) = [
        e
        for e in entries
        if str(path) in e
        and int(e.split()[2], 16) % 65536 == 0
        and int(e.split()[2], 16) > 0
        and int(re.search(r"Size: +(\d+)", e)[1]) > 1024
    ]
    assert image_entry.split()[1] == "r--p"
    kilobytes = dict(re.findall(r"^(\w+): +(\d+) kB", image_entry, flags=re.M))
    assert kilobytes["Private_Dirty"] == kilobytes["Anonymous"] == "0"
    assert int(kilobytes["Rss"]) < 1024, "untouched weights must not be read"


def test_two_models_at_once(make):
    a, b = cuvil.load(make(fake_models.mlp())), cuvil.load(make(fake_models.branch()))
    x = np.ones(3, np.float32)
    assert a(np.zeros((2, 5), np.float32)).y.shape == (2, 7)
    assert np.array_equal(b(np.array(True), x, x), x)


def test_a_package_that_was_built_again_is_loaded_anew(make):
    """While models of the older ones are in use, which keep what they had."""
    x = np.ones(3, np.float32)
    built = [fake_models.mlp(), fake_models.branch(), fake_models.mlp()]
    place, models = make(built[0]), []
    for image in built:
        shutil.rmtree(place)
        make(image).rename(place)
        models += [cuvil.load(place), cuvil.load(place)]
    for model in (*models[:2], *models[4:]):
        assert model(np.zeros((2, 5), np.float32)).y.shape == (2, 7)
    for model in models[2:4]:
        assert np.array_equal(model(np.array(True), x, x), x)
    for model in models[:5]:
        model.close()
    assert models[5](np.zeros((2, 5), np.float32)).y.shape == (2, 7)
    models[5].close()
    assert cuvil.load(place)(np.zeros((2, 5), np.float32)).y.shape == (2, 7)


def test_a_package_that_is_built_again_and_again_is_loaded_anew(make):
    """Where each model replaces the one before, which then is free: names come into use again."""
    x, held = np.ones(3, np.float32), []
    place = make(fake_models.mlp())
    for number in range(6):
        shutil.rmtree(place)
        make((fake_models.mlp, fake_models.branch)[number % 2]()).rename(place)
        for _ in range(2):
            held = [cuvil.load(place)]  # while it is loaded, the one before is still there
            if number % 2:
                assert np.array_equal(held[0](np.array(True), x, x), x)
            else:
                assert held[0](np.zeros((2, 5), np.float32)).y.shape == (2, 7)


def test_import_takes_numpy_alone():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import numpy; before = set(sys.modules);"
        "import cuvil; new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(RUNTIME)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["cuvil"]


def test_compiler_functions_without_the_compiler(monkeypatch):
    monkeypatch.setattr(cuvil, "find_spec", lambda name: None)
    with pytest.raises(
        AttributeError, match=r"cuvil\.compile needs the compiler: pip install cuvilc"
    ):
        _ = cuvil.compile
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = cuvil.nonsense


def test_compiler_functions_come_from_cuvilc_api(monkeypatch):
    monkeypatch.setattr(cuvil, "find_spec", lambda name: name)
    monkeypatch.setattr(cuvil, "import_module", lambda name: type("Api", (), {"compile": name}))
    assert cuvil.compile == "cuvilc.api"


def test_headers_and_sources_are_found():
    assert (cuvil.include_dir() / "cuvil.h").is_file()
    assert (cuvil.source_dir() / "image.h").is_file()


def test_wheel_holds_headers_and_sources(tmp_path):
    shutil.copytree(
        RUNTIME, tmp_path / "runtime", ignore=shutil.ignore_patterns("__pycache__", "build")
    )
    build = "from setuptools import setup; setup()"
    subprocess.run(
        [sys.executable, "-c", build, "-q", "build", "--build-lib", str(tmp_path / "lib")],
        cwd=tmp_path / "runtime",
        check=True,
        capture_output=True,
    )
    built = tmp_path / "lib" / "cuvil"
    for folder in ("include", "src"):
        assert {f.name for f in (RUNTIME / folder).glob("*.[chS]*")} <= {
            f.name for f in (built / "csrc" / folder).iterdir()
        }
    assert (built / "py.typed").is_file()
