"""The diagnostics of running packages: CUV601 to CUV612 are the runtime's (cuvil.h, runtime/cuvil),
from CUV620 on those of the commands that run packages.
"""

from __future__ import annotations

from cuvilc.diagnostics import define

define(
    "CUV601",
    "the package is damaged or is none",
    """\
`cuvil` looked for a package and found something else: nothing at the path, no model.so or
metadata.json, a library that breaks off, a wrong magic number or checksum, an index that points
outside. It is found before any code of the package runs.

Next step: check the path; build or copy the package again, as a whole folder. `cuvilc verify PKG`
compares every file with its SHA-256.
""",
)

define(
    "CUV602",
    "the package is of another version than this cuvil reads",
    """\
The version of the metadata's schema, of the image in model.so or of the C API differs from what the
installed `cuvil` knows.

Next step: `pip install -U cuvil`, or build the package with the cuvilc of the version that is
installed.
""",
)

WRONG_MACHINE = define(
    "CUV603",
    "this machine cannot run the package",
    """\
The package was built for another architecture, or every CPU level in it needs features that this
CPU lacks; the message lists them. The package is refused as a whole: it never dies of an illegal
instruction.

Next step: build for this machine with `cuvilc build MODEL --cpu host` on it, or name an older
level, such as `--cpu x86-64-v2`. `cuvilc inspect PKG` shows what a package needs without loading
it.
""",
)

WRONG_NAMES = define(
    "CUV604",
    "an input or output is unknown, missing, or not an array",
    """\
Inputs are given by the model's own names, all of them and no others; every one must be a NumPy
array or something that becomes one without a guess (`__dlpack__`, `__array__`).

Next step: `cuvilc inspect PKG` lists names, types and sizes; in Python `model.inputs` does.
""",
    exit_code=2,
)

WRONG_DTYPE = define(
    "CUV605",
    "an input or output has another dtype than the model declares",
    """\
Nothing is converted silently: a float64 array for a float32 input is refused, as is one in
another byte order.

Next step: convert it, in NumPy by `x.astype(np.float32)`, in torch by `x.to(torch.float32)`. What
NumPy lacks (bfloat16, float8, …) is given as arrays of ml_dtypes, `x.astype(ml_dtypes.bfloat16)`,
or as bits in uint16 or uint8.
""",
    exit_code=2,
)

WRONG_SHAPE = define(
    "CUV606",
    "an input has a shape that the model does not accept",
    """\
The rank differs, a fixed size differs, a size lies outside its declared range, or two axes that
carry one symbol have different sizes. The message names the axis and the range. A size that the
model computes from its data may be out of range, too; then the message names the layer.

Next step: reshape or pad the input. A named size that is out of range: build the package with a
wider one, `--dim NAME=1..512`. A size that must be one number was fixed by --shape or --dim, or is
fixed in the model's file, and then no option opens it: export the model with an open axis, in torch
by `dynamic_shapes={"x": {0: Dim("batch")}}`, and build again.
""",
    exit_code=2,
)

define(
    "CUV607",
    "a tensor's memory is not laid out as the runtime needs it",
    """\
The C API takes C-contiguous memory aligned to its element; an output buffer must be writable. The
Python side copies strided inputs by itself.

Next step: `np.ascontiguousarray(x)`, or another buffer for the output.
""",
    exit_code=2,
)

NO_MEMORY = define(
    "CUV608",
    "not enough memory to run the model with these sizes",
    """\
The arena and scratch memory of one context, or an output, could not be had. How much is needed
follows from the sizes: `cuvilc inspect PKG` shows the expression, `cuvilc bench` its value. Where a
layer is named, a size that the model computes from its data asked for it.

Next step: smaller sizes, fewer threads, fewer runs at once.
""",
)

REFUSED_DATA = define(
    "CUV609",
    "a kernel refused the data",
    """\
The shapes fit, but a value does not: such as an index beyond the end of the axis that it selects
from. The message names the step and the layer of the model.

Next step: look at the inputs that feed the named layer; token numbers beyond the vocabulary are
the usual reason.
""",
    exit_code=2,
)

define(
    "CUV610",
    "a call of the runtime has a wrong argument",
    """\
A null pointer, a number out of range, an unknown CPU level, a thread count below 1, an output whose
memory overlaps an input or another output, or a model that is closed already.

Next step: compare the call with cuvil.h, or with the docstring of the Python function.
""",
    exit_code=2,
)

BAD_CUVLA = define(
    "CUV611",
    "an adapter is damaged, or was built for another package",
    """\
A .cuvla file is made for one package: it holds the adapter's factors as that package's kernels read
them, and the package's fingerprint (`cuvilc inspect PKG` shows it). This file is no adapter, was
cut short or changed, carries another fingerprint, or has the name of one that is loaded already; or
an adapter is to be unloaded that is in use.

Next step: `cuvilc adapter inspect FILE.cuvla --base PKG` says which of these it is;
`cuvilc adapter build ADAPTER --base PKG` makes one for this package. Load a second adapter of one
name under another: `model.load_adapter("FILE.cuvla", "NAME")`.
""",
)

NO_ADAPTER = define(
    "CUV612",
    "there is no such adapter",
    """\
No adapter of this name is loaded (the message lists those that are), or the package takes none:
only packages built with `--lora swap` or `--lora batch` do.

Next step: load it first (`model.load_adapter` and `cuvil_load_adapter` take a .cuvla file, which
`cuvilc adapter build ADAPTER --base PKG` makes), or build the package with `--adapter` and `--lora
swap`. `cuvilc inspect PKG` shows which adapters are in a package, and the mode that it was built
for.
""",
    exit_code=2,
)

BAD_ARRAYS = define(
    "CUV620",
    "the file of inputs cannot be used",
    """\
`cuvilc run --inputs` reads a .npz file of NumPy arrays under the names of the model's inputs. It
is read without pickle: arrays of Python objects are refused, for they could run any code.

Next step: write the file with `np.savez("in.npz", image=x)`. A single .npy is fine for a model
with one input. A file of raw numbers says neither names nor sizes: read it with
`np.fromfile("in.bin", np.float32).reshape(1, 3, 224, 224)`.
""",
    exit_code=2,
)

NOT_WRITTEN = define(
    "CUV621",
    "a result file cannot be written",
    """\
The file of outputs (or of a trace) is written beside its place and renamed, so that a
half-written one never stands there. The operating system refused; its reason stands in the
message.

Next step: another path, or free space.
""",
    exit_code=2,
)

WRONG_RESULTS = define(
    "CUV622",
    "the package does not compute what it should",
    """\
An output differs from its reference by more than the tolerance: |y - ref| <= atol + rtol *
max|ref|, where NaN and infinities must stand in the same places and integers must be equal (8-bit
ones may be one step off). The table above the message shows every comparison.

With bundled vectors the reference is cuvilc's interpreter in float64: a difference is a fault of
a kernel or of the machine. With --against it is onnxruntime: look at the model's type as well,
for float16 models differ by the order of additions. In a quantised model that has float operations
between its layers, a value may fall halfway between two levels, which the last bit of a float then
decides: a few elements are a level off, about a hundredth of the scale, and neither is wrong.

A model that subtracts large sums which are nearly equal, such as some Gaussian processes, has no
right digits in float32, wherever it runs: export it in float64.

Of `--precision bf16` the reference is the unrounded model: beyond its 2 % the model does not bear
bfloat16 with inputs like these, which are random; judge by its own data, or leave it in float32.

Next step: build again with `--no-cache`. For a quantised model, see whether `--against` agrees. If
a difference stays, report it with `--dump-ir DIR`.
""",
)

EXTRA_MISSING = define(
    "CUV623",
    "an optional package is not installed",
    """\
Some commands need a package that cuvilc itself does without: `cuvil` to run packages,
`onnxruntime` for `cuvilc verify --against`.

Next step: install it with pip, as the message says.
""",
    exit_code=2,
)

INTERPRETED = define(
    "CUV624",
    "this package runs only in the compiler's interpreter",
    """\
The package was built for the target `null`: it holds the program instead of machine code. `cuvilc
run`, `bench` and `verify` run it, and so does `cuvilc.api.open_package(path)` in Python;
`cuvil.load` and the C API cannot.

Next step: build it for a real target: `cuvilc build MODEL --target x86`.
""",
)

ORACLE_FAILED = define(
    "CUV625",
    "the oracle cannot run the model",
    """\
`cuvilc verify --against` compares with onnxruntime, and onnxruntime refused the model or the
random inputs, or its inputs and outputs are not those of the package. Its own words stand under
the error.

Next step: check that the package was built from this very file. If the model needs inputs of a
special kind, use the bundled vectors or `cuvilc run` with inputs of your own.
""",
)

NOT_VERIFIED = define(
    "CUV626",
    "the package cannot be verified",
    """\
`cuvilc build --verify` keeps a package only when it computed rightly, and here nothing could be
compared: the model refuses every kind of random input that was tried, so that there are no test
vectors, or this machine runs none of the CPU levels that were built. The notes say which.

Next step: build without --verify and compare with inputs of your own, by `cuvilc run`; or fix the
sizes with --shape; or verify on the machine that the package is for.
""",
)
