"""burgers.cpp with NumPy: for machines without a compiler.

python burgers_numpy.py [folder for the results]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from burgers_analysis import analyses

from lapwing import insitu

NX, DT, END, NU = 256, 0.001, 2.0, 0.01
PI = 3.1415926535  # the original's
H = 2 * PI / NX
C1, C2 = DT / (2 * H), DT * NU / (H * H)
MESH = insitu.Mesh(global_shape=(NX,), spacing=(H,))


def first_values() -> np.ndarray:
    u = np.sin(2.0 * (np.arange(NX + 2) - 1) * PI / NX)
    u[0], u[-1] = u[NX], u[1]
    return u


def steps() -> Iterator[np.ndarray]:
    """The values after each step, without the ghost points."""
    u = first_values()
    new = np.empty_like(u)
    while True:
        new[1:-1] = u[1:-1] + C2 * (u[2:] - 2.0 * u[1:-1] + u[:-2]) - u[1:-1] * C1 * (u[2:] - u[:-2])
        # the ghost points are one step late, as in the original
        new[0], new[-1] = u[-2], u[1]
        u, new = new, u
        yield u[1:-1]


def run(fields: Iterator[Any], output: str = "insitu") -> float:
    """Pass the values of each step to the hub, until the end or until an analysis asks to stop."""
    t, n, stop = 0.0, 0, False
    with insitu.Hub(analyses(), output=output, mesh=MESH) as hub:
        while t < END and not stop:
            u = next(fields)
            t += DT
            stop = hub.step(n, t, u=u) == 2
            n += 1
        print(f"{n} steps, t = {t!r}")
        print(f"A random value in the solution array: {float(u[9]):g}", flush=True)
    return float(u[9])


if __name__ == "__main__":
    run(steps(), *sys.argv[1:])
