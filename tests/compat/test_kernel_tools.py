"""kernel_tools' names: the signatures, errors in words, the host-array call on the CPU, the rest on a GPU."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys

import numpy as np
import pytest

from backends import poison, random
from lapwing import gram
from lapwing.compat import kernel_tools as kt
from lapwing.compat.kernel_tools import kernels, linalg

torch = pytest.importorskip("torch")
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def symmetric(n, dtype=torch.float64, batch=()):
    x = random((*batch, n, n), "float64")
    return torch.from_numpy((x + x.swapaxes(-1, -2)) / 2).to(dtype)


def good(a, w, v):
    n, eps = a.shape[-1], EPS[v.dtype]
    a, w, v = (x.double().cpu() for x in (a, w, v))
    norm = torch.linalg.matrix_norm(a).max()
    assert torch.linalg.matrix_norm(a @ v - v * w[..., None, :]).max() <= 10 * n * eps * norm
    assert torch.linalg.matrix_norm(v.mT @ v - torch.eye(v.shape[-1], dtype=v.dtype)).max() <= 10 * n * eps


def test_signatures():
    signatures = {
        "cusolver_eigh": "a overwrite_a=False subset_by_index=None lower=True eigvals_only=False verbose=False",
        "cusolver_eigh_workspace_requirements": "N dtype",
        "cusolver_batched_eigh": "a overwrite_a=False lower=True eigvals_only=False verbose=False",
        "cusolver_batched_eigh_workspace_requirements": "N batch_size dtype",
        "cusolver_getrf": "a overwrite_a=False verbose=False",
        "cusolver_getrf_workspace_requirements": "M N dtype",
        "cusolver_getrs": "a ipiv targets overwrite_targets=False verbose=False",
        "cusolver_mg_eigh": "a overwrite_a=False max_num_devices=16 verbose=False",
        "cusolver_mg_eigh_workspace_requirements": "N dtype num_devices=None verbose=False",
    }
    assert sorted(signatures) == linalg.__all__ and {*signatures, "kernels"} == set(kt.__all__)
    for name, text in signatures.items():
        assert described(getattr(kt, name)) == text.split()


def described(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_host_matrix(n, dtype, caplog):
    caplog.set_level(logging.INFO, "lapwing")
    a = symmetric(n, dtype)
    kept = a.clone()
    w, v = kt.cusolver_mg_eigh(a)
    good(a, w, v)
    assert torch.equal(a, kept) and w.device.type == v.device.type == "cpu" and w.dtype == v.dtype == dtype
    assert any("cusolver_mg_eigh: on " in line for line in caplog.messages)


def test_host_matrix_overwritten():
    a = symmetric(12)
    kept = a.clone()
    w, v = kt.cusolver_mg_eigh(a, overwrite_a=True, max_num_devices=2)
    assert v.data_ptr() == a.data_ptr()
    good(kept, w, v)


def test_host_matrix_reads_the_lower_triangle():
    a = symmetric(9).numpy()
    w, v = kt.cusolver_mg_eigh(torch.from_numpy(poison(a, upper=False)))
    good(torch.from_numpy(a), w, v)
    # as it lies in memory, transposed: still the lower triangle
    w, v = kt.cusolver_mg_eigh(torch.from_numpy(np.asfortranarray(poison(a, upper=False))))
    good(torch.from_numpy(a), w, v)


def test_no_convergence_is_an_error():
    a = symmetric(6)
    a[3, 2] = torch.nan
    with pytest.raises(ValueError):
        kt.cusolver_mg_eigh(a)


def test_workspace_of_the_host_matrix(capsys):
    assert kt.cusolver_mg_eigh_workspace_requirements(500, torch.float64) >= 0
    kt.cusolver_mg_eigh_workspace_requirements(500, torch.float32, num_devices=2, verbose=True)
    assert "eigh of 1 x 500 x 500 float32" in capsys.readouterr().out
    kt.cusolver_mg_eigh(symmetric(5), verbose=True)
    assert "engine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kt.cusolver_eigh(symmetric(4)), "a is on cpu, not on a GPU"),
        (lambda: kt.cusolver_batched_eigh(symmetric(4, batch=(2,))), "a is on cpu, not on a GPU"),
        (lambda: kt.cusolver_mg_eigh(symmetric(4, batch=(2,))), r"a must have 2 axes, got shape \(2, 4, 4\)"),
        (lambda: kt.cusolver_mg_eigh(torch.zeros(3, 4)), r"must be square, got shape \(3, 4\)"),
        (
            lambda: kt.cusolver_mg_eigh(torch.eye(3, dtype=torch.complex64)),
            "torch.complex64 is not torch.float32 or torch.float64",
        ),
        (lambda: kt.cusolver_mg_eigh(np.eye(3)), "expected a torch tensor, got ndarray"),
        (lambda: kt.cusolver_mg_eigh(symmetric(3), max_num_devices=0), "max_num_devices=0 is not positive"),
        (lambda: kt.cusolver_eigh_workspace_requirements(10, torch.int32), "torch.int32 is not torch.float32 or torch.float64"),
        (lambda: kt.cusolver_eigh_workspace_requirements(10, "float64"), "'float64' is not torch.float32"),
        (lambda: kt.cusolver_mg_eigh_workspace_requirements(10, torch.float64, 0), "num_devices=0 is not positive"),
        (lambda: kt.cusolver_getrf(symmetric(4)), "(?s)a is on cpu, not on a GPU.*lapwing.solve"),
        (lambda: kt.cusolver_getrs(symmetric(4), torch.arange(4), symmetric(4)), "a is on cpu, not on a GPU"),
        (lambda: kt.cusolver_getrf_workspace_requirements(4, 3, torch.float64), "must be square, got 4 x 3"),
        (
            lambda: kt.cusolver_getrf_workspace_requirements(4, 4, torch.int32),
            "torch.int32 is not torch.float32 or torch.float64",
        ),
        (lambda: solved(targets=torch.zeros(4)), r"targets must be a tensor of shape \(nrhs, 4\), got shape \(4,\)"),
        (lambda: solved(targets=torch.zeros(4, 3)), r"of shape \(nrhs, 4\), got shape \(4, 3\)"),
        (lambda: solved(targets=np.zeros((2, 4))), r"of shape \(nrhs, 4\), got ndarray"),
        (lambda: solved(targets=torch.zeros(2, 4)), "a is torch.float64 on cpu, targets are torch.float32 on cpu"),
        (lambda: solved(ipiv=torch.tensor([1, 2, 3])), "ipiv must be a tensor of 4 rows, counted from 1"),
        (lambda: solved(ipiv=torch.tensor([0, 1, 2, 3])), "counted from 1"),
        (lambda: solved(ipiv=torch.tensor([1.0, 2.0, 3.0, 4.0])), "ipiv must be a tensor of 4 integers, got float"),
        (lambda: solved(ipiv=torch.ones(4, dtype=torch.bool)), "ipiv must be a tensor of 4 integers, got bool"),
        (lambda: solved(ipiv=torch.ones(4, 2, dtype=torch.int64)), "ipiv must be a tensor of 4 integers, got list"),
        (lambda: linalg._getrf(torch.zeros(3, 3), False, False), "singular"),
        (lambda: linalg._getrf(torch.full((3, 3), torch.nan), False, False), "NaN or Inf"),
        (lambda: linalg._subset((0, 4), 4), r"subset_by_index=\(0, 4\) is out of range for 4 eigenvalues, 0 to 3"),
        (lambda: linalg._subset((2, 1), 4), "out of range"),
        (lambda: linalg._subset((-1, 2), 4), "out of range"),
        (lambda: linalg._subset(3, 4), "subset_by_index=3 is not a pair of integers"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def solved(**changes):
    lu, ipiv = linalg._getrf(symmetric(4), False, False)
    given = {"ipiv": ipiv, "targets": symmetric(4), "overwrite": False, "verbose": False, **changes}
    return linalg._getrs(lu, given["ipiv"], given["targets"], given["overwrite"], given["verbose"])


def packed(lu):
    """L and U of what the call has factored by columns."""
    l = torch.tril(lu.mT, -1) + torch.eye(len(lu), dtype=lu.dtype, device=lu.device)
    return l, torch.triu(lu.mT)


def factored_and_solved(a, targets, getrf, getrs):
    """Factors of A^T with rows exchanged as LAPACK counts, and solutions of A x = b in either memory order."""
    n, eps = len(a), EPS[a.dtype]
    kept, given = a.clone(), targets.clone()
    lu, ipiv = getrf(a)
    l, u = packed(lu)
    moved = a.mT.clone()
    for i, j in enumerate(ipiv.tolist()):
        moved[[i, j - 1]] = moved[[j - 1, i]]
    assert lu.dtype == a.dtype and ipiv.dtype == torch.int64 and bool((l.abs() <= 1).all())
    norm = torch.linalg.matrix_norm(a)
    assert torch.linalg.matrix_norm(l @ u - moved) <= 10 * n * eps * norm
    x = getrs(lu, ipiv, targets)
    assert x.shape == targets.shape and x.is_contiguous()
    error = torch.linalg.matrix_norm(a @ x.mT - targets.mT)
    assert error <= 10 * n * eps * (norm * torch.linalg.matrix_norm(x) + torch.linalg.matrix_norm(targets))
    assert torch.equal(a, kept) and torch.equal(targets, given)
    same = getrs(lu, ipiv, targets, True)
    assert same.data_ptr() == targets.data_ptr() and torch.equal(same, x) and torch.equal(targets, x)
    again, _ = getrf(a, True)
    assert again.data_ptr() == a.data_ptr() and torch.equal(again, lu) and torch.equal(a, lu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "nrhs"), [(1, 1), (8, 3), (8, 20), (8, 0), (40, 40), (33, 1)])
@pytest.mark.parametrize("columns", [False, True])
def test_lu(n, nrhs, dtype, columns):
    """More and fewer right-hand sides than rows; a matrix that lies by columns is the same matrix."""
    a = torch.from_numpy(random((n, n), "float64")).to(dtype)
    a = a.mT.contiguous().mT if columns else a
    targets = torch.from_numpy(random((nrhs, n), "float64")).to(dtype)
    getrf, getrs = linalg._getrf, linalg._getrs
    factored_and_solved(a, targets, lambda a, o=False: getrf(a, o, False), lambda *a: getrs(*a[:3], len(a) > 3, False))


def test_lu_of_a_view_is_written_back():
    whole = torch.from_numpy(random((24, 24), "float64"))
    a = whole[::2, ::2]
    want, _ = linalg._getrf(a.clone(), False, False)
    lu, _ = linalg._getrf(a, True, False)
    assert lu.data_ptr() == whole.data_ptr() and torch.equal(a, want)


def test_a_matrix_that_cannot_be_factored_keeps_its_memory_order():
    a = torch.zeros(3, 3)
    a[0, 2] = 5.0
    with pytest.raises(ValueError, match="singular"):
        linalg._getrf(a, True, False)


def test_lu_needs_no_second_matrix():
    code = """
import resource, torch
from lapwing.compat.kernel_tools import linalg
n = 2000
a = torch.randn(n, n, dtype=torch.float64)
b = torch.randn(2, n, dtype=torch.float64)
torch.linalg.lu_solve(*torch.linalg.lu_factor(torch.eye(700, dtype=torch.float64)), torch.eye(700, dtype=torch.float64))
lu, ipiv = linalg._getrf(a[:600, :600].clone(), True, False)
linalg._getrs(lu, ipiv, b[:, :600].clone(), False, False)
for call in (lambda: linalg._getrf(a, True, False), lambda: linalg._getrs(a, torch.arange(1, n + 1), b, False, False)):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert more < 0.4 * a.nbytes, more / a.nbytes
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_kernels_have_the_original_names_and_positions():
    signatures = {
        "dispersal": "samples centers bandwidth gamma",
        "euclidean": "samples centers squared=True",
        "gaussian": "samples centers bandwidth",
        "laplacian": "samples centers bandwidth",
        "ntk_relu": "X Z depth=1 bias=0.0",
        "ntk_relu_unit_sphere": "X Z depth=1 bias=0.0",
    }
    assert sorted(signatures) == kernels.__all__
    x, z = (torch.from_numpy(random((n, 3), "float64")) for n in (6, 4))
    for name, text in signatures.items():
        assert described(getattr(kernels, name)) == text.split()
    assert torch.equal(kernels.euclidean(x, z, False), gram.euclidean(x, z, squared=False))
    assert torch.equal(kernels.gaussian(x, z, 0.7), gram.gaussian(x, z, length_scale=0.7))
    assert torch.equal(kernels.laplacian(x, z, 0.7), gram.laplacian(x, z, length_scale=0.7))
    assert torch.equal(kernels.dispersal(x, z, 0.7, 1.5), gram.dispersal(x, z, length_scale=0.7, gamma=1.5))
    assert torch.equal(kernels.ntk_relu(x, z, 3, 0.1), gram.ntk_relu(x, z, depth=3, bias=0.1))
    assert torch.equal(kernels.ntk_relu_unit_sphere(x, z, 2), gram.ntk_relu_unit_sphere(x, z, depth=2))
    for call in (kernels.gaussian, kernels.laplacian, lambda *a: kernels.dispersal(*a, 1.0)):
        with pytest.raises(AssertionError, match="bandwidth=0 is not positive"):
            call(x, z, 0)


def test_lu_says_what_it_does(capsys):
    linalg._getrf(symmetric(5), False, True)
    assert "lu of 1 x 5 x 5 float64" in capsys.readouterr().out
    solved(verbose=True)
    assert "4 right-hand sides for a matrix of order 4" in capsys.readouterr().out


def test_indices_are_inclusive():
    assert linalg._subset((3, 5), 10) == slice(3, 6)
    assert linalg._subset(None, 10) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_workspace_needs_the_gpu():
    with pytest.raises(RuntimeError, match="the workspace is unknown on this machine"):
        kt.cusolver_eigh_workspace_requirements(100, torch.float64)
    with pytest.raises(RuntimeError, match="the workspace is unknown on this machine"):
        kt.cusolver_getrf_workspace_requirements(100, 100, torch.float64)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lower", [True, False])
def test_on_a_gpu(dtype, lower):
    host = symmetric(50, dtype)
    unread = torch.from_numpy(poison(host.numpy(), upper=not lower)).cuda()
    w, v = kt.cusolver_eigh(unread, lower=lower)
    good(host, w, v)
    tolerance = 10 * 50 * torch.finfo(dtype).eps * w.abs().max().item()
    assert torch.allclose(kt.cusolver_eigh(unread, lower=lower, eigvals_only=True), w, rtol=0, atol=tolerance)
    part, vectors = kt.cusolver_eigh(unread, subset_by_index=(40, 49), lower=lower)
    good(host, part, vectors)
    assert part.shape == (10,) and vectors.shape == (50, 10) and torch.allclose(part, w[40:], rtol=0, atol=tolerance)
    assert vectors.untyped_storage().nbytes() == vectors.numel() * vectors.element_size()
    batch = symmetric(7, dtype, (5,))
    w, v = kt.cusolver_batched_eigh(batch.cuda(), overwrite_a=True, lower=lower)
    good(batch, w, v)
    assert kt.cusolver_batched_eigh(batch.cuda(), eigvals_only=True).shape == (5, 7)
    assert kt.cusolver_eigh_workspace_requirements(1000, dtype)[0] >= 0
    assert kt.cusolver_batched_eigh_workspace_requirements(8, 1000, dtype)[0] >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nrhs", [1, 3, 200])
def test_lu_on_a_gpu(dtype, nrhs):
    a = torch.from_numpy(random((100, 100), "float64")).to(dtype).cuda()
    targets = torch.from_numpy(random((nrhs, 100), "float64")).to(dtype).cuda()
    factored_and_solved(a, targets, kt.cusolver_getrf, kt.cusolver_getrs)
    assert kt.cusolver_getrf_workspace_requirements(1000, 1000, dtype)[0] >= 0
