"""Factors as LAPACK has them: transposes, and pivots for an order of rows and back.

On the CPU, and on the CUDA path without a GPU.
"""

import numpy as np
import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
from lapwing import _native as native
from lapwing.core.native import CPU, DTYPE_CODE
from test_cuda_mock_solve import child, emulated, harness, libraries  # noqa: F401

TURN, TO_PIVOTS, TO_ROWS = range(3)
CHECK = """
def check(form, dtype, batch, n, in_place):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((batch, n, n)).astype(dtype)
    a = a + 1j * a[:, ::-1] if a.dtype.kind == "c" else a
    order = np.array([rng.permutation(n) for _ in range(batch)], np.int32).reshape(batch, n)
    turned, pivots = form(1, a, order, in_place)
    assert (turned == a.swapaxes(-1, -2)).all()
    for row, exchanges in zip(order, pivots):
        now = np.arange(n)
        for i, other in enumerate(exchanges - 1):
            assert other >= i
            now[[i, other]] = now[[other, i]]
        assert (now == row).all()
    turned, again = form(2, turned, pivots, in_place)
    assert (turned == a).all() and (again == order).all()
    turned, same = form(0, a, pivots, in_place)
    assert (turned == a.swapaxes(-1, -2)).all() and (same == pivots).all()
"""
exec(CHECK)


def form(kind, a, integers, in_place):
    a, integers = a.copy(), integers.copy()
    to = a if in_place else np.full_like(a, np.nan)
    addresses = (a.ctypes.data, to.ctypes.data, integers.ctypes.data)
    native.lapack_form(kind, DTYPE_CODE[a.dtype.name], CPU, -1, 0, 2, 0, (len(a), a.shape[-1]), 0, None, *addresses)
    return to, integers


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPE_CODE)
def test_cpu(dtype, in_place):
    for n in (0, 1, 2, 7, 8, 9, 33, 70):
        for batch in (0, 1, 5):
            check(form, dtype, batch, n, in_place)  # noqa: F821


ON_GPU = (
    CHECK
    + """
def form(kind, a, integers, in_place):
    memory = [Memory(x.nbytes) for x in (a, a, integers)]
    for place, x in zip(memory, (a, a, integers)):
        place.array(x.shape, x.dtype)[...] = x
    addresses = [memory[0].address, memory[0 if in_place else 1].address, memory[2].address]
    native.lapack_form(kind, DTYPE_CODE[a.dtype.name], CUDA, 0, 0, 0, 0, (len(a), a.shape[-1]), 0, None, *addresses)
    assert all(place.untouched() for place in memory)
    return memory[0 if in_place else 1].array(a.shape, a.dtype).copy(), memory[2].array(integers.shape, integers.dtype).copy()

for batch, n in ((0, 0), (0, 3), (2, 0), (1, 1), (70, 2), (3, 33), (2, 70), (1, 130)):
    for in_place in (False, True):
        check(form, dtype, batch, n, in_place)
"""
)


@pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex128", marks=pytest.mark.slow)])
def test_kernels(child, emulated, dtype):  # noqa: F811
    code = f"dtype = {dtype!r}\n{ON_GPU}"
    calls, _ = child(code, **emulated)
    assert set(harness.launched(calls)) == {"form_small", "form", "exchanges"}
    # four bytes for each row, so that 58,000 rows have room
    shared = [int(c["shared"]) for c in harness.named(calls, "cuLaunchKernel") if c["name"] == "exchanges"]
    assert set(shared) <= {4 * n for n in (33, 70, 130)}


@pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")
def test_an_order_without_room(child):  # noqa: F811
    calls, _ = child("""
try:
    native.lapack_form(1, 0, CUDA, 0, 0, 0, 0, (1, 70_000), 0, None, 16, 16, 16)
except Exception as error:
    assert "70000 is too large" in str(error) and "hint:" in str(error), error
else:
    raise AssertionError
""")
    assert not harness.launched(calls)


@pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")
def test_solution_and_factors_by_one_kernel(child, emulated):  # noqa: F811
    code = """
rng = np.random.default_rng(0)
def solve(dtype, batch, n, k):
    a, b = rng.standard_normal((batch, n, n)).astype(dtype), rng.standard_normal((batch, n, k)).astype(dtype)
    arrays = a, b, b * 0, np.ones(batch, np.int32), a * 0, np.zeros((batch, n), np.int32)
    memory = [Memory(x.nbytes) for x in arrays]
    for place, x in zip(memory, arrays):
        place.array(x.shape, x.dtype)[...] = x
    call = (OPS["solve"], DTYPE_CODE[dtype], CUDA, 0, 0, 0, 0, (batch, n, k))
    done = native.solve_keeping(*call, 0, Scratch(0), *[place.address for place in memory])
    assert all(place.untouched() for place in memory)
    if not done:
        return False
    _, _, x, info, lu, pivots = (place.array(y.shape, y.dtype) for place, y in zip(memory, arrays))
    limit = 10 * n * np.finfo(dtype).eps * np.abs(a).max() * n
    assert not info.any() and np.abs(a @ x - b).max() <= limit * np.abs(x).max()
    lu = lu.swapaxes(-1, -2)  # column-major
    for m in range(batch):
        moved = a[m].copy()
        for i, other in enumerate(pivots[m] - 1):
            moved[[i, other]] = moved[[other, i]]
        assert np.abs((np.tril(lu[m], -1) + np.eye(n)) @ np.triu(lu[m]) - moved).max() <= limit
    return True

for batch, n, k in ((3, 33, 1), (1, 65, 7), (2, 40, 40), (9, 12, 3), (5, 32, 1)):
    assert solve("float32", batch, n, k)
assert solve("float64", 3, 35, 1)
for n in (40, 70):
    arrays = np.full((1, n, n), np.nan, np.float32), np.ones((1, n, 1), np.float32)
    kinds = (1, np.float32), (np.int32,), (n, np.float32), (np.int32,)
    outputs = [np.zeros((1, n, *rest), kind) for *rest, kind in kinds]
    memory = [Memory(x.nbytes) for x in (*arrays, *outputs)]
    for place, x in zip(memory, arrays):
        place.array(x.shape, x.dtype)[...] = x
    call = (OPS["solve"], 0, CUDA, 0, 0, 0, 0, (1, n, 1), 0, Scratch(0))
    assert native.solve_keeping(*call, *[place.address for place in memory])
    pivots = memory[5].array((1, n), np.int32)  # NaN pivots leave an order of rows all the same
    assert (pivots >= np.arange(1, n + 1)).all() and (pivots <= n).all()
for sizes in ((3, 5, 1), (3, 32, 5), (3, 32, 0), (2, 2000, 1)):
    assert not solve("float32", *sizes)
"""
    calls, _ = child(code, **emulated)
    assert set(harness.launched(calls)) == {"solve_lanes", "solve_block"}
