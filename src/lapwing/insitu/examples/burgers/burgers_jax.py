"""burgers.cpp with JAX: a solver in Python, which passes its arrays to the hub.

python burgers_jax.py [folder for the results]
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from burgers_analysis import analyses

from lapwing import insitu

NX, DT, END, NU = 256, 0.001, 2.0, 0.01
PI = 3.1415926535  # the original's
H = 2 * PI / NX
C1, C2 = DT / (2 * H), DT * NU / (H * H)


@partial(jax.jit, donate_argnums=0)
def advance(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step: the array with its ghosts, and without."""
    inner = u[1:-1] + C2 * (u[2:] - 2.0 * u[1:-1] + u[:-2]) - u[1:-1] * C1 * (u[2:] - u[:-2])
    # the ghost points are one step late, as in the original
    return jnp.concatenate([u[-2:-1], inner, u[1:2]]), inner


def main(output: str = "insitu") -> float:
    jax.config.update("jax_enable_x64", True)
    start = np.sin(2.0 * (np.arange(NX + 2) - 1) * PI / NX)
    start[0], start[-1] = start[NX], start[1]
    u, t, n = jnp.asarray(start), 0.0, 0
    mesh = insitu.Mesh(global_shape=(NX,), spacing=(H,))
    with insitu.Hub(analyses(), output=output, mesh=mesh) as hub:
        while t < END:
            u, inner = advance(u)
            t += DT
            stop = hub.step(n, t, u=inner) == 2
            n += 1
            if stop:
                break
        print(f"{n} steps, t = {t!r}")
        print(f"A random value in the solution array: {float(u[10]):g}", flush=True)
    return float(u[10])


if __name__ == "__main__":
    main(*sys.argv[1:])
