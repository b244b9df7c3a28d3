"""The device sources run as host code (emulator.h) with 32 and with 64 lanes: answers, races in shared memory, bounds.

The launchers are the library's own, on the stand-in driver of tests/native/mock. ``FAMILIES`` says for each family of kernels
which calls reach it and which kernels these must launch. One dtype of each family runs with 64 lanes in every test run; all
dtypes, 32 lanes and other orders of the threads in the slow ones.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parents[1] / "native"))
sys.path.append(str(Path(__file__).parents[1] / "native" / "mock"))
import harness

import lapwing
from test_cuda_mock_eigh import OPERATOR_CALL
from test_cuda_mock_part import START as PART
from test_cuda_mock_solve import START
from test_lapack_form import ON_GPU as LAPACK_FORM

pytestmark = [
    pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the emulator switches between threads in x86-64 code"),
]

SOURCES = Path(lapwing.__file__).parent / "kernels"
DTYPES = ("float32", "float64", "complex64", "complex128")
IMPORTS = """
import eig_checks, qr_checks, svd_checks
ENGINE = "batched"
"""

# family: (calls, kernels that they launch, dtype of the quick run)
FAMILIES = {
    "cholesky_thread": ("check(dtype, 5, 3, 'batched')", {"cholesky_thread"}, "float32"),
    "cholesky_rows": ("check(dtype, 9, 11, 'batched', True)", {"cholesky_rows"}, "complex64"),
    "cholesky_block": ("check(dtype, 2, 70, 'batched')", {"cholesky_block"}, "float64"),
    "triangle": ("check(dtype, 2, 37, 'cusolver', True)", {"transpose_in", "check_diagonal", "finish"}, "complex128"),
    "solve_thread": ("solve_checks.test_solve(run, dtype, 3, 1)", {"solve_thread"}, "complex64"),
    "solve_lanes": ("solve_checks.test_solve(run, dtype, 12, 3)", {"solve_lanes"}, "float64"),
    "solve_two_rows": (
        "n = 32 if 'complex' in dtype else 35\nsolve_checks.test_solve(run, dtype, n, 1)\n"
        "solve_checks.test_lu(run, dtype, n)", {"solve_lanes"}, "float64"),
    "solve_block": ("solve_checks.test_solve(run, dtype, 40, 5)\nsolve_checks.test_slogdet(run, dtype, 35)",
                    {"solve_block"}, "float64"),
    "pos_block": ("n = 100 if dtype == 'complex128' else 130\nsolve_checks.test_solve_positive(run, dtype, 0, n, 1)",
                  {"pos_block"}, "float32"),
    "lu_block": ("solve_checks.test_solve(run, dtype, 130, 2)", {"lu_block"}, "complex64"),
    "blocked": ("solve_checks.test_lu(run, dtype, 300)\nsolve_checks.test_solve(run, dtype, 300, 2)",
                {"lu_panel", "block_copy"}, "float32"),
    "systems": ("ENGINE = 'cusolver'\nsolve_checks.test_solve(run, dtype, 17, 2)\nsolve_checks.test_slogdet(run, dtype, 33)",
                {"check_pivots", "determinant"}, "complex64"),
    "solve_qr": ("solve_checks.test_qr(run, dtype, 12, 9, 1)", {"solve_qr"}, "float64"),
    "qr_block": ("solve_checks.test_qr(run, dtype, 50, 35, 1)", {"qr_block"}, "float32"),
    "qr_panel": (
        "qr_checks.check_qr(run, qr_checks.matrices('random', dtype, 2, 270, 40))",
        {"qr_panel", "qr_take"}, "float32"),
    "lstsq_block": ("qr_checks.check_lstsq(run, qr_checks.matrices('deficient', dtype, 2, 50, 18),"
                    " qr_checks.random(np.random.default_rng(1), dtype, 2, 50, 2))", {"lstsq_block"}, "complex64"),
    "lstsq_small": ("for m, n, k in ((16, 4, 1), (13, 5, 2)):\n"
                    "    qr_checks.check_lstsq(run, qr_checks.matrices('deficient', dtype, 37, m, n),"
                    " qr_checks.random(np.random.default_rng(1), dtype, 37, m, k))", {"lstsq_small"}, "complex64"),
    "lstsq_gram": ("qr_checks.check_lstsq(run, qr_checks.matrices('random', dtype, 2, 80, 20),"
                   " qr_checks.random(np.random.default_rng(1), dtype, 2, 80, 2))", {"lstsq_gram"}, "float64"),
    "svd_lanes": ("solve_checks.test_svd(run, dtype, 6, 6, 1)", {"svd_lanes"}, "float64"),
    "svd_block": ("svd_checks.check_svd(run, svd_checks.svd_matrices('random', dtype, 2, 35, 34))",
                  {"svd_turn", "svd_bidiagonal"}, "float32"),
    "svd_gram": ("ENGINE = 'cusolver'\nsvd_checks.check_svd(run, svd_checks.svd_matrices('random', dtype, 1, 70, 65))",
                 {"svd_correct"}, "float32"),
    "svd_refine": ("ENGINE = 'cusolver'\nsvd_checks.check_svd(run, svd_checks.svd_matrices('condition 1e4', dtype, 1, 66, 65))",
                   {"svd_quotients", "svd_refine"}, "float64"),
    "eig_thread": ("eig_checks.check_random(run, dtype, 3, 40)", {"eig"}, "float32"),
    "eig_block": ("eig_checks.check_random(run, dtype, 33, 1)", {"eig"}, "complex64"),
    "eig_give": ("ENGINE = 'cusolver'\n"
                 "eig_checks.check_eig(run, solve_checks.random(np.random.default_rng(1), dtype, 2, 35, 35))",
                 {"eig_values", "eig_pairs"}, "float32"),
    "eigh_small": ("check_eigh(hermitian(dtype, 40, 4 if dtype == 'complex128' else 5), 'batched')", {"eigh_small"}, "float64"),
    "eigh_lanes": (
        "check_eigh(hermitian(dtype, 3, 20), 'batched', True)",
        {"eigh_reduce", "eigh_values", "eigh_vectors"}, "float32"),
    "eigh_few": ("check_eigh(hermitian(dtype, 2, 50), 'batched')",
                 {"eigh_reduce", "divide_leaf", "divide_product", "tridiagonal_take"}, "float32"),
    "eigh_panel": ("check_eigh(hermitian(dtype, 5, 194), 'batched')", {"eigh_panel"}, "float64"),
    "tridiagonal": ("check_eigh(hermitian(dtype, 1, 193), 'batched')",
                    {"tridiagonal", "tridiagonal_give", "divide_leaf", "divide_merge", "divide_roots", "divide_product"},
                    "float64"),
    "spectrum": ("check_eigh(hermitian(dtype, 2, 70 if dtype == 'float32' else 40), 'cusolver')",
                 {"hermitian", "settle", "turn_in_place"}, "complex128"),
    "krylov": ("w = np.r_[np.linspace(0, 1, 96), 5, 6, 7, 8]\n"
               "check_eigh(hermitian(dtype, 1, 100, w=w), 'krylov', False, (97, 3))",
               {"cholesky_gram", "solve_rows"}, "float32"),
    "tiled": ("check(dtype, 2, 130, 'tiled')", {"cholesky_tiled", "cholesky_settle"}, "float32"),
    "mixed": ("ENGINE = 'mixed'\nfor k in (1, 3):\n    solve_checks.test_solve_positive(run, dtype, 0, 200, k)",
              {"load_lower"}, "complex128"),
    "tall": ("ENGINE = 'tall'\nqr_checks.check_qr(run, qr_checks.matrices('random', dtype, 2, 300, 9), only_reduced=True)\n"
             "svd_checks.check_svd(run, svd_checks.svd_matrices('random', dtype, 1, 300, 40))", {"gram_tiles"}, "float64"),
    "lapack_form": (LAPACK_FORM, {"form_small", "form", "exchanges"}, "complex64"),
    "pos_inverse": ("solve_checks.test_inverse_positive(run, dtype, 0, 124)", {"pos_inverse"}, "float64"),
    "blocked_rest": ("solve_checks.test_triangular(run, dtype, 260, 5, 0)\nsolve_checks.test_inverse(run, dtype, 260)\n"
                     "solve_checks.test_slogdet(run, dtype, 260)",
                     {"block_check", "block_order", "block_determinant"}, "float32"),
    "triangles": ("ENGINE = 'cusolver'\nsolve_checks.test_triangular(run, dtype, 17, 2, 0)\n"
                  "solve_checks.test_triangular(run, dtype, 33, 500, 0)\nsolve_checks.test_lu(run, dtype, 17)",
                  {"check_solution", "check_triangle", "copy_checked"}, "complex64"),
    "leaves": ("ENGINE = 'cusolver'\nsolve_checks.test_inverse_positive(run, dtype, 0, 33)",
               {"lift", "invert_tiles", "copy_block"}, "float32"),
    "spectrum_part": ("check_eigh(hermitian(dtype, 3, 20), 'cusolver')\n"
                      "check_eigh(hermitian(dtype, 2, 40), 'cusolver', False, (31, 9))",
                      {"hermitian_small", "turn"}, "float64"),
    "operator": (OPERATOR_CALL + "large = np.finfo(dtype).max / 1e4\n"
                 "a = hermitian(dtype, 1, 100, w=large * np.r_[np.linspace(0, 1, 96), 5, 6, 7, 8])\n"
                 "converged, w, v, info = solve(a, (97, 3))\nassert converged and info == 0\n"
                 "assert np.abs(w / large - [6, 7, 8]).max() < 10 * 100 * np.finfo(a.dtype).eps * 8",
                 {"largest_of", "rescale"}, "float32"),
    "svd_part": (PART + "check_part(matrices(dtype, 1, 45, 40), 4)\ncheck_part(matrices(dtype, 1, 40, 30), 3, 'cusolver')",
                 {"widen", "narrow", "take_lines"}, "float32"),
    "tall_huge": ("ENGINE = 'tall'\n"
                  "qr_checks.check_qr(run, qr_checks.matrices('huge', dtype, 1, 300, 9), only_reduced=True)",
                  {"largest_of_columns"}, "float64"),
    "lstsq_judge": ("qr_checks.check_lstsq(run, qr_checks.matrices('random', dtype, 1, 1100, 20),"
                    " qr_checks.random(np.random.default_rng(1), dtype, 1, 1100, 2))",
                    {"lstsq_judge", "lstsq_row_sums"}, "float64"),
    "lstsq_wide": ("qr_checks.check_lstsq(run, qr_checks.matrices('random', dtype, 2, 12, 50),"
                   " qr_checks.random(np.random.default_rng(1), dtype, 2, 12, 2))", {"lstsq_rank", "lstsq_solve"}, "float32"),
    "qr_raw": ("qr_checks.check_without_q(run, qr_checks.matrices('random', dtype, 2, 44, 50))", {"qr_give_raw"}, "float32"),
    "svd_wide": ("svd_checks.check_svd(run, svd_checks.svd_matrices('random', dtype, 2, 34, 35))",
                 {"svd_measure_rows"}, "float32"),
    "svd_deficient": ("ENGINE = 'cusolver'\n"
                      "svd_checks.check_svd(run, svd_checks.svd_matrices('deficient', dtype, 1, 64, 66))",
                      {"svd_phase"}, "complex64"),
    "values": ("check_eigh(hermitian(dtype, 1, 193), 'batched', False, (184, 9), vectors=False)",
               {"tridiagonal_values"}, "float64"),
    "panels": ("os.environ.update(MOCK_SHARED='69000', MOCK_MULTIPROCESSORS='2')\n"
               "check_eigh(hermitian(dtype, 1, 331 if dtype == 'float32' else 203), 'batched')",
               {"tridiagonal_panel", "tridiagonal_copy", "tridiagonal_widen"}, "complex128"),
}  # fmt: skip
TWO_STAGE = {
    "two_stage_panel", "two_stage_mirror", "two_stage_band", "two_stage_chase", "two_stage_diagonals", "two_stage_blocks",
    "two_stage_back",
}  # fmt: skip
FAMILIES["two_stage"] = ("check_eigh(hermitian(dtype, 1, 130), 'two_stage')", TWO_STAGE, "float64")
# what these families launch besides
ALSO = {
    "mixed": {
        "add_blocks", "columns_product", "conjugate_vectors", "find_scale", "inner", "invert_blocks", "join_product",
        "load_sides", "lower_vectors", "merge_blocks", "raise_vectors", "rows_product", "scale_columns", "scale_rows",
        "side_sizes", "sum_product", "take_block", "take_diagonal", "total", "triangle_product", "write_sides",
    },
    "systems": {
        "adjoint", "identity", "merge", "permute", "pivot_rows", "spoil",
    },
    "blocked": {
        "block_solve", "few_solve",
    },
    "eigh_panel": {
        "divide_start", "divide_vectors", "divide_weights", "tridiagonal_factor", "tridiagonal_take",
    },
    "krylov": {
        "fill_random", "largest", "mirror", "recur", "residual", "write_rows",
    },
    "svd_gram": {
        "finite_large", "finite_start", "svd_flip", "svd_narrow", "svd_unit", "svd_values", "svd_widen",
    },
    "spectrum": {
        "finite_small",
    },
    "lstsq_block": {
        "lstsq_settle", "lstsq_weigh", "qr_measure", "svd_give_columns", "svd_give_rows", "svd_lift", "svd_order",
        "svd_settle", "svd_take",
    },
    "qr_panel": {
        "qr_give_r", "qr_identity",
    },
    "tall": {
        "solve_panels", "sum_parts",
    },
    "tridiagonal": {
        "tridiagonal_measure",
    },
}  # fmt: skip
# No family reaches these: `put_rows` is for orders above 1024 in mixed precision, `split` for NVIDIA's tensor cores alone.
NOT_LAUNCHED = {"put_rows", "split"}
# single precision alone goes by the Gram matrix; A^T A needs real matrices
LEFT_OUT = {("mixed", "float32"), ("mixed", "complex64"),
            ("svd_gram", "float64"), ("svd_gram", "complex128"), ("lstsq_gram", "complex64"), ("lstsq_gram", "complex128"),
            ("svd_refine", "float32"), ("svd_refine", "complex64"), ("lu_block", "float32"), ("pos_inverse", "complex128"),
            ("svd_deficient", "float64"), ("svd_deficient", "complex128"),
            ("two_stage", "complex64"), ("two_stage", "complex128")}  # fmt: skip
# Kernels for some dtypes alone: single precision is widened to double and needs no scales there, real vectors become complex
ONLY = dict.fromkeys(("widen", "narrow"), ("float32", "complex64"))
ONLY |= {
    "largest_of_columns": ("float64", "complex128"),
    "tridiagonal_widen": ("complex64", "complex128"),
    "eig_pairs": ("float32", "float64"),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    place = tmp_path_factory.getbasetemp() / "emulated-here"
    place.mkdir(exist_ok=True)
    return place


@pytest.fixture
def emulate(tmp_path_factory, tmp_path, folder):
    """Runs calls with the kernels as host code; the answer is what was launched."""
    children = harness.Children(harness.libraries(tmp_path_factory), tmp_path)

    def run(code, dtype, wave=64, check="", refused=0, **settings):
        settings = {"MOCK_EMULATE": folder, "MOCK_EMULATE_ALL": 1, "MOCK_EMULATOR": harness.EMULATOR} | settings
        text = f"{START}{IMPORTS}dtype = {dtype!r}\n{code}\n"
        calls, _ = children(text, refused, MOCK_WAVE=wave, MOCK_CHECK=check, MOCK_MULTIPROCESSORS=3, **settings)
        return calls

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_answers(emulate, family):
    """With 64 lanes, looking for unsynchronised accesses to shared memory."""
    code, kernels, dtype = FAMILIES[family]
    assert kernels.union(ALSO.get(family, ())) <= set(harness.launched(emulate(code, dtype, check="races")))


def test_every_kernel_is_launched():
    """By some family, which must launch what it names, or it is on the list of those that none reaches."""
    text = "".join(path.read_text() for path in SOURCES.glob("*.cu"))
    kernels = set(re.findall(r'extern "C" __global__ void\s*(?:__launch_bounds__\([^)]*\))?\s*(\w+)\(', text))
    named = set().union(*(kernels for _, kernels, _ in FAMILIES.values()), *ALSO.values())
    assert named | NOT_LAUNCHED == kernels and not named & NOT_LAUNCHED


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_dtype(emulate, family, dtype, wave, seed):
    if (family, dtype) in LEFT_OUT:
        pytest.skip("another kernel does this")
    code, kernels, _ = FAMILIES[family]
    needed = {kernel for kernel in kernels if dtype in ONLY.get(kernel, DTYPES)}
    assert needed <= set(harness.launched(emulate(code, dtype, wave, "races", EMULATE_SEED=seed)))


@pytest.mark.slow
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds(emulate, family, largest):
    """With AddressSanitizer and UndefinedBehaviorSanitizer: the dtype of the quick run, and that of the widest elements."""
    code, _, dtype = FAMILIES[family]
    if largest:
        left = [wide for wide in reversed(DTYPES) if (family, wide) not in LEFT_OUT]
        if left[0] == dtype:
            pytest.skip("as in the quick run")
        dtype = left[0]
    name = subprocess.run([harness.COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = Path(name.stdout.strip())
    if not library.is_absolute():
        pytest.skip("no AddressSanitizer")
    emulate(code, dtype, check="memory", LD_PRELOAD=library, ASAN_OPTIONS="detect_leaks=0")


def test_values_in_parts(emulate, tmp_path):
    """Lines that do not fit in shared memory together, which no matrix has that is small enough to emulate."""
    patch = tmp_path / "patch"
    patch.write_text("tridiagonal_values.cu\n====\n#define LW_PART 0\n====\n#define LW_PART 40")
    code, kernels, dtype = FAMILIES["values"]
    assert kernels <= set(harness.launched(emulate(code, dtype, check="races", MOCK_PATCH=patch, MOCK_EMULATE=tmp_path)))


# family, file, what is there, what a mistake makes of it
DEFECTS = {
    "no barrier of the warp": ("cholesky_rows", "cholesky.cu", "    c[r] = a[j];\n    sync_warp();", "    c[r] = a[j];"),
    "one column of shared memory for two": ("cholesky_rows", "cholesky.cu", "columns + (j & 1) * LANES", "columns"),
    "index off by one": ("cholesky_rows", "cholesky.cu", "c[r] = a[j];", "c[r + 1] = a[j];"),
    "lane mask of 32 bits": (
        "solve_lanes", "lanes.cuh", "(unsigned)(wave >> (threadIdx.x % LW_WAVE / 32 * 32))",
        "(unsigned)wave"),
    "shuffle from another warp": ("solve_lanes", "lanes.cuh", "__shfl(x, lane, width)", "__shfl(x, lane, 64)"),
    "a lane left out": (
        "solve_lanes", "solve.cuh", "int step = LANES / 2; step > 0; step /= 2) x = max",
        "int step = LANES / 4; step > 0; step /= 2) x = max"),
    "no barrier of the block": (
        "solve_block", "solve_block.cu", "factor_panel(s, 0, state);\n  __syncthreads();",
        "factor_panel(s, 0, state);"),
    "barriers in two branches": (
        "solve_block", "solve_block.cu", "  if (warp0) factor_panel(s, 0, state);\n  __syncthreads();",
        "  if (warp0) {\n    factor_panel(s, 0, state);\n    __syncthreads();\n  } else {\n    __syncthreads();\n  }",
    ),
    "past the end": ("solve_block", "block.cuh", "j < rounded_up(n); j++", "j < rounded_up(n) + 9; j++"),
    "a shuffle taken for a barrier": ("eig_block", "lanes.cuh", "LW_INLINE void in_step() { sync_warp(); }",
                                      "LW_INLINE void in_step() {}"),
    "no wait for another block": ("tiled", "tiled.cu", "while ((seen = acquire(rows + i)) < halves) pause_briefly();",
                                  "seen = acquire(rows + i);"),
    "shared memory that is not cleared": ("cholesky_block", "cholesky.cu", "    if (threadIdx.x == 0) first_bad = 0;\n", ""),
    "a sweep one step ahead": ("two_stage", "two_stage_chase.cu", "s - 1) < t + 2)", "s - 1) < t + 1)"),
    "groups in the wrong order": ("two_stage", "two_stage_back.cu", "(group % 2 == 0)", "(group % 2 == 1)"),
    "an estimate as the answer": ("cholesky_block", "common.cuh", "  y = fma(y * e, fma(e, 0.375, 0.5), y);\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_caught(emulate, tmp_path, defect):
    family, name, before, after = DEFECTS[defect]
    patch = tmp_path / "patch"
    patch.write_text(f"{name}\n====\n{before}\n====\n{after}")
    code, _, dtype = FAMILIES[family]
    with pytest.raises(AssertionError) as caught:
        emulate(code, dtype, check="races", MOCK_PATCH=patch, MOCK_EMULATE=tmp_path)
    assert "error:" not in str(caught.value), "the patch does not compile"
