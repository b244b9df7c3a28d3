"""The engines for matrices over several devices: what they are, what they take, and why one cannot be used here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from ...core.engines import ENGINES

__all__ = ["SEVERAL", "Distributed"]

_SYSTEMS = ("cholesky", "factor", "inv", "slogdet", "solve")
_SPECTRA = ("eigh", "eigvalsh", "lstsq", "qr", "svd", "svdvals")


@dataclass(frozen=True)
class Distributed:
    """``missing(device)`` is "" or a reason."""

    name: str
    what: str
    takes: str
    devices: tuple[str, ...]
    operations: tuple[str, ...]
    missing: Callable[[str], str]


def _scalapack(device: str) -> str:
    from .scalapack import library as scalapack_library

    return scalapack_library.missing()


def _elpa(device: str) -> str:
    from . import elpa

    # it works beside ScaLAPACK; without MPI its library is not even loaded
    return _scalapack(device) or elpa.missing()


def _cusolvermp(device: str) -> str:
    from .cusolvermp import library as cusolvermp_library

    return ENGINES["cusolver"].missing("cuda") or cusolvermp_library.missing()


def _jax(device: str) -> str:
    if importlib.util.find_spec("jax") is None:
        return "jax is not installed"
    return ENGINES["cusolver"].missing("cuda") if device == "cuda" else ""


SEVERAL = (
    Distributed(
        "scalapack",
        "ScaLAPACK over MPI, one process per rank",
        "ShardedMatrix, DTensors, JAX arrays over processes",
        ("cpu",),
        (*_SYSTEMS, *_SPECTRA, "polar"),
        _scalapack,
    ),
    Distributed("elpa", "ELPA over MPI", "ShardedMatrix", ("cpu",), ("eigh", "eigvalsh"), _elpa),
    Distributed(
        "cusolvermp",
        "cuSOLVERMp, one process per GPU",
        "ShardedMatrix, DTensors (not factor), JAX arrays over processes (not factor)",
        ("cuda",),
        (*_SYSTEMS, *_SPECTRA, "polar"),
        _cusolvermp,
    ),
    Distributed(
        "sharded",
        "blocked algorithms inside XLA",
        "JAX arrays with a NamedSharding; qr, svd, lstsq, polar of long and narrow ones",
        ("cpu", "cuda"),
        (*_SYSTEMS, "lstsq", "polar", "qr", "svd", "svdvals"),
        _jax,
    ),
)
