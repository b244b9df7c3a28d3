"""Cholesky of one large matrix on the GPU: by recursion, with the products of float32 on tensor cores."""

import pytest

import lapwing as lw

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def positive(n, dtype, condition=None):
    """Well-conditioned, or with the given condition number."""
    torch.manual_seed(n)
    a = torch.randn(n, n, dtype=dtype, device="cuda")
    if condition is None:
        return a @ a.mH / n + torch.eye(n, dtype=dtype, device="cuda")
    q = torch.linalg.qr(a.to(torch.float64))[0]
    return ((q * torch.logspace(0, -torch.tensor(float(condition)).log10(), n, dtype=q.dtype, device="cuda")) @ q.T).to(dtype)


def error(a, factor):
    """The residual in units of n eps."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    factor, a64 = factor.to(wide), a.to(wide)
    return float((factor @ factor.mH - a64).norm() / a64.norm()) / (len(a) * torch.finfo(a.dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("n", [4097, 12800])
def test_large(n, dtype):
    a = positive(n, dtype)
    factor = lw.cholesky(a)
    assert error(a, factor) < 1
    assert not factor.triu(1).any()
    upper = lw.cholesky(a, upper=True)
    assert error(a, upper.mH) < 1


def test_ill_conditioned():
    a = positive(12300, torch.float32, 1e5)
    assert error(a, lw.cholesky(a)) < 1


def test_only_the_named_triangle_is_read():
    a = positive(12300, torch.float32)
    nan = torch.full_like(a, float("nan")).triu(1)
    assert torch.equal(lw.cholesky(a.tril() + nan), lw.cholesky(a))


@pytest.mark.parametrize("place", [100, 7000, 12299])
def test_failing_pivot(place):
    a = positive(12300, torch.float32)
    a[place, place] = -1
    with pytest.raises(lw.NotPositiveDefiniteError, match=f"{place + 1}"):
        lw.cholesky(a)
    assert lw.cholesky(a, on_fail="nan").isnan().all()


def test_systems_and_inverse():
    a, n = positive(12300, torch.float32), 12300
    b = torch.randn(n, 3, device="cuda")
    x = lw.solve(a, b, assume="pos")
    unit = n * torch.finfo(a.dtype).eps
    assert float((a.double() @ x.double() - b).norm()) < unit * float(a.norm() * x.norm())
    inverse = lw.inv(a, assume="pos")
    residual = (a.double() @ inverse.double() - torch.eye(n, dtype=torch.float64, device="cuda")).norm()
    assert float(residual) < unit * float(a.norm() * inverse.norm())
