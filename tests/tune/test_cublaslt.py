"""cuBLASLt by ctypes: what can be tested without a GPU, and what needs one."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from lapwing.tune.backends.base import Refused
from lapwing.tune.backends.cublaslt import CublasLtBackend
from lapwing.tune.backends.cublaslt_api import FIELDS, Algorithm, Descriptors, Library, Result, solution_name
from lapwing.tune.gemm import Gemm

DECODE = Gemm.row_major(16, 6144, 4096, right="T")
CONFIG = {"id": 66, "tile": 312, "stages": 35, "splitk": 1, "red": 0, "swizzle": 0, "custom": 1, "inner": 0, "cluster": 4}


@pytest.fixture(scope="module")
def library():
    try:
        return Library()
    except OSError:
        pytest.skip("cuBLASLt is not installed")


def test_names_are_those_of_tunableop():
    name = "Gemm_Cublaslt_id_66_tile_312_stages_35_splitk_1_red_0_swizzle_0_custom_1_inner_0_cluster_4"
    assert solution_name(CONFIG) == name and list(FIELDS) == list(CONFIG)
    assert ctypes.sizeof(Algorithm) == 64 and ctypes.sizeof(Result) == 96


def read(problem: Descriptors, layout: ctypes.c_void_p, number: int, kind: type) -> int:
    value, size = kind(), ctypes.c_size_t()
    get = problem.lib.c.cublasLtMatrixLayoutGetAttribute
    assert get(layout, number, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(kind)), ctypes.byref(size)) == 0
    return value.value


@pytest.mark.parametrize(
    "gemm",
    [
        DECODE,
        Gemm.row_major(37, 70, 100, left="T", dtype="f16", bias="f16", activation="relu", lda=112),
        Gemm.row_major(9, 40, 64, right="T", dtype="f32", compute="tf32", batch=3),
        replace(DECODE, a_type="f8e4m3", b_type="f8e4m3", scale_a="row", scale_b="tensor", bias="bf16"),
        Gemm.row_major(9, 40, 64, dtype="f64"),
    ],
    ids=str,
)
def test_descriptors_say_what_the_product_is(library, gemm):
    assert CublasLtBackend().supports(gemm) is None
    problem = Descriptors(library, gemm)
    for x, layout in zip("abcd", problem.layouts, strict=True):
        rows, columns = gemm.stored(x)
        assert read(problem, layout, 2, ctypes.c_uint64) == rows and read(problem, layout, 3, ctypes.c_uint64) == columns
        assert read(problem, layout, 4, ctypes.c_int64) == getattr(gemm, f"ld{x}")
        assert read(problem, layout, 5, ctypes.c_int32) == gemm.batch


def test_an_algorithm_keeps_its_attributes(library):
    algorithm = Algorithm()
    for name, value in CONFIG.items():
        if name != "id":
            assert library.set(algorithm, name, value)
    assert {name: library.get(algorithm, name) for name in FIELDS if name != "id"} == {
        k: v for k, v in CONFIG.items() if k != "id"
    }


def test_refusals_have_reasons():
    backend = CublasLtBackend()
    assert "swish" in str(backend.supports(replace(DECODE, activation="swish")))
    assert "block" in str(backend.supports(replace(DECODE, scale_a="block")))
    assert "zero" in str(backend.supports(replace(DECODE, m=0, lda=0)))
    assert "f8e4m3fnuz" in str(backend.supports(replace(DECODE, a_type="f8e4m3fnuz")))
    with pytest.raises(OSError, match="hint: pip install"):
        Library("/nonexistent/libcublasLt.so")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "gemm",
    [
        DECODE,
        replace(DECODE, bias="bf16", activation="gelu"),
        replace(DECODE, deterministic=True, n=64, m=2112, k=7168, lda=0, ldb=0, ldc=0, ldd=0),
        replace(DECODE, a_type="f8e4m3", b_type="f8e4m3", scale_a="tensor", scale_b="tensor"),
        Gemm.row_major(9, 40, 64, right="T", dtype="f32", batch=3),
    ],
    ids=str,
)
def test_algorithms_on_a_gpu(gemm):
    backend = CublasLtBackend()
    found = backend.found(gemm, 0, seconds=0.5)
    assert found.heuristic >= 1 and len(found.configs) >= found.heuristic and found.ids >= 1
    assert len({tuple(c.values()) for c in found.configs}) == len(found.configs)
    if gemm.deterministic:
        assert all(c["red"] != 1 for c in found.configs)
    bench = backend.open(gemm, 0, 3)
    try:
        for config in found.configs[:3]:
            kernel = bench.build(config)
            assert bench.check(kernel)
        with pytest.raises(Refused):
            bench.build(CONFIG | {"tile": 9999})
        default, best = (bench.time([bench.build(c)], 3)[0] for c in (backend.default(gemm), found.configs[0]))
        assert min(best) < 3 * min(default)
    finally:
        bench.close()
