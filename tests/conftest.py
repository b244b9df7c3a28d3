"""Shared fixtures, and the order of the files."""

from __future__ import annotations

import os

import pytest

from backends import CPU, GPU, open_backend

# JAX would take most of a GPU's memory in each of the processes that share it
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Files that take longest, in this order: a long file that starts last would leave the other processes idle.
LONGEST = (
    "ops/test_eigh_derivatives.py",
    "distributed/test_mpi.py",
    "ops/test_solve_derivatives.py",
    "compat/test_jaxmg.py",
    "kernels/test_compile.py",
    "distributed/test_dtensor.py",
    "distributed/test_jax_sharded.py",
    "ops/test_solve.py",
    "tune/test_workflow.py",
    "frameworks/test_torch.py",
    "gram/test_kernels.py",
    "ops/test_eigh.py",
    "ops/test_fuzz.py",
    "frameworks/test_tensorflow_solve.py",
    "frameworks/test_tensorflow.py",
    "distributed/test_cusolvermp.py",
    "distributed/test_jax_processes.py",
    "insitu/test_two_d.py",
    "frameworks/test_jax.py",
    "tune/test_search.py",
    "tune/test_run.py",
)


# composed of many operations, or of many cases, each of which JAX and TensorFlow trace anew for every dtype: one of them is
# enough here, or one real and one complex dtype
ONE_DTYPE = ("ops/test_linalg.py", "ops/test_functions.py", "ops/test_det.py", "plugins/test_lineax.py")
TWO_DTYPES = (
    "ops/test_grouped.py",
    "ops/test_solve.py",
    "ops/test_eigh.py",
    "ops/test_cholesky.py",
    "ops/test_svd_part.py",
    "ops/test_eig.py",
)
# long, and the same code as a case that stays
REPEATED = (
    "test_torch_compile_and_export[subset1]",
    "test_krylov[numpy-cpu-complex128-wishart]",
    "test_krylov[numpy-cpu-complex128-kernel]",
    "test_mixed_precision_of_any_scale[jax-cpu-complex128]",
)


# large files where a dtype in single precision takes the same way as the one in double precision
SINGLE = (
    "frameworks/test_tensorflow.py",
    "frameworks/test_tensorflow_solve.py",
    "gram/test_kernels.py",
    "native/test_hip_mock.py",
    "native/test_hip_mock_solve.py",
)
NO_COMPLEX64 = (
    "ops/test_eigh.py",
    "ops/test_solve.py",
    "ops/test_cholesky.py",
    "ops/test_eigh_derivatives.py",
    "native/test_solve_lapack.py",
)
# families of kernels whose emulation takes longest
LONG_FAMILIES = (
    "svd_block", "svd_gram", "svd_refine", "lu_block", "pos_block",
    "cholesky_block", "cholesky_rows", "eig_thread", "eig_block",
)  # fmt: skip


def is_repetition(item):
    if item.name in REPEATED:
        return True
    name = "/".join(item.path.parts[-2:])
    if name in SINGLE and ("float32" in item.name or "complex64" in item.name):
        return True
    if name in NO_COMPLEX64 and "complex64" in item.name and "cuda" not in item.name:
        return True
    if name == "emulate/test_emulate.py" and any(f"[{family}]" in item.name for family in LONG_FAMILIES):
        return True
    if name == "native/test_hip_mock_solve.py" and "inverse" in item.name:
        return True
    if "callspec" not in vars(item) or not any(name in item.name for name in ("jax-cpu", "tensorflow-cpu", "lineax")):
        return False
    name, dtype = "/".join(item.path.parts[-2:]), item.callspec.params.get("dtype")
    return (name in ONE_DTYPE and dtype == "complex128") or (
        name in ONE_DTYPE + TWO_DTYPES and dtype in ("float32", "complex64")
    )


def pytest_collection_modifyitems(items):
    for item in filter(is_repetition, items):
        item.add_marker(pytest.mark.slow)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-2:]), len(places)))


@pytest.fixture(params=[*CPU, *GPU])
def backend(request):
    with open_backend(*request.param) as opened:
        yield opened
