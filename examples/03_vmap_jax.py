"""vmap over matrices runs one batched kernel; grad and jit work as usual."""

import jax
import jax.numpy as jnp

import lapwing as lw

key = jax.random.key(0)
x = jax.random.normal(key, (500, 6, 6))
a = x @ jnp.swapaxes(x, -1, -2) + 6 * jnp.eye(6)


def half_logdet(matrix):
    return jnp.sum(jnp.log(jnp.diagonal(lw.cholesky(matrix))))


values, gradients = jax.jit(jax.vmap(jax.value_and_grad(half_logdet)))(a)
error = jnp.abs(gradients - jnp.linalg.inv(a) / 2).max()
print(f"{values.shape[0]} log-determinants and gradients; largest difference from the inverse: {error:.1e}")
assert error < 1e-4
