"""2-D Burgers' equation with a history that does not fit in memory: the POD is computed while it runs.

    python burgers_2d.py --memory 200            streams, and stays within 200 MB
    python burgers_2d.py --memory 200 --store    keeps every snapshot for numpy.linalg.svd: MemoryError
    python burgers_2d.py --store                 the same without a limit: the reference

(u, v)_t + u (u, v)_x + v (u, v)_y = nu laplacian (u, v), periodic on [0, 2 pi)^2: central differences, forward Euler.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from lapwing import insitu

STEPS = 2  # of the solver between two snapshots


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    spacing = 2 * np.pi / options.points
    run = burgers(options.points, options.snapshots, options.jax)
    # memory of the solver and of the BLAS library is allocated first and not counted
    first = next(run)
    np.ones((512, 512)) @ np.ones((512, 512))
    before = _peak_mb()
    history_mb = options.snapshots * 2 * options.points**2 * 8 / 1e6
    print(f"{options.snapshots} snapshots of 2 x {options.points} x {options.points} numbers: {history_mb:.0f} MB", flush=True)
    if options.memory is not None:
        limit_memory(options.memory)
    if options.store:
        return store(first, run, options, before)

    pod = insitu.POD("u", "v", rank=options.modes, weights="mesh")
    mesh = insitu.Mesh(global_shape=(options.points,) * 2, spacing=(spacing,) * 2)
    analyses = [pod, insitu.Stats("u", "v"), insitu.Progress(options.snapshots, seconds=2.0)]
    if options.output is not None:
        analyses.append(insitu.Writer(pod))
    # a run with a failed analysis must not look like a success
    with insitu.Hub(analyses, output=options.output, on_error="stop", mesh=mesh) as hub:
        for n, (t, u, v) in enumerate(chain([first], run)):
            if hub.step(n, t, u=u, v=v) == 2:
                break
    if hub.errors:
        return 1
    extra = _peak_mb() - before
    print("singular values", *(f"{value:.12g}" for value in pod.sigma))
    print(f"energy in {pod.rank} modes: {pod.energy:.10f}")
    print(f"error of a singular value: at most {pod.bound:.3g}, which is {pod.bound / pod.sigma[0]:.2g} of the first")
    print(f"extra memory: {extra:.0f} MB; the history would take {history_mb:.0f}")
    return 0


def burgers(points: int, snapshots: int, with_jax: bool = False) -> Iterator[tuple[float, Any, Any]]:
    """Time, u and v of each snapshot."""
    h = 2 * np.pi / points
    nu = 0.6 * h  # the steepest fronts are resolved: the cell Reynolds number is below 2
    dt = 0.2 * min(h, h * h / (4 * nu))
    x, y = np.meshgrid(*2 * (np.arange(points) * h,), indexing="ij")
    u = np.sin(x) * np.cos(y) + 0.3 * np.sin(x + 0.5) * np.cos(2 * y + 1)
    v = -np.cos(x) * np.sin(y) + 0.3 * np.sin(2 * x) * np.cos(y)
    advance = _with_jax(h, nu, dt) if with_jax else lambda u, v: step(np.roll, u, v, h, nu, dt)
    for n in range(snapshots):
        for _ in range(STEPS):
            u, v = advance(u, v)
        yield (n + 1) * STEPS * dt, u, v


def step(roll: Callable[..., Any], u: Any, v: Any, h: float, nu: float, dt: float) -> tuple[Any, Any]:
    """One step; ``roll`` is NumPy's or JAX's."""

    def new(w: Any) -> Any:
        east, west, north, south = roll(w, -1, 0), roll(w, 1, 0), roll(w, -1, 1), roll(w, 1, 1)
        diffusion = (east + west + north + south - 4 * w) * (nu / h**2)
        return w + dt * (diffusion - (u * (east - west) + v * (north - south)) / (2 * h))

    return new(u), new(v)


def _with_jax(h: float, nu: float, dt: float) -> Callable[..., Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.jit(lambda u, v: step(jax.numpy.roll, u, v, h, nu, dt))


def limit_memory(mb: float) -> None:
    """Limit the memory that this process may allocate from now on, by its address space (Linux)."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + int(mb * 1e6), resource.RLIM_INFINITY))


def store(first: tuple[float, Any, Any], run: Iterator[tuple[float, Any, Any]], options: Any, before: float) -> int:
    """Keep everything, and decompose it at the end."""
    history: list[np.ndarray] = []
    scale = 2 * np.pi / options.points  # the square root of a cell's volume
    begin = time.perf_counter()
    try:
        for _, u, v in chain([first], run):
            history.append(scale * np.stack([u, v]).reshape(-1))
        sigma = np.linalg.svd(np.array(history), full_matrices=False)[1]
    except MemoryError as error:
        kept = len(history)
        history.clear()  # the message needs memory
        print(f"storing: MemoryError with {kept} of {options.snapshots} snapshots: {error}", file=sys.stderr)
        return 1
    print("singular values", *(f"{value:.12g}" for value in sigma[: options.modes]))
    print(f"extra memory: {_peak_mb() - before:.0f} MB; {time.perf_counter() - begin:.1f} s")
    return 0


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=256, help="in each direction (default 256)")
    parser.add_argument("--snapshots", type=int, default=600)
    parser.add_argument("--modes", type=int, default=20)
    parser.add_argument("--memory", type=float, metavar="MB", help="limit of the memory from the first snapshot on")
    parser.add_argument("--store", action="store_true", help="keep all snapshots instead")
    parser.add_argument("--jax", action="store_true", help="the solver in JAX instead of NumPy")
    parser.add_argument("--output", help="folder for the log and pod.npz")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
