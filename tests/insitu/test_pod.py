"""POD and DMD as analyses of a run."""

from __future__ import annotations

import numpy as np
import pytest

from insitu.cases import EPS, PRINTED, SIGMA, burgers, run, with_spectrum
from lapwing import insitu

FAST = 10.0 ** -np.arange(0.0, 10.0, 0.5)


def test_published_case():
    history = burgers()
    assert f"{history[-1][10]:.6g}" == PRINTED
    pod = insitu.POD("u", rank=10)
    hub = run([pod], history[:, 1:-1])
    assert hub.errors == 0 and len(pod.steps) == 2001
    assert pod.sigma[:8] == pytest.approx(SIGMA[:8], rel=5e-9)
    assert np.abs(pod.coefficients @ pod.modes() - history[:, 1:-1]).max() < 2e-3
    assert "energy" in hub.summary() and "at most" in pod.summary()
    status = hub.status()
    assert status["sigma"][0] == pytest.approx(SIGMA[0]) and 0 < status["bound"] < 1e-5 and status["energy"] <= 1


def test_the_solver_may_overwrite_its_field():
    a = with_spectrum(50, 100, FAST)
    pod = insitu.POD("u", rank=6)
    run([pod], a)  # spoils each field after its step
    assert pod.sigma == pytest.approx(np.linalg.svd(a, compute_uv=False)[:6], abs=1e-13)


@pytest.mark.parametrize("order", ["C", "F", "strided", "negative"])
def test_fields_together_in_any_order(order):
    a = with_spectrum(40, 2 * 12 * 9 + 5, FAST)
    pod = insitu.POD("u", "v", "p", rank=5)
    with insitu.Hub([pod], output=None, quiet=True) as hub:
        for n, x in enumerate(a):
            u, v, p = x[:108].reshape(12, 9), x[108:216].reshape(12, 9), x[216:]
            if order == "F":
                u, v = np.asfortranarray(u), np.asfortranarray(v)
            elif order == "strided":
                u = np.repeat(np.repeat(u, 2, axis=0), 3, axis=1)[::2, ::3]
            elif order == "negative":
                u = np.ascontiguousarray(u[::-1, ::-1])[::-1, ::-1]
            hub.step(n, 0.0, u=u, v=v, p=p)
    assert hub.errors == 0
    assert pod.sigma == pytest.approx(np.linalg.svd(a, compute_uv=False)[:5], abs=1e-13)
    assert pod.modes("u").shape == (5, 12, 9) and pod.modes("p").shape == (5, 5)
    whole = np.concatenate([pod.modes(f).reshape(5, -1) for f in ("u", "v", "p")], axis=1)
    assert np.abs(whole @ whole.T - np.eye(5)).max() < 100 * EPS
    with pytest.raises(ValueError, match="no field 'w'"):
        pod.modes("w")


def test_mesh_weights():
    a = with_spectrum(40, 64, FAST)
    w = np.linspace(1, 2, 64)
    by_array, by_mesh = insitu.POD("u", rank=4, weights=w), insitu.POD("u", rank=4, weights="mesh")
    by_dict = insitu.POD("u", rank=4, weights={"u": w})
    hub = run([by_array, by_mesh, by_dict], a, mesh={"weights": w})
    assert hub.errors == 0
    s = np.linalg.svd(a * np.sqrt(w), compute_uv=False)[:4]
    for pod in (by_array, by_mesh, by_dict):
        assert pod.sigma == pytest.approx(s, abs=1e-13)
    spaced = insitu.POD("u", rank=4, weights="mesh")
    run([spaced], a, mesh={"spacing": (0.25,)})
    assert spaced.sigma == pytest.approx(0.5 * np.linalg.svd(a, compute_uv=False)[:4], abs=1e-13)


@pytest.mark.parametrize(
    ("weights", "words"), [(-1.0, "positive"), (np.ones(3), "do not fit"), ("mesh", "mesh"), ("no", "'no'")]
)
def test_bad_weights(weights, words):
    hub = run([insitu.POD("u", weights=weights)], np.ones((3, 64)))
    assert hub.errors == 1 and words in hub.last_error


def test_nan_is_named():
    a = with_spectrum(64, 30, FAST)
    a[37, 4] = np.nan
    pod = insitu.POD("v", rank=4, block=16)
    hub = run([pod], a, name="v")
    assert hub.errors == 1
    assert "step 37" in hub.last_error and "'v'" in hub.last_error
    # going on after it: only that snapshot is missing
    pod = insitu.POD("v", rank=4, block=16)
    hub = run([pod], a, name="v", on_error="warn")
    assert hub.errors == 1 and len(pod.steps) == 63 and 37 not in pod.steps
    s = np.linalg.svd(np.delete(a, 37, axis=0), compute_uv=False)
    assert pod.sigma == pytest.approx(s[:4], abs=1e-13)
    assert pod.coefficients.shape == (63, 4)


def test_a_field_that_changes():
    pod = insitu.POD("u", rank=2)
    with insitu.Hub([pod], output=None, quiet=True, on_error="warn") as hub:
        hub.step(0, 0.0, u=np.ones(5))
        hub.step(1, 0.0, u=np.ones(6))
        assert "'u'" in hub.last_error and "(6,)" in hub.last_error and "(5,)" in hub.last_error and "step 1" in hub.last_error
        hub.step(2, 0.0, u=np.ones(5) * 1j)
        assert "complex" in hub.last_error
        hub.step(3, 0.0, u=np.ones(5))
    assert hub.errors == 2 and pod.steps == [0, 3] and pod.sigma == pytest.approx([np.sqrt(10)])


def test_nothing_at_all():
    pod = insitu.POD("u", rank=2)
    with insitu.Hub([pod], output=None, quiet=True) as hub:
        pass
    assert hub.errors == 0 and pod.rank == 0 and pod.energy == 1 and pod.steps == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "bool", "complex64"])
def test_types(dtype):
    a = (10 * with_spectrum(30, 40, FAST)).astype(dtype)
    pod = insitu.POD("u", rank=3)
    hub = run([pod], a)
    assert hub.errors == 0, hub.last_error
    wide = a.astype(np.complex128 if a.dtype.kind == "c" else float)
    s = np.linalg.svd(wide, compute_uv=False)
    eps = 1e-5 if dtype in ("float16", "float32", "complex64") else 1e-12
    assert pod.sigma == pytest.approx(s[: pod.rank], abs=eps * s[0])


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)
    a = with_spectrum(50, 100, FAST, "float32")
    pod = insitu.POD("u", rank=3)
    with insitu.Hub([pod], output=None, quiet=True) as hub:
        for n, x in enumerate(a):
            hub.step(n, 0.0, u=module.from_numpy(x) if library == "torch" else module.numpy.asarray(x))
    assert hub.errors == 0, hub.last_error
    assert pod.sigma == pytest.approx(np.linalg.svd(a, compute_uv=False)[:3], abs=1e-6)


def test_without_right_vectors():
    pod = insitu.POD("u", rank=2, right=False)
    run([pod], with_spectrum(30, 40, FAST))
    assert pod.coefficients is None and pod.stream.factors == []


# ----------------------------------------------------------------------------------------------------------------- DMD


def oscillators(noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Three decaying travelling patterns: eigenvalues exp((g + i w) dt) and their conjugates."""
    rng = np.random.default_rng(3)
    rates = np.array([-0.1 + 3j, -0.05 + 7j, 0.02 + 11j])
    shapes = np.linalg.qr(rng.standard_normal((400, 6)))[0].T
    t = 0.01 * np.arange(300)
    parts = np.exp(np.outer(t, rates)) * [3.0, 2.0, 1.0]
    a = parts.real @ shapes[:3] + parts.imag @ shapes[3:]
    return a + noise * rng.standard_normal(a.shape), rates


@pytest.mark.parametrize("noise", [0.0, 1e-6])
@pytest.mark.parametrize("shared", [False, True])
def test_dmd_against_a_direct_one(noise, shared):
    a, rates = oscillators(noise)
    pod = insitu.POD("u", rank=6)
    dmd = insitu.DMD(pod) if shared else insitu.DMD("u", modes=6)
    run([pod, dmd] if shared else [dmd], a)
    # on the full history
    u, s, vh = np.linalg.svd(a[:-1].T, full_matrices=False)
    u, s, vh = u[:, :6], s[:6], vh[:6]
    direct = np.linalg.eigvals(u.T @ a[1:].T @ vh.T / s)
    order = np.lexsort((direct.real, direct.imag))
    mine = dmd.eigenvalues[np.lexsort((dmd.eigenvalues.real, dmd.eigenvalues.imag))]
    assert mine == pytest.approx(direct[order], abs=1e-11 if not noise else 1e-7)
    assert sorted(np.abs(dmd.frequencies[dmd.frequencies > 0])) == pytest.approx(
        rates.imag / (2 * np.pi), abs=1e-10 + 1e2 * noise
    )
    assert sorted(dmd.growth[dmd.frequencies > 0]) == pytest.approx(sorted(rates.real), abs=1e-9 + 1e3 * noise)
    # amplitudes and modes give the first snapshot, and the last one
    modes = dmd.modes("u")
    for n in (0, 299):
        rebuilt = (dmd.amplitudes * dmd.eigenvalues**n) @ modes
        assert np.abs(rebuilt - a[n]).max() < 1e-9 + 1e3 * noise


def test_dmd_needs_equal_times():
    dmd = insitu.DMD("u", modes=2)
    with insitu.Hub([dmd], output=None, quiet=True) as hub:
        for n in range(20):
            hub.step(n, 0.01 * n**2, u=np.sin(np.arange(10) + n))
    assert hub.errors == 1 and "equally spaced" in hub.last_error


def test_dmd_of_nothing():
    dmd = insitu.DMD("u", modes=2)
    hub = run([dmd], np.zeros((5, 10)))
    assert hub.errors == 0 and dmd.eigenvalues.size == 0


def test_a_first_snapshot_with_nan_spoils_no_other():
    rng = np.random.default_rng(0)
    pod = insitu.POD("u", rank=2, centre=True)
    with insitu.Hub([pod], output=None, quiet=True, on_error="warn") as hub:
        for n in range(16):
            u = rng.standard_normal(9)
            if n == 0:
                u[4] = np.nan
            hub.step(n, 0.0, u=u)
    assert list(pod.steps) == list(range(1, 16))


@pytest.mark.parametrize("scale", [1e-200, 1e-160])
def test_numbers_too_small_to_be_squared_are_refused(scale):
    rng = np.random.default_rng(0)
    pod = insitu.POD("u", rank=2, block=4)
    with insitu.Hub([pod], output=None, quiet=True) as hub:
        for n in range(8):
            hub.step(n, 0.0, u=scale * rng.standard_normal(50))
    assert hub.errors == 1 and "too small" in hub.last_error
