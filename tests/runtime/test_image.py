"""The records of image.h have the layout that packers write."""

from __future__ import annotations

import re
import struct
import subprocess

import fake_adapters
import fake_models
from fake_package import ADAPTER_CHECKSUM, DTYPES, OPS, RUNTIME, SECTIONS, WEIGHTS

HEADER = (RUNTIME / "src/image.h").read_text()
# C's sizes of the records, as the writers spell them for `struct`.
RECORDS = {
    "cuvil_level": "<IIQ",
    "cuvil_symbol": "<IIIIqq",
    "cuvil_expr": "<IIIIq",
    "cuvil_io": "<IIIIII",
    "cuvil_buffer": "<IIQ",
    "cuvil_step": "<12I",
    "cuvil_adaptable": "<IIQQIIII",
    "cuvil_lora": "<32s8I",
    "cuvil_image_header": "<QIIQQ30QII",
    "cuvil_adapter_header": fake_adapters.HEADER.format,
    "cuvil_adapter_entry": fake_adapters.ENTRY.format,
}


def test_record_sizes(tmp_path):
    checks = "".join(
        f'_Static_assert(sizeof({name}) == {struct.calcsize(form)}, "{name}");\n'
        for name, form in RECORDS.items()
    )
    for record, checksum in (("image", 272), ("adapter", ADAPTER_CHECKSUM)):
        place = f"offsetof(cuvil_{record}_header, checksum)"
        checks += f'_Static_assert({place} == {checksum}, "{record}");\n'
    source = tmp_path / "sizes.c"
    headers = [f'#include "{RUNTIME}/src/{name}.h"\n' for name in ("image", "adapter")]
    source.write_text("#include <stddef.h>\n" + "".join(headers) + checks)
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", str(source)], check=True)


def enumerators(prefix: str) -> list[str]:
    found = re.findall(rf"\b{prefix}_(\w+) = (\d+)", HEADER)
    assert [int(number) for _, number in found] == list(range(len(found)))
    return [name.lower() for name, _ in found]


def test_enumerations():
    assert enumerators("CUVIL_EXPR") == list(OPS)
    assert enumerators("CUVIL_SECTION") == [*SECTIONS, "count"]
    buffers = ["arena", "weight", "input", "output", "heap", "adapted", "prepared"]
    assert enumerators("CUVIL_BUFFER") == buffers
    steps = ["kernel", "copy", "dims", "branch", "jump", "require", "bind", "prepare"]
    assert enumerators("CUVIL_STEP") == steps
    dtypes = re.search(r"CUVIL_FLOAT32 = 0.*?}", (RUNTIME / "include/cuvil.h").read_text(), re.S)
    assert tuple(word.lower() for word in re.findall(r"CUVIL_(\w+)", dtypes[0])) == DTYPES


def test_python_loader_agrees_on_the_dtypes():
    from cuvil import _native

    assert _native.DTYPES == DTYPES


def test_sections_are_aligned():
    image = fake_models.mlp().pack()
    places = [struct.unpack_from("<QQ", image, 32 + 16 * i) for i in range(len(SECTIONS))]
    assert all(offset % 64 == 0 for offset, _ in places)
    assert places[WEIGHTS][0] % 65536 == 0
    assert sum(places[-1]) == len(image)
