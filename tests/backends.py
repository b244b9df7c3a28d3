"""The array libraries a test runs on, and matrices with known answers."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Backend:
    """How to move a NumPy array to one library and device, and back."""

    name: str
    device: str
    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]


@contextlib.contextmanager
def open_backend(name: str, device: str) -> Iterator[Backend]:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "numpy":
        yield Backend(name, device, np.asarray, np.asarray)
    elif name == "torch":
        import torch

        yield Backend(name, device, lambda x: torch.from_numpy(np.array(x)).to(device), lambda x: x.detach().cpu().numpy())
    elif name == "cupy":
        import cupy

        yield Backend(name, device, cupy.asarray, cupy.asnumpy)
    elif name == "tensorflow":
        import tensorflow as tf

        yield Backend(name, device, tf.constant, lambda x: x.numpy())
    else:
        import jax

        place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
        with x64(), jax.default_device(place):
            yield Backend(name, device, lambda x: jax.device_put(x, place), np.asarray)


def x64() -> Any:
    """64-bit JAX types for one test, without touching the process-wide flag."""
    import jax

    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def _param(name: str, device: str) -> Any:
    return pytest.param((name, device), id=f"{name}-{device}", marks=[pytest.mark.gpu] if device == "cuda" else [])


CPU = [_param(name, "cpu") for name in ("numpy", "torch", "jax", "tensorflow")]
GPU = [_param(name, "cuda") for name in ("torch", "jax", "cupy")]


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def hermitian(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random Hermitian matrices."""
    x = random(shape, "complex128" if dtype.startswith("complex") else "float64", seed)
    return ((x + x.swapaxes(-1, -2).conj()) / 2).astype(dtype)


def spd(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random Hermitian positive definite matrices, well conditioned."""
    wide = "complex128" if dtype.startswith("complex") else "float64"
    x = random(shape, wide, seed)
    a = x @ x.swapaxes(-1, -2).conj() + shape[-1] * np.eye(shape[-1])
    a = (a + a.swapaxes(-1, -2).conj()) / 2
    return a.astype(dtype)


def poison(a: np.ndarray, upper: bool) -> np.ndarray:
    """The same matrices with NaN in the triangle that must not be read."""
    unread = np.tril(np.ones(a.shape[-2:], bool), -1) if upper else np.triu(np.ones(a.shape[-2:], bool), 1)
    return np.where(unread, np.array(np.nan, a.dtype), a)


def residual(a: np.ndarray, factor: np.ndarray, upper: bool) -> float:
    """max |A - L L^H| / (n eps max |A|), in twice the precision."""
    n = a.shape[-1]
    eps = np.finfo(a.dtype).eps
    wide = "complex128" if a.dtype.kind == "c" else "float64"
    l = factor.astype(wide)
    l = l.swapaxes(-1, -2).conj() if upper else l
    product = l @ l.swapaxes(-1, -2).conj()
    return float(np.max(np.abs(product - a), initial=0) / (max(n, 1) * eps * np.max(np.abs(a), initial=1)))


def other_triangle(factor: np.ndarray, upper: bool) -> np.ndarray:
    return np.tril(factor, -1) if upper else np.triu(factor, 1)
