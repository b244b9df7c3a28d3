"""What calls on JAX matrices over several devices check before the work, and the errors after it."""

from __future__ import annotations

import logging
from typing import Any

from ...core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError
from ...ops.checks import check_choice, check_flag, check_square
from ...ops.solve import ASSUME, ONE_TRIANGLE
from ..placement import Placement
from .engines import refuse

__all__ = ["OTHERS", "check_assumed", "check_engine", "check_fail", "check_system", "raise_if_failed", "say_sharded"]

_log = logging.getLogger("lapwing")
OTHERS = "\nhint: the engines scalapack (pip install mkl mpich mpi4py) and cusolvermp have it, with one process per device"


def check_assumed(name: str, where: Placement, a: Any, assume: str, upper: Any, engine: str) -> bool:
    """``upper`` as a bool."""
    check_choice(name, "assume", assume, ASSUME)
    upper = check_flag(name, "upper", upper)
    if upper and assume not in ONE_TRIANGLE:
        raise ValueError(f"{name}: upper=True has no meaning with assume={assume!r}")
    check_system(name, where, a, engine)
    return bool(upper)


def check_system(name: str, where: Placement, a: Any, engine: str) -> None:
    check_square(name, tuple(a.shape), str(a.dtype))
    check_engine(name, a, engine)
    say_sharded(name, where, a)


def check_engine(name: str, a: Any, engine: str) -> None:
    if len(a.shape) > 2:
        raise ValueError(
            f"{name}: the matrices of a batch of shape {tuple(a.shape)} are split over devices"
            "\nhint: split the batch instead, or call once for each matrix"
        )
    if engine not in ("auto", "sharded"):
        refuse(name, engine, "matrix split over JAX devices", "engine='sharded'")


def say_sharded(name: str, where: Placement, a: Any) -> None:
    if _log.isEnabledFor(logging.INFO):
        grid = where.grid
        _log.info(
            "%s: sharded, %s %s over %d x %d devices, because the matrix is split", name, a.shape, a.dtype, grid.p, grid.q
        )


def check_fail(name: str, on_fail: str) -> None:
    check_choice(name, "on_fail", on_fail, ("raise", "nan"))


def raise_if_failed(name: str, a: Any, info: Any, on_fail: str, assume: str, upper: bool | None) -> None:
    from ..backends.xla.layout import in_mesh
    from . import jax_sharding

    if on_fail != "raise" or jax_sharding.traced(a) or jax_sharding.traced(info):
        return
    at = jax_sharding.status(info)
    if not at:
        return
    read = upper if assume in ONE_TRIANGLE else {"lower": False, "upper": True}.get(assume)
    with in_mesh(a.sharding.mesh):
        nonfinite = not jax_sharding.all_finite(a, read)
    if assume == "pos":
        raise NotPositiveDefiniteError(name, minor=at, nonfinite=nonfinite)
    if assume:
        raise SingularMatrixError(name, pivot=at, nonfinite=nonfinite)
    raise ConvergenceError(name, nonfinite=nonfinite)
