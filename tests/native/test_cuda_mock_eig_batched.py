"""The kernel for eigenvalues of general matrices without a GPU: its source runs as host code (emulator.h). The checks are those
of eig_checks.py."""

import pytest

from lapwing.cli.kernel_calls import kernels_for
from test_cuda_mock_solve import child, emulated, harness, libraries  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")

START = """
import eig_checks
ENGINE = "batched"
f32, f64, c64, c128 = solve_checks.DTYPES
"""
# bytes of shared memory with which Z, or Z and H, of n = 33 go to global memory
Z_GLOBAL = {"f32": 8_000, "f64": 15_000, "c64": 13_000, "c128": 24_000}
BOTH_GLOBAL = {"f32": 4_300, "f64": 8_600, "c64": 6_000, "c128": 12_000}


def test_eig(child, emulated):  # noqa: F811
    calls, _ = child(
        START
        + """
eig_checks.check_eig(run, np.stack(list(eig_checks.kinds(f64, 3).values())))
eig_checks.check_eig(run, eig_checks.kinds(c64, 9)["graded"][None])
eig_checks.check_schur(run, eig_checks.kinds(f32, 35)["grcar"][None])
""",
        **emulated,
    )
    assert set(harness.launched(calls)) == {"eig"}


PARTS = {
    "threads": """
for n in (1, 2, 4):
    eig_checks.check_random(run, dtype, n, 40)
    eig_checks.check_kinds(run, dtype, n)
eig_checks.check_eig(run, solve_checks.random(np.random.default_rng(8), dtype, 4000, 8, 8))
eig_checks.check_in_place(run, dtype, 3)
""",
    "warps": """
for n in (5, 8, 16, 32):
    eig_checks.check_random(run, dtype, n)
eig_checks.check_kinds(run, dtype, 16)
eig_checks.check_not_finite(run, dtype, 16)
eig_checks.check_in_place(run, dtype, 16)
""",
    "blocks": """
for n in (33, 64, 65):
    eig_checks.check_random(run, dtype, n, 1)
eig_checks.check_kinds(run, dtype, 33)
eig_checks.check_not_finite(run, dtype, 33)
eig_checks.check_in_place(run, dtype, 33)
""",
    "alignment": """
SHIFT.update(float32=4, float64=8, complex64=4, complex128=8)
for n in (3, 9, 33):
    eig_checks.check_random(run, dtype, n, 2)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("part", PARTS)
def test_answers(child, emulated, part, dtype):  # noqa: F811
    child(f"{START}dtype = {dtype}\n{PARTS[part]}", **emulated)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [Z_GLOBAL, BOTH_GLOBAL], ids=["z", "both"])
@pytest.mark.parametrize("dtype", Z_GLOBAL)
def test_global_memory(child, emulated, shared, dtype):  # noqa: F811
    """Matrices that shared memory has no room for."""
    child(
        f"""{START}
eig_checks.check_random(run, {dtype}, 33, 2)
eig_checks.check_not_finite(run, {dtype}, 33)
""",
        MOCK_SHARED=shared[dtype],
        **emulated,
    )


@pytest.mark.slow
def test_a_block_takes_several_matrices(child, emulated):  # noqa: F811
    """Each of 132 multiprocessors has room for one block, and more matrices wait: Z moves to global memory."""
    code = START + "eig_checks.check_eig(run, solve_checks.random(np.random.default_rng(5), f64, 300, 5, 5))"
    calls, _ = child(code, MOCK_SHARED=800, **emulated)
    (compiled,) = harness.named(calls, "nvrtcCompileProgram")
    assert "-DLW_GLOBAL=1" in compiled["options"]


@pytest.mark.parametrize(("shared", "threads"), [(49_152, 32), (101_376, 1)])
def test_threads_of_a_matrix_depend_on_shared_memory(shared, threads):
    ((source, options),) = kernels_for(("eig", 0, (4000, 8)), "complex128", (40, shared, 75, "a GPU"))
    assert source == "eig.cu" and f"-DLW_P={threads} " in options


def test_calls_that_a_graph_may_capture_need_no_memory(child):  # noqa: F811
    """On GPUs with little shared memory and in large batches, too."""
    child(
        START
        + """
from lapwing.ops import eig
for operation in (eig.EIG, eig.EIGVALS, eig.SCHUR):
    for dtype in DTYPE_CODE.values():
        for batch in (1, 100, 3999, 100_000):
            for n in (1, 4, 5, 8, 9, operation.launches_only_to):
                assert native.scratch_bytes(operation.code, dtype, CUDA, 0, ENGINES["batched"], 0, 0, (batch, n)) == 0
""",
        MOCK_SHARED=49_152,
    )


def test_a_larger_matrix_is_refused(child):  # noqa: F811
    _, results = child(
        START
        + """
a = np.zeros((1, 129, 129), "float32")
try:
    eig_checks.check_schur(run, a)
except Exception as error:
    tell(error=str(error))
"""
    )
    assert "n up to 128 on this device, not 129" in results["error"]
