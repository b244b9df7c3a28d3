"""Checks of cuSOLVERMg's calls, run with a stand-in for the libraries, or with the real ones on one GPU in several places."""

from __future__ import annotations

import logging
import os
import sys
import warnings

import numpy as np

import lapwing as lw
from lapwing.distributed import DeviceMatrix

MG = {"engine": "cusolvermg"}


def random(dtype, *shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def close(x, expected, limit, what):
    """Within 10 n eps of the largest entry."""
    scale = max(np.abs(expected).max(), 1e-30)
    error = np.abs(x - expected).max() / scale
    assert x.shape == expected.shape and error <= limit, (what, error, limit)


def check(split, dtype, n, layout, b_of=np.asarray, host=np.asarray):
    """All operations on ``split(a)``, a matrix over several places; the triangle that must not be read is poisoned."""
    x = random(dtype, n, n)
    pos, hermitian = x @ x.conj().T + n * np.eye(n, dtype=dtype), x + x.conj().T
    limit = 10 * n * np.finfo(dtype).eps
    for upper in (False, True):
        other = np.tril_indices(n, -1) if upper else np.triu_indices(n, 1)
        a, h = pos.copy(), hermitian.copy()
        a[other] = h[other] = np.nan
        what = (dtype, n, layout, upper)
        l = host(lw.cholesky(split(a), upper=upper, **MG))
        close(l.conj().T @ l if upper else l @ l.conj().T, pos, limit, ("cholesky", *what))
        assert not l[other].any()
        for columns in (1, 3, 40):
            b = random(dtype, n, columns, seed=1)
            close(pos @ host(lw.solve(split(a), b_of(b), assume="pos", upper=upper, **MG)), b, limit, ("solve", *what))
        inverse = host(lw.inv(split(a), assume="pos", upper=upper, **MG))
        close(pos @ inverse, np.eye(n), limit, ("inv", *what))
        assert (inverse == inverse.conj().T).all()
        f = lw.factor(split(a), assume="pos", upper=upper, **MG)
        logdet = np.linalg.slogdet(pos)[1]
        assert abs(float(f.logdet()) - logdet) <= limit * max(1, abs(logdet)), what
        close(pos @ host(f.solve(b_of(b[:, 0]))), b[:, 0], limit, ("factor", *what))
        close(pos @ host(f.inv()), np.eye(n), limit, ("factor", *what))
        close(host(f.l), l, limit, ("factor", *what))
        w, v = lw.eigh(split(h), upper=upper, **MG)
        w, v = np.asarray(w), host(v)
        unit = np.abs(w).max()
        assert np.abs(hermitian @ v - v * w).max() <= limit * unit, what
        close(v.conj().T @ v, np.eye(n), limit, ("eigh", *what))
        assert np.abs(np.asarray(lw.eigvalsh(split(h), upper=upper, **MG)) - w).max() <= limit * unit
        w2, v2 = lw.eigh(split(h), upper=upper, subset=slice(max(0, n - 3), None), **MG)
        v2 = host(v2)
        assert np.abs(hermitian @ v2 - v2 * np.asarray(w2)).max() <= limit * unit and v2.shape[1] == min(3, n)
    for columns in (1, 40):
        b = random(dtype, n, columns, seed=1)
        backward(x, host(lw.solve(split(x), b_of(b), **MG)), b, limit)
    backward(x, host(lw.inv(split(x), **MG)), np.eye(n), limit)
    sign, logabs = lw.slogdet(split(x), **MG)
    expected = np.linalg.slogdet(x)
    assert abs(sign - expected[0]) <= 1e-3 and abs(float(logabs) - expected[1]) <= 1e-4 * max(1, abs(expected[1]))
    if n < 20:
        close(np.asarray(lw.det(split(x), **MG)), np.linalg.det(x), 1e-3, "det")


def backward(a, x, b, limit):
    """A x - b against the norms of A and x."""
    assert np.abs(a @ x - b).max() <= limit * np.abs(a).sum(1).max() * np.abs(x).max()


def check_failures(split, n):
    a = np.eye(n)
    a[n // 2, n // 2] = -1
    try:
        lw.cholesky(split(a))
        raise AssertionError("no error")
    except lw.NotPositiveDefiniteError as error:
        assert error.minor == n // 2 + 1, error.minor
    l, info = lw.cholesky_ex(split(a))
    assert info == n // 2 + 1 and np.isnan(l.gather()).all()
    assert np.isnan(lw.solve(split(a), np.ones(n), assume="pos", on_fail="nan")).all()
    f = lw.factor(split(a), assume="pos", on_fail="nan")
    assert f.info == n // 2 + 1 and np.isnan(f.solve(np.ones(n))).all() and np.isnan(f.logdet())
    a[n // 2] = 0
    try:
        lw.solve(split(a), np.ones(n))
        raise AssertionError("no error")
    except lw.SingularMatrixError as error:
        assert error.pivot == n // 2 + 1, error.pivot
    assert tuple(lw.slogdet(split(a))) == (0, -np.inf)
    a[0, 0] = np.nan
    try:
        lw.eigh(split(a))
        raise AssertionError("no error")
    except lw.ConvergenceError as error:
        assert error.nonfinite
    w, v = lw.eigh(split(a), on_fail="nan")
    assert np.isnan(w).all() and np.isnan(v.gather()).all()
    for wrong in (lambda: lw.qr(split(a)), lambda: lw.solve(split(a), np.ones(n), assume="lower")):
        try:
            wrong()
            raise AssertionError("no error")
        except NotImplementedError as error:
            assert "cuSOLVERMg" in str(error)


def of_torch(places, device, axis=0):
    import torch

    return lambda a: DeviceMatrix.split(torch.from_numpy(np.ascontiguousarray(a)), [device] * places, axis=axis)


def on_host(x):
    return x.gather() if isinstance(x, DeviceMatrix) else x


def torch_checks():
    import torch

    from lapwing.distributed.backends.cusolvermg import factor

    DeviceMatrix.on_gpu = property(lambda self: True)
    for dtype, n, places, axis in (
        ("float64", 23, 1, 0), ("float64", 23, 3, 1), ("complex128", 40, 8, 0), ("float32", 5, 8, 1), ("complex64", 33, 2, 1),
        ("float64", 1, 2, 0),
    ):  # fmt: skip
        factor._SIDES = 7 if n > 30 else 2048  # few right-hand sides at a time
        check(of_torch(places, "cpu", axis), dtype, n, (places, axis), host=on_host)
    check_failures(of_torch(4, "cpu"), 12)
    # column-major blocks, and a right-hand side in blocks
    x = random("float64", 12, 12)
    a = DeviceMatrix.from_blocks([torch.from_numpy(part.T.copy()).T for part in np.split(x, 3)])
    b = of_torch(2, "cpu")(random("float64", 12, 2))
    solution = lw.solve(a, b)
    assert isinstance(solution, DeviceMatrix) and solution.layout == b.layout
    close(x @ solution.gather(), b.gather(), 1e-12, "blocks of b")
    assert isinstance(lw.solve(a, torch.ones(12, dtype=torch.float64)), torch.Tensor)
    assert lw.solve(a, torch.ones(12)).dtype == torch.float64
    print(lw.explain(lw.eigh, a))
    check_kernel_tools(torch)


def check_kernel_tools(torch):
    """As many GPUs as are asked for; one, with a warning, where the library is missing."""
    from lapwing.compat.kernel_tools import linalg

    used = []
    split = DeviceMatrix.split
    DeviceMatrix.split = lambda a, devices: used.append(len(devices)) or split(a, devices)
    linalg._gpus = lambda torch, most: [torch.device("cpu")] * min(most, 4)
    a = random("float64", 13, 13)
    a = torch.from_numpy(a + a.T)
    for most, count in ((16, 4), (3, 3), (2, 2)):
        w, v = linalg.cusolver_mg_eigh(a, max_num_devices=most)
        assert used.pop() == count and isinstance(w, torch.Tensor) and isinstance(v, torch.Tensor)
        close((a @ v).numpy(), (v * w).numpy(), 1e-12, "kernel_tools")
    held = a.clone()
    w, v = linalg.cusolver_mg_eigh(held, overwrite_a=True, max_num_devices=2)
    assert v.data_ptr() == held.data_ptr()
    close((a @ v).numpy(), (v * w).numpy(), 1e-12, "kernel_tools")
    linalg._missing = lambda: "distributed: libcusolverMg.so.12 cannot be loaded"
    linalg._roomiest = lambda torch, devices: devices[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        linalg.cusolver_mg_eigh(a)
    (text,) = (str(each.message) for each in caught)
    assert "4 GPUs were asked for, but only one is used: libcusolverMg" in text and "hint: pip install" in text
    DeviceMatrix.split = split


def cupy_checks():
    from distributed import stand_in_cupy

    stand_in_cupy.install()
    array = stand_in_cupy.array

    def split(a):
        return DeviceMatrix.from_blocks([array(np.ascontiguousarray(part)) for part in np.array_split(a, 3)])

    check(split, "complex128", 17, "cupy", host=on_host)
    assert type(lw.cholesky(split(np.eye(4))).blocks[0]) is stand_in_cupy.ndarray


def jax_checks(everything=False):
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from lapwing.compat import jaxmg
    from lapwing.distributed.fronts import jax as front

    jax.config.update("jax_enable_x64", True)
    seen = front.on_gpus
    front.on_gpus = lambda where: where.num_devices > 1  # the stand-in takes the host's memory

    def mesh_of(*shape):
        return Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), ("x", "y")[: len(shape)])

    for dtype, shape, spec in (
        ("float64", (8,), P("x", None)), ("complex128", (8,), P(None, "x")), ("float64", (2, 2), P("y", "x")),
        ("complex64", (2, 2), P(("x", "y"), None)),
    ):  # fmt: skip
        if not everything:
            break
        mesh, n = mesh_of(*shape), 24

        def put(a, spec=spec, mesh=mesh):
            return jax.device_put(a, NamedSharding(mesh, spec))

        check(put, dtype, n, spec)
        a = put(random(dtype, n, n))
        for b in (np.ones((n, 2), dtype), put(np.ones((n, 8), dtype), P("x", None)), put(np.ones(n, dtype), P("x"))):
            x = lw.solve(a, b)
            close(np.asarray(a) @ np.asarray(x), np.asarray(b), 1e-2, "placed")
            assert not isinstance(b, jax.Array) or x.sharding == b.sharding
    # the planner chooses it, for JAXMg's names too
    mesh = mesh_of(2)
    h = random("float64", 16, 16)
    h = jax.device_put(h + h.T, NamedSharding(mesh, P("x", None)))
    assert lw.explain(lw.eigh, h).engine == "cusolvermg" and lw.explain(lw.svd, h).engine == "xla"
    lines = []
    logger, handler = logging.getLogger("lapwing"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel("INFO")
    w, v, info = jaxmg.syevd(h, 2, mesh=mesh, in_specs=P("x", None), return_status=True)
    assert info == 0 and v.sharding.spec == P(None, "x") and lines[0].startswith("eigh: cusolvermg, 16 x 16"), lines
    close(np.asarray(h) @ np.asarray(v), np.asarray(v) * np.asarray(w), 1e-12, "syevd")
    x = lw.solve(h, np.ones(16))
    close(np.asarray(h) @ np.asarray(x), np.ones(16), 1e-10, "solve")
    f = lw.factor(h @ h + jax.numpy.eye(16), assume="pos", engine="cusolvermg")
    close(np.asarray(f.l), np.linalg.cholesky(np.asarray(h) @ np.asarray(h) + np.eye(16)), 1e-12, "factor")
    assert repr(f).endswith("cusolvermg on 2 GPUs of one process)"), f
    front.on_gpus = seen
    assert lw.explain(lw.eigh, h).engine == "xla"


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    {"torch": torch_checks, "cupy": cupy_checks, "jax": jax_checks, "jax-all": lambda: jax_checks(True)}[sys.argv[1]]()
    print("done")
