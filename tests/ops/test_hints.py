"""Errors for arguments that are no arrays name the argument and what to do."""

import numpy as np
import pytest

import lapwing as lw


def wrong():
    yield np.ma.masked_array(np.eye(2), mask=np.eye(2)), "a.filled"
    yield None, "None was passed"
    yield [[1.0]], "numpy.asarray"


@pytest.mark.parametrize("a, hint", list(wrong()))
def test_no_array(a, hint):
    for call in (lw.cholesky, lw.eigh, lw.svd, lw.factor, lambda a: lw.solve(a, np.ones(2))):
        with pytest.raises(TypeError, match=r"expected an array.*\nhint: .*") as caught:
            call(a)
        assert hint in str(caught.value)


def test_sparse_matrices():
    sparse = pytest.importorskip("scipy.sparse")
    for make in (sparse.csr_matrix, sparse.csr_array):
        with pytest.raises(TypeError, match="toarray"):
            lw.cholesky(make(np.eye(3)))


def test_right_hand_side_is_named():
    with pytest.raises(TypeError, match=r"solve: b must be an array of NumPy.*got builtins\.list"):
        lw.solve(np.eye(2), [1, 2])
    with pytest.raises(TypeError, match="lstsq: b must be an array"):
        lw.lstsq(np.eye(2), None)


def test_operators_are_for_eigenvalues():
    a = lw.operator(lambda x: x, (4, 4), "float64")
    with pytest.raises(TypeError, match=r"lapwing.eigh and lapwing.eigvalsh take an operator"):
        lw.solve(a, np.ones(4))


def test_least_squares_of_numpy_matrices():
    a = np.random.default_rng(0).standard_normal((5, 3))
    b = np.arange(5.0)
    with pytest.warns(PendingDeprecationWarning):
        matrix, column = np.matrix(a), np.matrix(b).T
    expected = lw.lstsq(a, b[:, None])
    for one, other in zip(lw.lstsq(matrix, column), expected, strict=True):
        assert type(one) is type(other) and np.array_equal(one, other)
