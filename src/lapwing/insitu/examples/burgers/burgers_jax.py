"""burgers.cpp with JAX: a solver in Python, which passes its arrays to the hub.

python burgers_jax.py [folder for the results]
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
from burgers_analysis import analyses
from burgers_numpy import C1, C2, DT, END, MESH, first_values

from lapwing import insitu


@partial(jax.jit, donate_argnums=0)
def advance(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step: the array with its ghosts, and without."""
    inner = u[1:-1] + C2 * (u[2:] - 2.0 * u[1:-1] + u[:-2]) - u[1:-1] * C1 * (u[2:] - u[:-2])
    # the ghost points are one step late, as in the original
    return jnp.concatenate([u[-2:-1], inner, u[1:2]]), inner


def main(output: str = "insitu") -> float:
    jax.config.update("jax_enable_x64", True)
    u, t, n, stop = jnp.asarray(first_values()), 0.0, 0, False
    with insitu.Hub(analyses(), output=output, mesh=MESH) as hub:
        while t < END and not stop:
            u, inner = advance(u)
            t += DT
            stop = hub.step(n, t, u=inner) == 2
            n += 1
        print(f"{n} steps, t = {t!r}")
        print(f"A random value in the solution array: {float(u[10]):g}", flush=True)
    return float(u[10])


if __name__ == "__main__":
    main(*sys.argv[1:])
