"""Data with known answers for the in-situ tests."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from lapwing import insitu
from lapwing.insitu.analyses.blocks import BlockSVD, Decomposition
from lapwing.insitu.analyses.rows import Layout, make_rows

EPS = np.finfo(float).eps

# the published Burgers case: u[10] after 2001 steps as it is printed, the singular values of its history by LAPACK, and the
# error against the exact solution
PRINTED = "0.0733873"
SIGMA = [471.259287, 104.637607, 26.8645742, 8.45897393, 3.29372214, 1.30649948, 0.494681012, 0.185077677, 0.0690872733]
SIGMA += [0.0255615264]
ERRORS = {"0.500": 2.4e-4, "1.000": 1.1e-3, "1.500": 4.7e-2, "2.001": 5.0e-2}


def check_burgers(output: str, steps: int = 2001) -> None:
    """The output of an example solver against the published case."""
    assert f"{steps} steps" in output
    (value,) = re.findall(r"solution array: *([\d.]+)", output)
    assert value == PRINTED
    (sigma,) = re.findall(r"singular values (.*)", output)
    found = np.array([float(x) for x in sigma.split()])
    # nine digits are printed; the streamed values are off by 1e-8 of the first at most
    assert np.abs(found - SIGMA).max() <= 1e-8 * SIGMA[0] and np.allclose(found[:4], SIGMA[:4], rtol=2e-9, atol=0)
    errors = dict(re.findall(r"t = ([\d.]+): off the exact solution by ([\d.e+-]+)", output))
    assert {t: float(e) for t, e in errors.items()} == ERRORS


@lru_cache
def burgers() -> np.ndarray:
    """Its history, 2001 x 258 with ghost points: forward Euler, central differences, ghosts from the step before."""
    points, pi, dt, nu = 256, 3.1415926535, 0.001, 0.01
    h = 2 * pi / points
    u = np.sin(2.0 * (np.arange(points + 2) - 1) * pi / points)
    history, t = [], 0.0
    while not history or t < 2.0:
        new = u.copy()
        new[1:-1] = u[1:-1] + dt * nu / h**2 * (u[2:] - 2 * u[1:-1] + u[:-2]) - u[1:-1] * dt / (2 * h) * (u[2:] - u[:-2])
        new[0], new[-1] = u[-2], u[1]
        u = new
        history.append(u)
        t += dt
    made = np.array(history)
    made.flags.writeable = False
    return made


def with_spectrum(snapshots: int, points: int, sigma: np.ndarray, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    """A random history with these singular values."""
    rng = np.random.default_rng(seed)

    def orthonormal(rows: int) -> np.ndarray:
        x = rng.standard_normal((rows, len(sigma)))
        if np.dtype(dtype).kind == "c":
            x = x + 1j * rng.standard_normal(x.shape)
        return np.linalg.qr(x)[0]

    return (orthonormal(snapshots) * sigma @ orthonormal(points).conj().T).astype(dtype)


def stream(
    a: np.ndarray, library: str = "numpy", like: Any = None, scale: Any = None, **settings: Any
) -> tuple[BlockSVD, Decomposition]:
    """The streamed decomposition of the rows of ``a``."""
    made = BlockSVD(**settings)
    like = a if like is None else like
    layout = Layout.of(["a"], [a.shape[1:]], on_host=True)
    rows = make_rows(library, like, layout, made.capacity, np.dtype(str(a.dtype)))
    made.open(rows, None if scale is None else rows.vector([scale]))
    for i, x in enumerate(a):
        made.put(i, [_as(library, x)])
        if made.full:
            made.update()
    made.update()
    return made, made.result()


def _as(library: str, x: np.ndarray) -> Any:
    if library == "torch":
        import torch

        return torch.from_numpy(np.array(x))
    if library == "jax":
        import jax

        return jax.numpy.asarray(x)
    return x


def run(analyses: list[Any], history: Any, name: str = "u", **options: Any) -> insitu.Hub:
    """Hand a history to a hub, each step in the same memory, which is spoiled afterwards."""
    hub = insitu.Hub(analyses, **({"output": None, "quiet": True} | options))
    with hub:
        for n, x in enumerate(history):
            field = np.array(x)
            hub.step(n, 0.01 * n, **{name: field})
            field[...] = 7
    return hub
