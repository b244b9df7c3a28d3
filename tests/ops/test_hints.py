"""Errors for arguments that are no arrays, and for keywords of other libraries, say what to do."""

import inspect

import numpy as np
import pytest

import lapwing as lw
from lapwing import gram, linalg


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
        with pytest.raises(TypeError, match=r"hint: a\.toarray"):
            lw.cholesky(make(np.eye(3)))
        with pytest.raises(TypeError, match=r"hint: b\.toarray"):
            lw.solve(np.eye(3), make(np.eye(3)))
    product = pytest.importorskip("scipy.sparse.linalg").aslinearoperator(np.diag([1.0, 2.0, 3.0]))
    with pytest.raises(TypeError, match=r"hint: a @ numpy\.eye\(n\).*lapwing\.operator\(a\.dot, a\.shape, a\.dtype\)"):
        lw.eigh(product, subset=slice(1))
    described = lw.operator(product.dot, product.shape, product.dtype)  # what the hint says
    assert np.allclose(lw.eigvalsh(described, subset=slice(-1, None)), 3)


def test_sparse_arrays_of_the_frameworks():
    tf = pytest.importorskip("tensorflow")
    jax = pytest.importorskip("jax")
    bcoo = pytest.importorskip("jax.experimental.sparse").BCOO
    for a, hint in (
        (tf.sparse.eye(3), "tf.sparse.to_dense"),
        (tf.ragged.constant([[[1.0]]]), ".to_tensor()"),
        (bcoo.fromdense(jax.numpy.eye(3)), ".todense()"),
        (jax.ShapeDtypeStruct((3, 3), "float32"), "lapwing.spec"),
    ):
        for call in (lw.cholesky, lw.eigh, lambda a: lw.solve(np.eye(3), a)):
            with pytest.raises(TypeError, match=r"an array of NumPy.*\nhint: ") as caught:
                call(a)
            assert hint in str(caught.value)


def test_jitter_that_did_not_help_is_named():
    for call in (lw.cholesky, lw.factor):
        with pytest.raises(lw.NotPositiveDefiniteError, match=r'hint: .*jitter="auto"'):
            call(-np.eye(3))
        with pytest.raises(lw.NotPositiveDefiniteError, match=r"also with jitter='auto'.*\nhint: more than rounding") as caught:
            call(-np.eye(3), jitter="auto")
        assert caught.value.jitter == "auto" and caught.value.minor == 1
    with pytest.raises(lw.NotPositiveDefiniteError, match='use assume="hermitian"'):
        lw.solve(-np.eye(3), np.ones(3), assume="pos")


def test_right_hand_side_is_named():
    with pytest.raises(TypeError, match=r"solve: b must be an array of NumPy.*got list"):
        lw.solve(np.eye(2), [1, 2])
    with pytest.raises(TypeError, match="lstsq: b must be an array"):
        lw.lstsq(np.eye(2), None)


def test_right_hand_side_of_another_library():
    torch = pytest.importorskip("torch")
    for b in ([1.0, 2.0], np.ones(2)):
        with pytest.raises(TypeError, match=r"\nhint: torch\.as_tensor\(b, dtype=a\.dtype, device=a\.device\)"):
            lw.solve(torch.eye(2), b)
    with pytest.raises(TypeError, match=r"b has dtype int64, .* with a of float64\nhint: convert b to float64"):
        lw.solve(np.eye(2), np.array([1, 2]))
    with pytest.raises(TypeError, match=r"b has dtype complex128.*\nhint: factor the matrix in complex128"):
        lw.factor(np.eye(2)).solve(np.ones(2) * 1j)


def test_operators_are_for_eigenvalues():
    a = lw.operator(lambda x: x, (4, 4), "float64")
    with pytest.raises(TypeError, match=r"eigh, eigvalsh, svd and svdvals take an operator"):
        lw.solve(a, np.ones(4))


def test_functions_of_numpy_matrices():
    """As of the plain array: the products and axes of a numpy.matrix are others."""
    a = np.array([[4.0, 1.0], [1.0, 3.0]])
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(a)
    functions = [lw.expm, lw.sqrtm, lw.logm, lambda x: lw.inv_root(x, 2), lw.pinv, lw.det, lambda x: lw.cond(x, p=1)]
    functions += [linalg.vector_norm, linalg.matrix_norm, linalg.trace, linalg.matrix_transpose, lambda x: linalg.vecdot(x, x)]
    functions += [lambda x: linalg.matrix_power(x, 3), lambda x: linalg.matmul(x, x), lambda x: linalg.matrix_norm(x, ord=1)]
    for function in functions:
        got, expected = function(matrix), function(a)
        assert type(got) is type(expected) and np.array_equal(got, expected)


def test_errors_name_the_function_that_was_called():
    bad = np.full((2, 3, 3), np.nan)
    bad[0] = np.eye(3)
    for call in (lw.pinv, lambda x: lw.pinv(x, hermitian=True)):
        with pytest.raises(lw.ConvergenceError, match="pinv: matrix 1 of 2 holds NaN or Inf") as caught:
            call(bad)
        assert caught.value.batch_index == (1,) and caught.value.nonfinite and caught.value.operation == "pinv"
    for call in (lw.matrix_rank, lambda x: lw.matrix_rank(x, hermitian=True)):
        with pytest.raises(lw.ConvergenceError, match="matrix_rank: matrix 1 of 2"):
            call(bad)
    whole = np.eye(3, dtype="int64")
    with pytest.raises(TypeError, match="matrix_norm: dtype int64"):
        linalg.matrix_norm(whole, ord=2)
    with pytest.raises(TypeError, match="matrix_power: dtype int64"):
        linalg.matrix_power(whole, -1)
    assert np.array_equal(linalg.matrix_power(whole, 2), whole)
    for axis in (0, (0, -1)):
        with pytest.raises(ValueError, match=r"vector_norm: axis=0 is out of range for shape \(\)"):
            linalg.vector_norm(np.array(2.0), axis=axis)


def test_least_squares_of_numpy_matrices():
    a = np.random.default_rng(0).standard_normal((5, 3))
    b = np.arange(5.0)
    with pytest.warns(PendingDeprecationWarning):
        matrix, column = np.matrix(a), np.matrix(b).T
    expected = lw.lstsq(a, b[:, None])
    for one, other in zip(lw.lstsq(matrix, column), expected, strict=True):
        assert type(one) is type(other) and np.array_equal(one, other)


@pytest.mark.parametrize(
    "function, keyword, hint",
    [
        (lw.cholesky, "lower", "upper=False, the default, reads the lower triangle"),
        (lw.cholesky_ex, "check_errors", "the function without _ex"),
        (lw.solve, "lower", 'assume="lower"'),
        (lw.solve, "assume_a", 'assume="general", "symmetric", "hermitian", "pos"'),
        (lw.solve_ex, "left", 'side="right"'),
        (lw.inv, "overwrite_a", "overwrite=True"),
        (lw.inv_ex, "check_finite", "leave it out"),
        (lw.slogdet, "assumed", "did you mean assume?"),
        (lw.factor, "sym_pos", 'assume="pos"'),
        (lw.eigh, "UPLO", "upper=False, the default"),
        (lw.eigh, "subset_by_index", "subset=slice(first, last + 1)"),
        (lw.eigvalsh, "subset_by_value", "window=(low, high)"),
        (lw.eigh_ex, "k", "subset=slice(k)"),
        (lw.svd, "compute_uv", "lapwing.svdvals"),
        (lw.svdvals, "driver", "engine=..."),
        (lw.svd, "tol", "leave it out"),
        (lw.eig, "left", "eig(a.conj().mT)"),
        (lw.svd, "k", "subset=slice(k)"),
        (lw.solve, "jitter", "lapwing.factor(a, jitter=...)"),
        (lw.polar, "method", "engine=..."),
        (lw.qr, "pivoting", "the keywords are mode, engine"),
        (lw.lstsq, "cond", "rcond=..."),
        (gram.gaussian, "bandwidth", "length_scale=...; help() shows the formula"),
        (gram.gaussian, "gamma", "(2 * gamma) ** -0.5"),
        (gram.laplacian, "sigma", "length_scale=..."),
        (gram.dispersal, "X", "the points are x and y"),
    ],
)
def test_keywords_of_other_libraries(function, keyword, hint):
    a = np.eye(3)
    arrays = (a, a) if function in (lw.solve, lw.solve_ex, lw.lstsq) else (a,)
    calls = [function] + [lambda *x, **y: lw.explain(function, *x, **y)] * hasattr(function, "problem")
    for call in calls:
        with pytest.raises(TypeError, match=rf"^{function.__name__}: unknown keyword '{keyword}'\nhint: ") as caught:
            call(*arrays, **{keyword: 1})
        assert hint in str(caught.value)
    assert "unknown" not in str(inspect.signature(function))
    function(*arrays)


def test_errors_inside_a_call_keep_their_words():
    """Only unknown keywords get the hint: a TypeError from a user's own function comes out as it was raised."""

    def product(x):
        return np.zeros(3, lower=True)

    with pytest.raises(TypeError, match="lower") as caught:
        lw.eigh(lw.operator(product, (4, 4), "float64"), subset=slice(1))
    assert "hint" not in str(caught.value)
