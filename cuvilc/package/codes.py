"""The diagnostics of building a package: CUV501 to CUV511. Reading one is in cuvilc/artifact.py."""

from __future__ import annotations

from cuvilc.diagnostics import define

NO_COMPILER = define(
    "CUV501",
    "no C compiler was found to link model.so",
    """\
A package is a shared library, and linking it takes a C compiler driver. cuvilc looks for the
command in the environment variable CC, then for cc, gcc and clang on PATH.

Next step: install one (Debian and Ubuntu: `apt install gcc`; Fedora: `dnf install gcc`; Alpine:
`apk add gcc musl-dev`), or set CC to the command of one that is not on PATH, such as
`CC=/opt/llvm/bin/clang`. Only the machine that builds needs it; the machine that runs the package
does not.
""",
)

COMPILER_FAILED = define(
    "CUV502",
    "the C compiler could not compile the runtime",
    """\
The runtime is a few C11 files that every model.so contains. The compiler that was found refused one
of them; its own message stands under the error.

Usual reasons: the C library's headers are missing (Debian: `apt install libc6-dev`), CC names
something that is not a C11 compiler, or CC carries flags that do not fit.

Next step: install the headers, or try `CC=gcc` or `CC=clang`.
""",
)

NO_RUNTIME = define(
    "CUV503",
    "the runtime's C sources are not installed",
    """\
cuvilc links the runtime into every package and takes its C sources from the Python package `cuvil`,
or from `runtime/` beside the compiler in a checkout.

Next step: `pip install cuvil` in the environment that runs cuvilc, at the same version.
""",
)

LINK_FAILED = define(
    "CUV504",
    "linking model.so failed",
    """\
The linker refused the kernels and the runtime; its own message stands under the error.

`undefined reference` means that a kernel calls a function that neither the runtime, libc nor libm
has: a fault of ours. `cannot find -lm` means that the C library's development files are missing.

Next step: install those files (Debian: `apt install libc6-dev`), or report the message.
""",
)

BAD_LIBRARY = define(
    "CUV505",
    "the linked library cannot carry the image",
    """\
After linking, cuvilc appends plan and weights to model.so and turns a spare program header into the
segment that maps them. That takes a 64-bit little-endian ELF shared library with a PT_NOTE header.

The linker that was used produced something else.

Next step: try another (`CC=gcc`, `CC=clang`), and report this.
""",
    exit_code=3,
)

BAD_DESTINATION = define(
    "CUV506",
    "a package cannot be written at this path",
    """\
The destination of a build must be a plain name in an existing directory: the package is written
beside it and renamed into place. Refused are the root directory, `.` and `..`, symbolic links,
names with control characters, and paths whose parent is missing or is not a directory.

Next step: give another path with `-o`, or create the parent directory.
""",
    exit_code=2,
)

NOT_REPLACED = define(
    "CUV507",
    "the destination exists and is something else",
    """\
A command replaces only what it would write itself. A build replaces a package: a directory with a
metadata.json of ours and no file that this metadata does not name. `cuvilc adapter build` replaces
a .cuvla file, `run --outputs` an archive as NumPy writes it (.npz), `bench --trace` a timeline of
its own. Anything else might be somebody's work and is left alone.

Next step: move it away, or give another path with `-o`.
""",
    exit_code=2,
)

DISK_FULL = define(
    "CUV508",
    "no space left to write the package",
    """\
The disk or the quota is full. Nothing was left behind, and a package that stood at the destination
stands there still.

Next step: free space (the package needs the size of the weights plus about 1 MB, in the
destination's directory), or write to another disk with `-o`. The build cache can be emptied at any
time: it is $CUVILC_CACHE_DIR, else $XDG_CACHE_HOME/cuvilc, else ~/.cache/cuvilc.
""",
)

NOT_PERMITTED = define(
    "CUV509",
    "no permission to write the package",
    """\
The directory of the destination refuses new files, or the file system is mounted read-only. A
package is written into a new directory beside the destination, so its parent directory must be
writable.

Next step: give another path with `-o`, or change the directory's permissions.
""",
)

WRITE_FAILED = define(
    "CUV510",
    "the package could not be written",
    """\
The operating system reported an error that is neither a full disk nor a lack of permission; it
stands in the message. Nothing was left behind. A name that is too long and a failing disk are usual
reasons.

Next step: another name or folder, by `-o`.
""",
)

BAD_PLAN = define(
    "CUV511",
    "the execution plan is inconsistent",
    """\
The packer checks the plan that the compiler made: every number of a buffer, kernel, step or symbol
must exist, sizes must agree with the weights, and constants must fit into 64 bits. This plan does
not hold to it. That is a fault of the compiler, not of the model.

Next step: report it with the reproducer.
""",
    exit_code=3,
)
