"""What takes the place of each public function for a ShardedMatrix."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import frameworks
from ...ops import cholesky as _cholesky
from ...ops import eigh as _eigh
from ...ops import factor as _factor
from ...ops import lstsq as _lstsq
from ...ops import qr as _qr
from ...ops import solve as _solve
from ...ops import svd as _svd
from ..matrix import ShardedMatrix
from . import spectra, systems
from .engines import on_ranks
from .factor import LoneFactor, as_given
from .factor import beside as _beside
from .status import status_calls

__all__ = [
    "cholesky",
    "cholesky_ex",
    "eigh",
    "eigh_ex",
    "eigvalsh",
    "factor",
    "inv",
    "inv_ex",
    "lstsq",
    "polar",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "svd",
    "svdvals",
]


def _or_alone(plain: Callable[..., Any], sharded: Callable[..., Any], results: str) -> Callable[..., Any]:
    """On one rank the ordinary function; ``results`` tells what is made of each of its results.

    "m": a sharded matrix, "x": as ``b`` was given, "v": left as it is.
    """
    work = plain.__wrapped__  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def call(a: ShardedMatrix, /, *args: Any, **options: Any) -> Any:
        engine = on_ranks(a, options.get("engine"))
        if engine == "cusolvermp":
            from . import gpu as sharded_gpu

            return sharded_gpu.call(plain.__name__, results, a, *args, **options)
        if engine == "scalapack":
            return sharded(a, *args, **options)
        given = [_beside(a, _local(x)) for x in args]
        made = work(a.local, *given, **{name: _local(x) for name, x in options.items()})

        def wrapped(kind: str, x: Any) -> Any:
            if kind == "v":  # on the host, as with more ranks
                return x if x is None or not a.on_gpu else frameworks.of(x, plain.__name__).to_numpy(x)[()]
            if kind == "x" and not isinstance(args[0], ShardedMatrix):
                return as_given(x, args[0])
            like = a if kind == "m" else args[0]
            return ShardedMatrix(x if a.on_gpu else np.asarray(x), like.layout.of_shape(tuple(x.shape)), a.ranks)

        if len(results) == 1:
            return wrapped(results, made)
        return type(made)(*[wrapped(kind, x) for kind, x in zip(results, made, strict=True)])

    return call


def _local(x: Any) -> Any:
    return x.local if isinstance(x, ShardedMatrix) else x


cholesky = _or_alone(_cholesky.cholesky, systems.cholesky, "m")
solve = _or_alone(_solve.solve, systems.solve, "x")
inv = _or_alone(_solve.inv, systems.inv, "m")
slogdet = _or_alone(_solve.slogdet, systems.slogdet, "vv")
eigh = _or_alone(_eigh.eigh, spectra.eigh, "vm")
eigvalsh = _or_alone(_eigh.eigvalsh, spectra.eigvalsh, "v")
svd = _or_alone(_svd.svd, spectra.svd, "mvm")
svdvals = _or_alone(_svd.svdvals, spectra.svdvals, "v")
polar = _or_alone(_svd.polar, spectra.polar, "mm")
qr = _or_alone(_qr.qr, spectra.qr, "mm")
lstsq = _or_alone(_lstsq.lstsq, spectra.lstsq, "xvvv")


def factor(a: ShardedMatrix, /, **options: Any) -> Any:
    engine = on_ranks(a, options.get("engine"))
    if engine == "cusolvermp":
        from . import gpu as sharded_gpu

        return sharded_gpu.factor(a, **options)
    if engine == "scalapack":
        return systems.factor(a, **options)
    return LoneFactor(_factor.factor.__wrapped__(a.local, **options), a)  # type: ignore[attr-defined]


cholesky_ex, solve_ex, inv_ex, eigh_ex = status_calls(cholesky, factor, eigh)
