"""DeviceMatrix as a kind of array: blocks on the GPUs of one process. JAX arrays on such GPUs pass through it too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ...core.memory import library_of
from ...core.problem import Spec
from ...core.request import RIGHT, Place, Request
from ..backends.choice import choose, explained
from ..backends.protocol import Array, check_right, columns_of, promote
from ..devices import DeviceMatrix
from ..layout import Axis, Layout
from ..ranks.protocol import Alone
from . import front

_log = logging.getLogger("lapwing")


class DevicesFront:
    sharded: Literal[True] = True

    def describe(self, a: DeviceMatrix, /) -> Spec:
        return Spec(a.shape, a.dtype.name, "cuda" if a.on_gpu else "cpu", a.layout)

    def call(self, function: Callable[..., Any], a: DeviceMatrix, b: Any = None, /, **options: Any) -> Any:
        name = function.__name__
        _check_place(name, a)
        if b is not None:
            _check_kind(name, a, b)
            a, b = promote(a, b, _cast)
        request = front.requested(function, self.describe(a), b, options)
        if RIGHT in request.places:
            check_right(name, self.describe(a), b)
        backend = choose(request, _array(a, self.describe(a), b))
        placing = Placing(a)
        return run(request, backend, placing, a, b)

    def explain(self, function: Callable[..., Any], a: Any, b: Any, ordinary: Callable[..., Any], /, **options: Any) -> Any:
        described = self.describe(a)
        _check_place(function.__name__, a)
        request = front.requested(function, described, b, options)
        if b is not None:
            check_right(request.name, described, Spec(tuple(b.shape), described.dtype))
        return explained(request, _array(a, described, b))


FRONT = DevicesFront()


def run(request: Request, backend: Any, placing: Any, a: Any, b: Any) -> Any:
    """Run a call of cuSOLVERMg and place its results."""
    backend.prepare(request, a)
    m, n = a.shape
    _log.info("%s: %s, %s x %s %s on %s GPUs of this process", request.name, backend.name, m, n, a.dtype, len(a.blocks))
    front.log_precision(request, backend)
    return front.run(request, backend, placing, a, b, [])


def _array(a: DeviceMatrix, described: Spec, b: Any) -> Array:
    library, size = library_of(a.blocks[0]), len(a.blocks)
    known: dict[str, Any] = {"mpi": False, "blocks": False, "columns": columns_of(b)}
    return Array("devices", a.shape, described.dtype, described.device, size, a.layout, library, **known)


class Placing:
    """Results that are matrices are divided like A; a solution is placed like its right-hand side."""

    ranks = Alone()

    def __init__(self, a: DeviceMatrix) -> None:
        self._like, self._first = Spec(a.shape, a.dtype.name, "cuda", a.layout), a.blocks[0][:0]
        self._devices = [_device(block) for block in a.blocks]
        self.where = f"{len(a.blocks)} GPUs of one process"

    def right(self, name: str, b: Any) -> DeviceMatrix:
        """The right-hand side on the first GPUs of A; an array of the host or of one GPU goes to the first."""
        _, b = promote(self._like, b, _cast, fixed=True)
        check_right(name, self._like, b)
        if isinstance(b, DeviceMatrix):
            if [_device(block) for block in b.blocks] != self._devices[: len(b.blocks)]:
                raise ValueError(
                    f"{name}: the blocks of b are on other GPUs than those of a"
                    "\nhint: DeviceMatrix.split(b, devices) with the devices of a; or pass b as one array"
                )
            return b
        sides = _put(b, self._first)
        sides = sides.reshape(len(b), -1)
        return DeviceMatrix([sides], Layout(Axis.whole(sides.shape[0]), Axis.whole(sides.shape[1])))

    def leave(self, x: Any, place: Place, b: Any) -> Any:
        if not isinstance(x, DeviceMatrix) or place is not RIGHT or isinstance(b, DeviceMatrix):
            return x
        return _put_back(x.blocks[0].reshape(tuple(b.shape)), b)


def _check_place(name: str, a: DeviceMatrix) -> None:
    if not a.on_gpu:
        raise ValueError(
            f"{name}: the blocks are on the host, and a DeviceMatrix is for several GPUs"
            "\nhint: on the host, use an ordinary array or a ShardedMatrix"
        )


def _check_kind(name: str, a: DeviceMatrix, b: Any) -> None:
    library = library_of(a.blocks[0])
    kind = library_of(b.blocks[0]) if isinstance(b, DeviceMatrix) else library_of(b)
    if kind not in (library, "numpy"):
        raise TypeError(f"{name}: a has blocks of {library} and b is of {kind}\nhint: use a DeviceMatrix, {library} or NumPy")


def _cast(x: Any, dtype: str) -> Any:
    if isinstance(x, (DeviceMatrix, np.ndarray)):
        return x.astype(dtype)
    from ..backends.cusolvermp.moves import astype

    return astype(x, np.dtype(dtype))


def _device(block: Any) -> Any:
    """The device of a block, in the words of its library."""
    if library_of(block) == "jax":
        (device,) = block.devices()
        return device
    return block.device


def _put(b: Any, like: Any) -> Any:
    """``b`` on the device of ``like``, as an array of its library."""
    library = library_of(like)
    if library == "torch":
        import torch

        return torch.as_tensor(b).detach().to(like.device)
    if library == "cupy":
        import cupy

        with like.device:
            return cupy.asarray(b)
    import jax

    return jax.device_put(b, _device(like))


def _put_back(x: Any, b: Any) -> Any:
    """The solution where its right-hand side is."""
    if isinstance(b, np.ndarray):
        return x.cpu().numpy() if library_of(x) == "torch" else x.get() if hasattr(x, "get") else np.asarray(x)
    return _put(x, b)
