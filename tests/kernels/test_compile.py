"""Every device source through the real run-time compiler, with the options the launchers pass. Needs no GPU.

The options are not listed here: the launchers run against the stand-in driver, which writes down what they ask for.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parents[1] / "native" / "mock"))
import harness

from lapwing import planner
from lapwing.core.native import CUDA, ENGINES, OPS, native

SOURCES = Path(planner.__file__).parent / "kernels"
NAMES = sorted(path.name for path in SOURCES.glob("*.cu"))
ARCHITECTURES = (80, 90, 100)

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

# every kernel, dtype, triangle and alignment
CALLS = """
for dtype in DTYPE_CODE:
    for upper in (False, True):
        for shift in sorted({0, 8, np.dtype(dtype).itemsize}):
            if shift % (np.dtype(dtype).itemsize // (2 if dtype[0] == "c" else 1)):
                continue
            for n in (*range(1, 35), 64, 65, 96, 97, 128):
                a, _ = problem(dtype, 1, n, upper)
                cholesky(a, "batched", upper, shift=shift, scratch=4096)
            for n in (33, 64, 130):
                a, _ = problem(dtype, 1, n, upper)
                cholesky(a, "tiled", upper, shift=shift, scratch=4096)
            cholesky(a, "cusolver", upper, shift=shift)
            # many at once
            a = np.broadcast_to(np.eye(2, dtype=dtype), (1600, 2, 2))
            cholesky(a, "tiled", upper, shift=shift)
            for vectors in (True, False):
                for n in (*range(1, 10), 16, 17):
                    eigh(np.eye(n, dtype=dtype)[None], "batched", upper, None, vectors, shift=shift)
                for n in (9, 20, 33, 65):  # several for a warp; so many of 33 and 65 that rotations are used
                    eigh(np.broadcast_to(np.eye(n, dtype=dtype), (1500, n, n)), "batched", upper, None, vectors, shift=shift)
            for part in (None, (0, 2)):
                eigh(np.eye(4, dtype=dtype)[None], "cusolver", upper, part, shift=shift)
            eigh(np.diag(-(0.5 ** np.arange(100.0))).astype(dtype)[None], "krylov", upper, (0, 3), shift=shift)

# wide blocks need many eigenvalues: the first product ends the call
def stop(x, y, columns):
    raise StopIteration

for dtype in DTYPE_CODE:
    call = (EIGH, DTYPE_CODE[dtype], CUDA, 0, ENGINES["krylov"], 0, 0, (1, 1000, 0, 140))
    need = native.scratch_bytes(*call)
    work, v = Memory(need), Memory(16)
    try:
        native.run_operator(*call, 0, lambda size: work.address, stop, v.address, v.address, v.address)
    except StopIteration:
        pass
"""

# the stand-in has no twin of these kernels and refuses to launch them: that it compiled them is enough
SOLVE_CALLS = """
from contextlib import suppress

def attempt(op, dtype, flags, sizes, shift):
    place = Memory(1 << 15, shift).address
    with suppress(RuntimeError):
        native.run(OPS[op], DTYPE_CODE[dtype], CUDA, 0, ENGINES["batched"], 0, flags, sizes, 0, None, *[place] * 5)

UPPER, ADJOINT, UNIT, POS = 1, 4, 8, 16
SIDES = {"solve": (0, POS, POS | UPPER), "lu_solve": (0, ADJOINT), "cholesky_solve": (0, UPPER)}
SIDES["triangular"] = [a | b | c for a in (0, UPPER) for b in (0, ADJOINT) for c in (0, UNIT)]
for dtype in DTYPE_CODE:
    for shift in sorted({0, np.dtype(dtype).itemsize // (2 if dtype[0] == "c" else 1)}):
        for n in (1, 3, 8, 12, 20, 32, 40, 100):
            for op in SIDES:
                for flags in SIDES[op]:
                    for k in (1, 3, 9):
                        attempt(op, dtype, flags, (1, n, k), shift)
            for op in ("inverse", "slogdet", "lu"):
                for flags in (0, POS, POS | UPPER):
                    attempt(op, dtype, flags, (1, n), shift)
        for m, n in ((1, 1), (5, 3), (9, 12), (20, 17), (32, 32), (50, 40)):
            attempt("qr", dtype, 0, (1, m, n, min(m, n)), shift)
        attempt("svd", dtype, 0, (1, 5, 3, 0), shift)
    attempt("svd", dtype, 0, (1, 12, 9, 0), 0)
    attempt("svdvals", dtype, 0, (1, 9, 12), 0)
    for shift in sorted({0, np.dtype(dtype).itemsize // (2 if dtype[0] == "c" else 1)}):
        for op in ("eig", "eigvals", "schur"):
            for n in (1, 3, 12, 40, 70):
                attempt(op, dtype, 0, (1, n), shift)
            attempt(op, dtype, 0, (4000, 8), shift)
"""


# the stand-in has no BLAS library, without which neither the Krylov engine nor the tall matrices start: their options as
# kernel() and kernel_of() there write them
KRYLOV = {
    ("krylov.cu", f"-DLW_DTYPE={dtype} -DLW_UPPER={upper} -DLW_V={v} -DLW_WIDTH={width}")
    for dtype in range(4)
    for upper in (0, 1)
    for v in (4, 8, 16)
    for width in (16, 32, 64)
    if v >= (4, 8, 4, 8)[dtype]
}
TALL = {
    ("tall.cu", f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={v} -DLW_WIDTH={width}")
    for dtype in range(2)
    for v in (4, 8, 16)
    for width in (32, 64)
    if v >= (4, 8)[dtype]
}

# as start() in gpu/systems.cc and gpu/lapack_form.cc writes them
SYSTEMS = {
    (source, f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={v}")
    for source in ("systems.cu", "lapack_form.cu")
    for dtype in range(4)
    for v in (4, 8, 16)
    if v >= (4, 8, 4, 8)[dtype]
}
# nor do mixed-precision solves, in double precision alone
MIXED = {
    ("mixed.cu", f"-DLW_DTYPE={dtype} -DLW_UPPER={upper} -DLW_V={v}") for dtype in (1, 3) for upper in (0, 1) for v in (8, 16)
}
# larger batches of systems need memory and products: the options as native/gpu/blocked.cc writes them
BLOCKED = {
    (source, f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={v} {own} -DLW_LANES=32 -DLW_FACTOR=2")
    for dtype, (size, part) in enumerate(((4, 4), (8, 8), (8, 4), (16, 8)))
    for v in (4, 8, 16)
    if v >= part
    for source, own in (
        ("blocked.cu", "-DLW_THREADS=256"),
        *(("blocked_few.cu", f"-DLW_READ={read} -DLW_K={k} -DLW_THREADS={t}")
          for read in (0, 1) for k in (1, 4) for t in (288, 544)),
        *(("blocked_panel.cu", f"-DLW_RT={rows} -DLW_W={row // size} -DLW_RESIDENT={128 // (rows * row) + 1} -DLW_THREADS=512")
          for rows, row in ((1, 128 if size == 4 else 256), (2, 128), (4, 64), (8, 32))),
    )
}  # fmt: skip


# nor QR and least squares panel by panel: threads, rows and columns as PanelShape in blocked_qr.cc has them
PANELS = {
    (
        "qr_panel.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V=16 -DLW_THREADS={threads} -DLW_RT={rows} -DLW_NB={nb}"
        " -std=c++17 -default-device",
    )
    for dtype in range(4)
    for nb in ((8, 4), (8, 4), (8, 4), (4,))[dtype]
    for threads in (64, 128, 256, 512)
    for rows in (1, 2, 4, 8, 16)
    if rows * nb * (4, 8, 8, 16)[dtype] <= (256 if threads == 512 else 128) and (nb == (8, 8, 8, 4)[dtype] or threads == 512)
}
AROUND_PANELS = {
    (source, f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={v} -DLW_THREADS={threads}{more} -std=c++17 -default-device")
    for source, threads, more in (("qr_moves.cu", 256, " -DLW_RT=1"), ("lstsq.cu", 64, ""), ("lstsq.cu", 256, ""))
    for dtype in range(4)
    for v in (4, 8, 16)
    if (4, 8, 4, 8)[dtype] <= v <= (4, 8, 8, 16)[dtype]
}
# in one kernel: lanes, rows and threads as BlockShape in lstsq.cc has them
LSTSQ = {
    (
        "lstsq_block.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={(4, 8, 8, 16)[dtype]} -DLW_G={lanes} -DLW_C=2 -DLW_RT={rows} -DLW_THREADS=160"
        f" -DLW_HOLD={hold} -DLW_RESIDENT=1 -DLW_PIECES={pieces} -std=c++17 -default-device",
    )
    for dtype in range(4)
    for lanes, rows, hold, pieces in ((4, 5, 1, 1), (8, 10, 0, 2), (16, 10, 0, 2), (32, 3, 1, 1))
}
# several matrices to a warp: SmallShape
LSTSQ |= {
    (
        "lstsq_small.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={(4, 8, 8, 16)[dtype]} -DLW_N={n} -DLW_K={k} -DLW_LANES={lanes} -DLW_RT={rows}"
        " -DLW_THREADS=128 -std=c++17 -default-device",
    )
    for dtype in range(4)
    for n, k, lanes, rows in ((4, 1, 4, 4), (5, 2, 8, 2), (2, 4, 16, 3), (8, 1, 32, 1))
}
# and by A^T A before it: GramShape
LSTSQ |= {
    (
        "lstsq_gram.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={(4, 8)[dtype]} -DLW_GROUPS={groups} -DLW_THREADS={threads} -DLW_RESIDENT=1"
        " -std=c++17 -default-device",
    )
    for dtype in range(2)
    for groups, threads in ((3, 64), (5, 64), (5, 128), (6, 128), (8, 256))
} | {
    (
        "lstsq_judge.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={(4, 8, 8, 16)[dtype]} -DLW_THREADS=256 -std=c++17 -default-device",
    )
    for dtype in range(4)
}
# nor eigenvalues of matrices that do not fit into shared memory: LW_GLOBAL as native/gpu/eig.cc has it
EIG_GLOBAL = {
    (
        "eig.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V=16 -DLW_MODE={mode} -DLW_P={threads} -DLW_THREADS={threads} -DLW_ROWS={rows}"
        f" -DLW_GLOBAL={where} -DLW_N=0",
    )
    for dtype in range(4)
    for threads, rows in ((32, 1), (128, 2), (256, 4))
    for mode, where in ((0, 2), (1, 1), (1, 3), (2, 1), (2, 3))
}
# nor what the vendor's solver found
EIG_GIVE = {("eig_give.cu", f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V=16") for dtype in range(4)}
# nor systems by columns: ColumnsShape in solve.cc
COLUMNS = {
    (
        "lu_block.cu",
        f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={(4, 8, 4, 8)[dtype]} -DLW_RT=1 -DLW_W={(32, 32, 32, 16)[dtype]}"
        f" -DLW_THREADS=128 -DLW_RESIDENT=2 -DLW_LANES=32 -DLW_FACTOR=2 -DLW_GIVE={give} -std=c++17 -default-device",
    )
    for dtype in (1, 2, 3)
    for give in range(4)
}
# nor divide and conquer: native/gpu/divide.cc
DIVIDE = {
    (f"divide_{name}.cu", f"-DLW_DTYPE={dtype} -DLW_UPPER=0 -DLW_V={v}{own} -std=c++17 -default-device")
    for dtype in range(2)
    for name, own, accesses in (
        *(("leaf", f" -DLW_THREADS=64 -DLW_M={m} -DLW_VECTORS=1", (16,)) for m in (1, 2 if dtype else 4)),
        ("merge", "", (16,)),
        *(("roots", f" -DLW_THREADS=256 -DLW_LANES={lanes}", (16,)) for lanes in (4, 8, 32)),
        *(("product", f" -DLW_THREADS={2 * tile} -DLW_TILE={tile} -DLW_RESIDENT={1 if dtype else 256 // tile}", (4, 8, 16))
          for tile in (64, 128)),
    )
    for v in accesses
    if v >= (4, 8)[dtype]
}  # fmt: skip


def svd_kernels():
    """Those of the SVD by blocks of columns, by a bidiagonal form and by the Gram matrix, on a GPU with much shared memory."""
    shapes = (
        ("batched", 1, 48),
        ("batched", 1, 128),
        ("batched", 100, 48),
        ("batched", 1, 400),
        ("batched", 1, 700),
        ("cusolver", 1, 700),
    )
    gpu = (132, 232448, 90, "a GPU")
    asked = {
        job
        for dtype in range(4)
        for engine, batch, n in shapes
        for job in native.kernels(OPS["svd"], dtype, CUDA, 0, ENGINES[engine], 0, 0, (batch, n, n, 0), gpu)
        if job[0] in ("svd_block.cu", "svd_gram.cu")
    }
    asked |= {
        job
        for dtype in range(4)
        for n in (40, 100, 200, 256)  # threads, and what does not fit into shared memory
        for job in native.kernels(OPS["svdvals"], dtype, CUDA, 0, ENGINES["batched"], 0, 0, (20, n, n), gpu)
        if job[0] == "svd_bidiagonal.cu"
    }
    parts = ((4, 0), (8, 0), (4, 2), (8, 2), (8, 1), (8, 3))  # accesses to arrays that are aligned to an element or its part
    return asked | {
        (name, options.replace("-DLW_V=16", f"-DLW_V={v}"))
        for name, options in asked
        for v, dtype in parts
        if name == "svd_block.cu" and f"-DLW_DTYPE={dtype} " in options and "-DLW_LANES=8 -DLW_HELD=0" in options
    }


def reduced_kernels():
    """Those of spectra by way of tridiagonal matrices, on a GPU without clusters: one block for a matrix, and teams of them."""
    gpu = (108, 166912, 80, "NVIDIA A100-SXM4-80GB")
    shapes = [(dtype, batch, n) for dtype in range(4) for batch, n in ((1, 600), (500, 200), (30, 600))]
    return {
        job
        for dtype, batch, n in [*shapes, (0, 1, 3000), (3, 1, 3000)]  # panels of columns: the widest and the narrowest element
        for op in ("eigh", "eigvalsh")
        for job in native.kernels(OPS[op], dtype, CUDA, 0, ENGINES["batched"], 0, 0, (batch, n, 0, n), gpu)
        if job[0].startswith(("tridiagonal", "eigh_panel")) and (n < 3000 or job[0] == "tridiagonal_panel.cu")
    }


def two_stage_kernels():
    """Those of two stages, which need much shared memory, with values whose lines do not fit there together."""
    gpu = (132, 232448, 90, "NVIDIA H200")
    return {
        job
        for dtype in range(2)
        for op, n in (("eigh", 1000), ("eigvalsh", 16384))
        for job in native.kernels(OPS[op], dtype, CUDA, 0, ENGINES["two_stage"], 0, 0, (1, n, 0, n), gpu)
        if job[0].startswith("two_stage") or "LW_PART" in job[1]
    }


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """Every (source, options) that the launchers ask for, without the architecture."""
    child = harness.Children(harness.libraries(tmp_path_factory), tmp_path_factory.mktemp("calls"))
    calls, _ = child(CALLS)
    more, _ = child(SOLVE_CALLS, refused=10**6)
    compiled = harness.named(calls + more, "nvrtcCompileProgram")
    jobs = {(c["name"], c["options"].partition("|-std=")[0].replace("|", " ")) for c in compiled}
    return sorted(
        jobs
        | KRYLOV
        | TALL
        | SYSTEMS
        | MIXED
        | BLOCKED
        | PANELS
        | AROUND_PANELS
        | LSTSQ
        | EIG_GLOBAL
        | EIG_GIVE
        | COLUMNS
        | DIVIDE
        | svd_kernels()
        | reduced_kernels()
        | two_stage_kernels()
    )


@pytest.fixture(scope="session")
def compiler():
    if reason := native.missing("compiler"):
        pytest.skip(reason)


def compile_one(name, options, arch):
    """(the binary, what the compiler said)"""
    try:
        return native.compile_kernel(name, options, f"sm_{arch}")
    except RuntimeError as error:
        return b"", str(error)


def compile_all(jobs, arch):
    assert jobs
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda job: compile_one(*job, arch), jobs))
    wrong = [(*job, said) for job, (binary, said) in zip(jobs, done, strict=True) if said or binary[:4] != b"\x7fELF"]
    assert wrong == [], f"{len(wrong)} of {len(jobs)}: {wrong[0]}"


def choices(options):
    return dict(word[2:].split("=") for word in options.split() if word.startswith("-DLW_"))


def kernel(job):
    made = choices(job[1])
    return job[0], made.get("LW_KERNEL")


def distance(job):
    """From n = 12, which is quick to compile and not trivial; fewer rotations at a time are quicker too."""
    made = choices(job[1])
    return abs(int(made.get("LW_N", 12)) - 12), int(made.get("LW_RT", 0)), int(made.get("LW_K", 0))


def representative(jobs):
    """Few jobs in which each kernel meets every value of every choice but its size.

    The large kernels in complex128 take long; complex64 has the same source. The widest blocks of krylov.cu
    take up to half a minute: the slow test has them.
    """

    def values(job):
        return {(k, v) for k, v in choices(job[1]).items() if k not in ("LW_N", "LW_RT", "LW_THREADS", "LW_RESIDENT")}

    chosen = []
    for one in sorted({kernel(job) for job in jobs}, key=str):
        group = [job for job in jobs if kernel(job) == one]
        if one in (("tiled.cu", None), ("cholesky.cu", "2")):
            group = [job for job in group if choices(job[1])["LW_DTYPE"] != "3"]
        if one[0] == "krylov.cu":
            group = [job for job in group if choices(job[1]).get("LW_WIDTH") != "64"]
        left = set().union(*map(values, group))
        while left:
            best = min(group, key=lambda job: (-len(values(job) & left), choices(job[1])["LW_DTYPE"], distance(job)))
            chosen.append(best)
            left -= values(best)
    return chosen


def of_source(jobs, name):
    return [job for job in jobs if job[0] == name]


@pytest.mark.parametrize("name", NAMES)
def test_compiles(asked, compiler, name):
    compile_all(representative(of_source(asked, name)), 90)


@pytest.mark.parametrize("arch", [pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHITECTURES if arch != 90])
def test_compiles_elsewhere(asked, compiler, arch):
    """One of each kernel, in double precision, which alone has instructions of its own."""
    double = [job for job in asked if choices(job[1])["LW_DTYPE"] == "1"]
    kernels = sorted({*map(kernel, double)}, key=str)
    jobs = [min((job for job in double if kernel(job) == one), key=distance) for one in kernels]
    assert {name for name, _ in jobs} == set(NAMES)
    compile_all(jobs, arch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", range(4))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_with_every_option(asked, compiler, arch, name, dtype):
    jobs = [job for job in of_source(asked, name) if choices(job[1])["LW_DTYPE"] == str(dtype)]
    if name == "tall.cu" and dtype > 1:
        pytest.skip("complex matrices are real ones there")
    if name.startswith(("divide_", "two_stage_")) and dtype > 1:
        pytest.skip("for real matrices alone")
    if name in ("mixed.cu", "svd_gram.cu") and dtype not in (1, 3):
        pytest.skip("in double precision alone")
    if name == "lstsq_gram.cu" and dtype > 1:
        pytest.skip("for real matrices alone")
    compile_all(jobs, arch)


def test_a_wrong_source_is_seen(compiler):
    binary, said = compile_one(NAMES[0], "-DLW_DTYPE=nonsense", 90)
    assert "error" in said
    assert binary == b""
