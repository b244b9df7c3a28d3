"""lapwing.install: the libraries' own functions give what they gave before, and come back."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import lapwing as lw
from backends import DTYPES, random, spd, x64
from lapwing.doors.ahead import ahead, times_as_fast
from lapwing.doors.cells import AHEAD, Cell

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*lru_cache.*:UserWarning")
SHAPE = (4000, 5, 5)


@pytest.fixture
def everywhere(monkeypatch):
    """All calls with batches are taken, whatever was measured."""
    names = {name for name, _ in AHEAD} | {"cholesky_inverse", "cholesky_solve", "lstsq", "lu", "lu_solve", "triangular"}
    for row in itertools.product(names, ("cpu", "arrays")):
        monkeypatch.setitem(AHEAD, row, (Cell(64, 1, 2.0),))


def close(got, expected, size=1.0):
    """Equal up to rounding, with the same dtype and shape."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if got.dtype.kind in "fc":
        limit = 10 * 5 * np.finfo(got.dtype).eps * size * max(1.0, np.abs(expected).max(initial=0))
        assert np.abs(got - expected).max(initial=0) <= limit


def matrices(dtype):
    p = spd(SHAPE, dtype)
    return (random(SHAPE, dtype) + 4 * np.eye(5)).astype(dtype), (p / np.abs(p).max()).astype(dtype)


def test_undo_leaves_nothing_behind():
    import numpy.linalg as la

    before = {name: getattr(la, name) for name in dir(la)}
    handle = lw.install("numpy")
    assert la.cholesky is not before["cholesky"] and "installed" in repr(handle)
    again = lw.install("numpy", "numpy")
    handle.undo()
    handle.undo()
    assert la.cholesky is not before["cholesky"]  # the second handle still uses it
    with again:
        pass
    assert all(getattr(la, name) is own for name, own in before.items()) and "undone" in repr(again)
    with pytest.raises(ValueError, match="install: 'nympy'"):
        lw.install("nympy")
    with pytest.raises(ValueError, match="nympy"):
        lw.install("numpy", "nympy")
    assert la.cholesky is before["cholesky"]


def test_threads_and_nesting():
    own = np.linalg.eigh
    _, p = matrices("float64")

    def work():
        for _ in range(5):
            with lw.install("numpy"):
                np.linalg.eigh(p)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.linalg.eigh is own


def sums(*values):
    """Of eigenvalues and of their squares: the libraries may order eigenvalues differently."""
    return [x for w in values for x in (w.sum(-1), (w**2).sum(-1))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy(dtype, everywhere):
    a, p = matrices(dtype)
    calls = {
        "cholesky": lambda: (
            [np.linalg.cholesky(p), np.linalg.cholesky(p, upper=True)]
            if "upper" in inspect.signature(np.linalg.cholesky).parameters
            else [np.linalg.cholesky(p)]
        ),
        "det": lambda: [np.linalg.det(a) / 4**5],
        "eig": lambda: sums(np.linalg.eig(a).eigenvalues, np.linalg.eig(p)[0]),
        "eigvals": lambda: sums(np.linalg.eigvals(a)),
        "eigh": lambda: [np.linalg.eigh(p).eigenvalues, np.linalg.eigh(p, "U").eigenvalues],
        "eigvalsh": lambda: [np.linalg.eigvalsh(p)],
        "inv": lambda: [np.linalg.inv(p + np.eye(5, dtype=dtype))],
        "slogdet": lambda: [np.linalg.slogdet(a).logabsdet],
        "solve": lambda: [np.linalg.solve(p + np.eye(5, dtype=dtype), a)],
        "svd": lambda: [np.linalg.svd(a).S, np.linalg.svd(a, compute_uv=False), np.linalg.cond(p + np.eye(5, dtype=dtype))],
        "qr": lambda: [np.abs(np.linalg.qr(a).R)],
    }
    for name, call in calls.items():
        expected = call()
        with lw.install("numpy") as handle:
            got = call()
        assert handle.report()[f"numpy.{name}"]["lapwing"] > 0, name
        for x, y in zip(got, expected, strict=True):
            close(x, y, 10)
    with lw.install("numpy") as handle:  # errors are NumPy's own
        for call in (lambda: np.linalg.cholesky(-p), lambda: np.linalg.inv(0 * a), lambda: np.linalg.eigh(p, "X")):
            with pytest.raises(Exception) as caught:
                call()
            assert type(caught.value).__module__.startswith(("numpy", "builtins"))
        assert type(np.linalg.eigh(p)).__module__.startswith("numpy")
        np.linalg.cholesky(p[0])
        np.linalg.cholesky(p[:2].tolist())
    assert handle.report()["numpy.cholesky"] == {"lapwing": 0, "own": 3}


@pytest.mark.parametrize("dtype", DTYPES)
def test_scipy(dtype, everywhere):
    sl = pytest.importorskip("scipy.linalg")
    if not hasattr(sl, "eigh") or tuple(map(int, sl.__spec__.parent and __import__("scipy").__version__.split(".")[:2])) < (
        1,
        16,
    ):
        pytest.skip("this SciPy has no batches")
    a, p = matrices(dtype)
    a, p = a[:300], p[:1500]
    calls = {
        "cholesky": lambda: [sl.cholesky(p), sl.cholesky(p, lower=True)],
        "det": lambda: [sl.det(a / 4)],
        "eig": lambda: sums(sl.eig(a[:80])[0]),
        "eigvals": lambda: sums(sl.eigvals(a[:80])),
        "schur": lambda: sums(np.diagonal(sl.schur(a[:80], output="complex")[0], axis1=-2, axis2=-1)),
        "eigh": lambda: [sl.eigh(p)[0], sl.eigh(p, eigvals_only=True)],
        "svd": lambda: [sl.svd(a)[1], sl.svd(a, full_matrices=False, compute_uv=False)],
        "svdvals": lambda: [sl.svdvals(a)],
        "expm": lambda: [sl.expm(a / 4)],
        "qr": lambda: [np.abs(sl.qr(a, mode="economic")[1])],
    }
    for name, call in calls.items():
        expected = call()
        with lw.install("scipy") as handle:
            got = call()
        taken = handle.report()[f"scipy.{name}"]["lapwing"]
        assert taken == (1 if name in ("eig", "eigvals", "schur") else len(got)) or (
            name == "det" and dtype in ("float32", "complex64")
        ), name
        for x, y in zip(got, expected, strict=True):
            close(x, y, 10)
    several = lambda: [type(f(x)) for f in (sl.eig, sl.eigh, sl.qr, sl.schur, sl.svd) for x in (p[:80], p[0])]  # noqa: E731
    expected = several()
    with lw.install("scipy"):
        assert several() == expected
    p[3, 0, 4] = np.nan
    with lw.install("scipy"), pytest.raises(ValueError, match="infs or NaNs"):
        sl.cholesky(p, lower=True)


def test_jax(everywhere):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    with x64():
        a, p = map(jnp.asarray, matrices("float64"))
        calls = {
            "cholesky": lambda: jnp.linalg.cholesky(p),
            "eig": lambda: jnp.linalg.eig(a).eigenvalues.sum(-1),
            "eigvals": lambda: (jnp.linalg.eigvals(a) ** 2).sum(-1),
            "eigh": lambda: jnp.linalg.eigh(p).eigenvalues,
            "svd": lambda: jnp.linalg.svd(a).S,
            "qr": lambda: jnp.abs(jnp.linalg.qr(a).R),
            "scipy.cholesky": lambda: jax.scipy.linalg.cholesky(p, lower=True),
            "scipy.eigh": lambda: jax.scipy.linalg.eigh(p)[0],
        }
        for name, call in calls.items():
            expected = call()
            with lw.install("jax") as handle:
                got = call()
                assert handle.report()[f"jax.{name}"]["lapwing"] == 1
            close(got, expected, 10)
        before = jax.grad(lambda x: jnp.linalg.cholesky(x).sum())(p)
        kinds = jax.tree.structure(jnp.linalg.eigh(p))
        with lw.install("jax"):
            close(jax.jit(jax.grad(lambda x: jnp.linalg.cholesky(x).sum()))(p), before, 100)
            assert jax.tree.structure(jnp.linalg.eigh(p)) == kinds
            assert jnp.isnan(jnp.linalg.cholesky(-p)).all()


TORCH = {
    "linalg_cholesky_ex": lambda t, a, p: [*t.linalg.cholesky_ex(p), t.linalg.cholesky(p, upper=True)],
    "linalg_inv_ex": lambda t, a, p: [*t.linalg.inv_ex(p + t.eye(5))],
    "linalg_qr": lambda t, a, p: [x.abs() for x in t.linalg.qr(a)],
    "linalg_eig": lambda t, a, p: sums(t.linalg.eig(a)[0]),
    "_linalg_eigvals": lambda t, a, p: sums(t.linalg.eigvals(a.detach())),
    "_linalg_eigh": lambda t, a, p: [t.linalg.eigh(p)[0], t.linalg.eigvalsh(p, UPLO="U")],
    "_linalg_svd": lambda t, a, p: [t.linalg.svd(a)[1], t.linalg.svdvals(a)],
    "_linalg_solve_ex": lambda t, a, p: [*t.linalg.solve_ex(a, p), t.linalg.solve(a, p[..., 0])],
    "_linalg_det": lambda t, a, p: [t.linalg.det(a / 4)],
    "_linalg_slogdet": lambda t, a, p: [*t.linalg.slogdet(a)],
    "linalg_lu_factor_ex": lambda t, a, p: [*t.linalg.lu_factor_ex(a)],
    "linalg_lu_solve": lambda t, a, p: [
        t.linalg.lu_solve(*t.linalg.lu_factor(a), p, adjoint=adjoint) for adjoint in (False, True)
    ],
    "_cholesky_solve_helper": lambda t, a, p: [
        t.cholesky_solve(a, t.linalg.cholesky(p + t.eye(5), upper=upper), upper=upper) for upper in (False, True)
    ],
    "cholesky_inverse": lambda t, a, p: [t.cholesky_inverse(t.linalg.cholesky(p + t.eye(5)))],
    "linalg_solve_triangular": lambda t, a, p: [
        t.linalg.solve_triangular(t.linalg.cholesky(p + t.eye(5)), a, upper=False),
        t.linalg.solve_triangular(p, a, upper=True, unitriangular=True),
    ],
    "linalg_lstsq": lambda t, a, p: [*t.linalg.lstsq(t.cat([a, p], -2), t.cat([p, p], -2))[:3]],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TORCH)
def test_torch(name, dtype, everywhere):
    torch = pytest.importorskip("torch")
    a, p = map(torch.tensor, matrices(dtype))
    for x in (a, a.mT.contiguous().mT):
        expected = TORCH[name](torch, x, p)
        with lw.install("torch") as handle:
            got = TORCH[name](torch, x, p)
        assert handle.report()[f"torch.{name}"]["lapwing"] > 0
        for y, z in zip(got, expected, strict=True):
            close(y, z, 10)
            assert y.stride() == z.stride()


@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in TORCH if name != "_linalg_eigvals"])  # it serves calls without derivatives
def test_torch_derivatives_are_torchs_own(name, dtype, everywhere):
    torch = pytest.importorskip("torch")
    a, p = (torch.tensor(x[:2, :3, :3]).requires_grad_() for x in matrices(dtype))

    def smooth(a, p):
        p = (p + p.mH) / 2 + torch.eye(3)
        return tuple(x for x in TORCH[name](_Small(torch), a, p) if x.is_floating_point() or x.is_complex())

    forward = name != "cholesky_inverse"  # torch 2.13 has a wrong forward derivative of it
    with lw.install("torch") as handle:
        assert torch.autograd.gradcheck(smooth, (a, p), check_forward_ad=forward)
    assert handle.report()[f"torch.{name}"]["lapwing"] > 0
    for row in (a.mT.contiguous().mT.detach().requires_grad_(),):
        with lw.install("torch"):
            assert torch.autograd.gradcheck(smooth, (row, p))


class _Small:
    """torch with an identity of order 3."""

    def __init__(self, torch):
        self.torch, self.eye = torch, lambda n: torch.eye(3)

    def __getattr__(self, name):
        return getattr(self.torch, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eig_as_the_libraries_return_it(dtype, everywhere):
    """Dtypes and memory order: NumPy and SciPy answer in real numbers where all eigenvalues are real."""
    torch, sl = pytest.importorskip("torch"), pytest.importorskip("scipy.linalg")
    a, p = matrices(dtype)
    for x in (a[:80], p[:80]):
        calls = (lambda x: np.linalg.eig(x), sl.eig, sl.schur, lambda x: (np.linalg.eigvals(x),), lambda x: (sl.eigvals(x),))
        for call in calls:
            expected = call(x)
            with lw.install("numpy", "scipy"):
                got = call(x)
            assert [y.dtype for y in got] == [y.dtype for y in expected]
            assert type(got) is type(expected)
    t = torch.tensor(a)
    expected = torch.linalg.eig(t)
    with lw.install("torch"):
        got = torch.linalg.eig(t)
    assert [y.stride() for y in got] == [y.stride() for y in expected]
    assert torch.allclose(
        t.to(got[1].dtype) @ got[1], got[1] * got[0][..., None, :], atol=2e-4 if "64" not in str(t.real.dtype) else 1e-12
    )


def test_torch_errors_vmap_and_compile(everywhere):
    torch = pytest.importorskip("torch")
    p = torch.tensor(matrices("float64")[1])
    with pytest.raises(torch.linalg.LinAlgError) as own:
        torch.linalg.cholesky(-p)
    own_info = torch.linalg.cholesky_ex(-p)
    with lw.install("torch") as handle:
        with pytest.raises(torch.linalg.LinAlgError) as ours:
            torch.linalg.cholesky(-p)
        assert str(ours.value) == str(own.value)
        for x, y in zip(torch.linalg.cholesky_ex(-p), own_info, strict=True):
            assert torch.equal(x, y)
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.eigh(p * torch.nan)
        assert torch.allclose(torch.func.vmap(torch.linalg.inv)(p), torch.linalg.inv(p))
        compiled = torch.compile(lambda x: torch.linalg.cholesky(x) @ torch.linalg.qr(x)[1], backend="aot_eager")
        assert torch.allclose(compiled(p), torch.linalg.cholesky(p) @ torch.linalg.qr(p)[1])
        out = torch.empty_like(p)
        torch.linalg.cholesky(p, out=out)
    report = handle.report()
    assert report["torch.linalg_inv_ex"]["lapwing"] == 2 and report["torch.linalg_qr"]["lapwing"] == 2
    assert torch.linalg.cholesky_ex(p)[0].stride() == own_info[0].stride()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_torch_saves_the_factors_that_its_derivatives_expect(dtype, everywhere):
    """LU of the matrix or of its transpose, and LAPACK's pivots, to the bit where the pivots are."""
    torch = pytest.importorskip("torch")
    a, p = map(torch.tensor, matrices(dtype))
    a = a[:50].roll(1, -2)  # rows change places
    for x in (a, a.mT.contiguous().mT):
        for call in (
            lambda x=x: torch.ops.aten._linalg_solve_ex(x, p[:50])[1:],
            lambda x=x: torch.ops.aten._linalg_det(x)[1:],
            lambda x=x: torch.ops.aten._linalg_slogdet(x)[2:],
        ):
            expected = call()
            with lw.install("torch") as handle:
                got = call()
            assert [calls["lapwing"] for calls in handle.report().values()] == [1]
            assert torch.equal(got[1], expected[1]) and [y.stride() for y in got] == [y.stride() for y in expected]
            close(got[0], expected[0], 10)


def test_torch_takes_singular_matrices_itself(everywhere):
    torch = pytest.importorskip("torch")
    a = torch.tensor(matrices("float64")[0][:20])
    a[3, :, 2] = 0
    tall = torch.cat([a, a], -2)
    calls = {
        "det": lambda: [torch.linalg.det(a)],
        "slogdet": lambda: [*torch.linalg.slogdet(a)],
        "lu": lambda: [*torch.linalg.lu_factor_ex(a)],
        "solve": lambda: [*torch.linalg.solve_ex(a, a)],
        "triangular": lambda: [torch.linalg.solve_triangular(a.triu(), a, upper=True)],
        "lstsq": lambda: [torch.linalg.lstsq(tall, tall).rank],
    }
    for call in calls.values():
        expected = call()
        with lw.install("torch"):
            got = call()
        assert all(torch.equal(x.nan_to_num(7), y.nan_to_num(7)) for x, y in zip(got, expected, strict=True))
    with lw.install("torch"):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            torch.linalg.solve(a, a)
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            torch.cholesky_inverse(a.tril())
        with pytest.raises(RuntimeError):
            torch.linalg.solve(a, a[:, :3])
        assert torch.linalg.solve(a[4:], a[4]).shape == (16, 5, 5)  # one right-hand side for all of them


@pytest.mark.parametrize("amd", [False, True])
def test_gpus_that_were_not_measured(monkeypatch, amd):
    from lapwing.doors import ahead as module

    module._was_measured.cache_clear()
    monkeypatch.setattr(module, "is_amd", lambda: amd)
    assert ahead("cholesky", "cuda", (1000000, 4, 4)) != amd and ahead("cholesky", "cpu", (1000000, 4, 4))
    module._was_measured.cache_clear()


def test_ahead(monkeypatch):
    monkeypatch.setitem(AHEAD, ("some", "cpu"), (Cell(8, 100, 3.0), Cell(16, 0, 0), Cell(32, 2000, 2.0)))
    assert [times_as_fast("some", "cpu", (100, n, n)) for n in (2, 8, 9, 16, 20, 32, 33)] == [3, 3, 0, 0, 0, 2, 0]
    assert not ahead("some", "cpu", (1, 8, 8)) and not ahead("some", "cpu", (1, 32, 32)) and ahead("some", "cpu", (50, 2, 8))
    assert ahead("eigh", "cpu", (5000, 5, 5)) and not ahead("eigh", "cpu", (2, 5, 5)) and not ahead("eigh", "mps", (5000, 5, 5))
    assert not ahead("eigh", "cpu", (5000, 500, 500)) and not ahead("eigh", "cpu", (0, 5, 5))
    half = np.tile(np.eye(5, dtype=np.int32), (5000, 1, 1))
    with lw.install("numpy") as handle:
        assert np.linalg.eigvalsh(half).dtype == np.float64
    assert handle.report() == {"numpy.eigvalsh": {"lapwing": 0, "own": 1}}


def test_command_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np\nprint(sys.argv[1:], __name__)\nnp.linalg.eigvalsh(np.tile(np.eye(3), (900, 1, 1)))\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    command = [sys.executable, "-m", "lapwing", "run", "--install", "numpy", "--report", str(script), "3", "--x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3 and done.stdout == "['3', '--x'] __main__\n"
    assert "lapwing: numpy.eigvalsh: 1 call by lapwing, 0 by the library" in done.stderr
    for arguments in (["--install", "numpy"], ["--install", "nympy", str(script)], ["--install", "numpy", "missing.py"]):
        done = subprocess.run([sys.executable, "-m", "lapwing", "run", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and "lapwing: " in done.stderr


def test_torch_refuses_what_it_refused(everywhere):
    torch = pytest.importorskip("torch")
    with lw.install("torch"):
        for function in (torch.linalg.cholesky, torch.linalg.eigh, torch.linalg.inv):
            with pytest.raises(RuntimeError, match="square"):
                function(torch.randn(4000, 4, 5, dtype=torch.float64))
        with pytest.raises(RuntimeError, match="UPLO"):
            torch.linalg.eigh(torch.randn(4000, 5, 5, dtype=torch.float64), UPLO="X")


def test_jax_reads_the_triangle_it_read():
    pytest.importorskip("jax")
    import jax.numpy as jnp
    import jax.scipy.linalg as jsl

    one_sided = jnp.asarray(spd(SHAPE, "float32")) + jnp.triu(jnp.ones(SHAPE[-2:], "float32"), 1)
    own = jsl.cholesky(one_sided, lower=True)
    with lw.install("jax"):
        assert (
            np.abs(np.asarray(jsl.cholesky(one_sided, lower=True) - own)).max()
            <= 10 * SHAPE[-1] * np.finfo("float32").eps * np.abs(np.asarray(own)).max()
        )


def test_a_function_that_was_imported_while_installed_is_numpys_afterwards():
    with lw.install("numpy") as handle:
        from numpy.linalg import eigh

        eigh(spd(SHAPE, "float64"))
        before = str(handle.report())
    eigh(spd(SHAPE, "float64"))
    assert str(handle.report()) == before


def test_numpy_speaks_of_wrong_arguments_and_overflow():
    with lw.install("numpy"):
        with pytest.raises(ValueError, match="UPLO"):
            np.linalg.eigh(spd(SHAPE, "float64"), UPLO="X")
        with pytest.warns(RuntimeWarning, match="overflow"):
            np.linalg.det(1e160 * spd(SHAPE, "float64"))


def test_run_shows_the_errors_of_the_script(tmp_path):
    script = tmp_path / "s.py"
    script.write_text('raise BrokenPipeError("x")\n')
    done = subprocess.run(
        [sys.executable, "-m", "lapwing", "run", "--install", "numpy", str(script)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "BrokenPipeError" in done.stderr


def test_estimators_of_scikit_learn(tmp_path):
    """GaussianProcessRegressor and KernelPCA, unmodified: lapwing factors, the results stay."""
    pytest.importorskip("sklearn")
    script = tmp_path / "fit.py"
    script.write_text(
        "import numpy as np\n"
        "from sklearn.decomposition import KernelPCA\n"
        "from sklearn.gaussian_process import GaussianProcessRegressor\n"
        "x = np.random.default_rng(0).standard_normal((120, 3))\n"
        "y, std = GaussianProcessRegressor(alpha=1e-3, optimizer=None).fit(x, x.sum(1)).predict(x[:3] + 0.1, return_std=True)\n"
        "z = KernelPCA(4, kernel='rbf', eigen_solver='dense').fit_transform(x)\n"
        "print(*y, *std**2, *np.abs(z[:2]).ravel())\n"
    )
    results = []
    for installed in ([], ["-m", "lapwing", "run", "--install", "numpy,scipy", "--report"]):
        done = subprocess.run([sys.executable, *installed, str(script)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        results.append(np.array(done.stdout.split(), float))
    assert re.search(r"scipy.cholesky: [1-9]\d* calls? by lapwing", done.stderr), done.stderr
    assert np.abs(results[0] - results[1]).max() <= 1e-10


def test_single_matrices_and_time_saved(monkeypatch):
    for name in ("cholesky", "solve"):
        monkeypatch.setitem(AHEAD, (name, "one"), (Cell(64, 4096, 3.0),))
    p = spd((64, 64), "float64")
    own = np.linalg.cholesky(p), np.linalg.solve(p, p[0])
    with lw.install("numpy") as handle:
        for _ in range(3):
            got = np.linalg.cholesky(p), np.linalg.solve(p, p[0])
        np.linalg.cholesky(p[:63, :63])
    report = handle.report()
    assert report["numpy.cholesky"]["lapwing"] == 3 and report["numpy.cholesky"]["own"] == 1
    assert 0 < report["numpy.cholesky"]["saved"] < 1 and report["numpy.solve"]["saved"] > 0
    assert np.allclose(got[0], own[0], rtol=1e-11) and np.allclose(got[1], own[1], rtol=1e-8)


def test_numpy_results_are_row_major(everywhere):
    """Compiled extensions ask for that, and NumPy's own results are."""
    a = np.asfortranarray(np.tile(2.0 * np.eye(3), (4, 1, 1)))
    for dtype in ("float32", "float64"):
        with lw.install("numpy") as handle:
            results = [np.linalg.cholesky(a.astype(dtype).swapaxes(-1, -2)), np.linalg.inv(a.astype(dtype)), *np.linalg.eigh(a)]
        assert handle.report()["numpy.cholesky"]["lapwing"] and all(x.flags.c_contiguous for x in results)


def test_torch_solves_with_factors_that_are_not_finite_itself(everywhere):
    """Which elements are NaN is torch's to say."""
    torch = pytest.importorskip("torch")
    l = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1) + 0.1 * torch.ones(4, 4).tril()
    b = torch.ones(3, 4, 2, dtype=torch.float64)
    l[1, 2, 2] = torch.inf
    lu, pivots = l.mT.contiguous().mT, torch.arange(1, 5, dtype=torch.int32).repeat(3, 1)

    def call():
        return torch.cholesky_inverse(l), torch.cholesky_solve(b, l), torch.linalg.lu_solve(lu, pivots, b)

    expected = call()
    with lw.install("torch") as handle:
        got = call()
        torch.cholesky_solve(b[:1], l[:1])
    assert handle.report()["torch._cholesky_solve_helper"] == {"lapwing": 1, "own": 1}
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-13, atol=0, equal_nan=True)


def test_torch_least_squares_of_no_columns_and_what_has_a_derivative(everywhere):
    torch = pytest.importorskip("torch")
    a, b = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True), torch.randn(3, 5, 2, dtype=torch.float64)
    expected, none = torch.linalg.lstsq(a, b), torch.linalg.lstsq(a, b[..., :0])
    with lw.install("torch") as handle:
        got, of_none = torch.linalg.lstsq(a, b), torch.linalg.lstsq(a, b[..., :0])
    assert handle.report()["torch.linalg_lstsq"]["lapwing"] == 1
    assert [x.requires_grad for x in got] == [x.requires_grad for x in expected]
    assert torch.equal(of_none.rank, none.rank) and of_none.solution.shape == none.solution.shape


def test_scipy_speaks_of_arrays_in_the_other_byte_order(everywhere):
    linalg = pytest.importorskip("scipy.linalg")
    a = np.tile(np.eye(3), (4, 1, 1))
    swapped = a.astype(a.dtype.newbyteorder())
    with pytest.raises(ValueError, match="endian") as expected:
        linalg.expm(swapped)
    with lw.install("scipy", "numpy") as handle, pytest.raises(ValueError, match="endian") as got:
        np.linalg.inv(swapped)
        linalg.expm(swapped)
    assert str(got.value) == str(expected.value)
    assert all(calls["lapwing"] == 0 for calls in handle.report().values())


def test_numpy_has_the_word_on_singular_matrices_and_what_is_not_finite(everywhere):
    singular = np.zeros((3, 4, 4))
    beside_inf = np.random.default_rng(0).standard_normal((3, 6, 4))
    beside_inf[1, 2, 3] = np.inf
    with np.errstate(all="ignore"):
        expected = np.linalg.qr(beside_inf)
        with lw.install("numpy") as handle:
            with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
                np.linalg.solve(singular, np.ones((3, 4, 0)))
            got = np.linalg.qr(beside_inf)
            np.linalg.qr(beside_inf[2:])
    assert handle.report() == {"numpy.qr": {"lapwing": 1, "own": 1}, "numpy.solve": {"lapwing": 0, "own": 1}}
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(got, expected, strict=True))


def test_torch_decides_about_nan_in_qr_and_the_class_of_results(everywhere):
    torch = pytest.importorskip("torch")

    class Subclass(torch.Tensor):
        pass

    a = torch.randn(3, 40, 40, dtype=torch.float64)
    a[1, 2, 3] = torch.nan
    well, b = torch.eye(3).repeat(4, 1, 1).as_subclass(Subclass), torch.ones(3, 1)

    def call():
        return *torch.linalg.qr(a), torch.func.vmap(lambda x: torch.linalg.solve(x, b))(well), torch.linalg.inv(well)

    expected = call()
    with lw.install("torch") as handle:
        got = call()
        torch.linalg.qr(a[2:])
    assert handle.report()["torch.linalg_qr"] == {"lapwing": 1, "own": 1}
    for x, y in zip(got, expected, strict=True):
        assert type(x) is type(y) and torch.equal(torch.isnan(x), torch.isnan(y))


def test_torch_triangles_that_are_lazy_adjoints_keep_their_strides(everywhere):
    torch = pytest.importorskip("torch")
    triangle = (torch.eye(3) * 2 + torch.ones(3, 3).tril()).to(torch.complex128).repeat(4, 1, 1)
    b = torch.ones(4, 3, 2, dtype=torch.complex128)

    def call():
        return [torch.linalg.solve_triangular(a, b, upper=True) for a in (triangle.mH, triangle.mT, triangle.mH.resolve_conj())]

    expected = call()
    with lw.install("torch") as handle:
        got = call()
    assert handle.report()["torch.linalg_solve_triangular"]["own"] == 1
    for x, y in zip(got, expected, strict=True):
        assert x.stride() == y.stride()
        torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-14)
