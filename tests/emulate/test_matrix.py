"""Products by AMD's matrix instructions, run as host code with the lanes that AMD documents (matrix.h).

With 64 lanes kernels for real matrices use them where waves are full. Each case launches such blocks, most of them with work
for one warp of a wave and none for the other.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from test_emulate import emulate, folder, harness, pytestmark  # noqa: F401

TALL = """
ENGINE = "tall"
a = qr_checks.random(np.random.default_rng(0), dtype, 1, 600, 40)
q, r = np.full((1, 600, 40), 7, dtype), np.full((1, 40, 40), 7, dtype)
run("qr", 0, (1, 600, 40, 40), a, q, r)
qr_checks.close(qr_checks.norm(qr_checks.exact(q) @ r - a) / qr_checks.norm(a), 600, a.dtype)
qr_checks.close(qr_checks.norm(qr_checks.adjoint(qr_checks.exact(q)) @ q - np.eye(40)), 600, a.dtype)
"""
# bytes of shared memory that a block has on gfx90a and gfx942, on gfx950; and the order for each dtype
GPU = "os.environ['MOCK_SHARED'] = '%d'\nn = {'float32': %d, 'float64': %d}[dtype]\n"
SMALL, LARGE = 65536, 163840
# family: (calls, kernels that they launch)
FAMILIES = {
    "tiled": ("check(dtype, 1, 150, 'tiled')", {"cholesky_tiled"}),
    "cholesky_block": ("check(dtype, 2, 128, 'batched', True)\ncheck(dtype, 2, 50, 'batched')", {"cholesky_block"}),
    "pos_block": (GPU % (SMALL, 128, 64) + "solve_checks.test_solve_positive(run, dtype, 0, n, 1)", {"pos_block"}),
    "pos_inverse": (GPU % (SMALL, 110, 60) + "solve_checks.test_inverse_positive(run, dtype, 0, n)", {"pos_inverse"}),
    "lu_block": (GPU % (LARGE, 150, 125) + "solve_checks.test_solve(run, dtype, n, 2)", {"lu_block"}),
    "lstsq_gram": ("qr_checks.check_lstsq(run, qr_checks.matrices('random', dtype, 2, 83, 37),"
                   " qr_checks.random(np.random.default_rng(1), dtype, 2, 83, 2))", {"lstsq_gram"}),
    "tall": (TALL, {"gram_tiles", "solve_panels"}),
    "divide": ("check_eigh(hermitian(dtype, 1, 193), 'batched')", {"divide_product"}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f == "divide")) for f in FAMILIES])
def test_answers(emulate, family, dtype):  # noqa: F811
    code, kernels = FAMILIES[family]
    assert kernels <= set(harness.launched(emulate(code, dtype, check="races")))


# what is there, what a mistake makes of it; dtype
DEFECTS = {
    "rows in the order of the other precision": (
        "float64", "(int i, double) { return 8 * (i % 2) + 4 * (i / 2 % 2) + i / 4; }",
        "(int i, double) { return 8 * (i / 4 % 2) + 4 * (i / 8) + i % 4; }"),
    "the same in single precision": (
        "float32", "(int i, float) { return 8 * (i / 4 % 2) + 4 * (i / 8) + i % 4; }",
        "(int i, float) { return 8 * (i % 2) + 4 * (i / 2 % 2) + i / 4; }"),
    "the product of the other warp": ("float64", "second ? sum[1][x][y][e] : sum[0]", "second ? sum[0][x][y][e] : sum[1]"),
    "operands of the other warp": ("float32", "readlane(x, 32 * half)", "readlane(x, 32 - 32 * half)"),
    "a lane's depth": ("float64", "deep = threadIdx.x % 64 / 16", "deep = threadIdx.x % 32 / 8"),
    "a wave that is not whole": ("float32", "if (!of_half(active, half)) continue;", "if (!active) continue;"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_caught(emulate, tmp_path, defect):  # noqa: F811
    dtype, before, after = DEFECTS[defect]
    patch = tmp_path / "patch"
    patch.write_text(f"matrix_cores.cuh\n====\n{before}\n====\n{after}")
    with pytest.raises(AssertionError) as caught:
        emulate("check(dtype, 2, 120, 'batched')", dtype, MOCK_PATCH=patch, MOCK_EMULATE=tmp_path)
    assert "error:" not in str(caught.value), "the patch does not compile"
