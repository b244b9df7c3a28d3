"""burgers.cpp with JAX: a solver in Python, which passes its arrays to the hub.

python burgers_jax.py [folder for the results]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from burgers_numpy import C1, C2, first_values, run


@partial(jax.jit, donate_argnums=0)
def advance(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step: the array with its ghosts, and without."""
    inner = u[1:-1] + C2 * (u[2:] - 2.0 * u[1:-1] + u[:-2]) - u[1:-1] * C1 * (u[2:] - u[:-2])
    # the ghost points are one step late, as in the original
    return jnp.concatenate([u[-2:-1], inner, u[1:2]]), inner


def steps() -> Iterator[jax.Array]:
    """The values after each step, without the ghost points."""
    jax.config.update("jax_enable_x64", True)
    u = jnp.asarray(first_values())
    while True:
        u, inner = advance(u)
        yield inner


if __name__ == "__main__":
    run(steps(), *sys.argv[1:])
