"""Blocked algorithms inside XLA as a backend, and one device that works alone for calls without such an algorithm."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace
from typing import Any, NamedTuple

from ....core.errors import ConvergenceError, NotPositiveDefiniteError, SingularMatrixError, warn
from ....core.plan import bytes_in_words
from ....core.problem import ITEMSIZE
from ....core.request import MATRIX, ONE_TRIANGLE, Request
from ...cost import MACHINES, Cost
from ...placement import Placement
from ..gathered import free_memory, gathered_cost
from ..protocol import DETERMINANTS, Array, Backend, Support
from . import cost, panels

_log = logging.getLogger("lapwing")


class Spread(NamedTuple):
    """A JAX array and how it is split."""

    array: Any
    placement: Placement


class Xla(Backend):
    name, what = "xla", "blocked algorithms inside XLA"
    takes = "JAX arrays with a NamedSharding"
    devices, engines = ("cpu", "cuda"), ("xla", "sharded")  # the second is its older name
    sees = "arrays"
    operations = (*cost.BLOCKED, *cost.DENSE)

    def missing(self, device: str) -> str:
        return "jax is not installed" if importlib.util.find_spec("jax") is None else ""

    def refuses(self, array: Array) -> str:
        return "" if array.kind in ("jax", "spec") else "takes JAX arrays"

    def support(self, request: Request, array: Array) -> Support:
        reason, _ = _only_whole(request, array.traced)
        return Support(not reason, reason)

    def cost(self, request: Request, array: Array) -> Cost:
        shape, machine = array.shape, MACHINES[array.device]
        known: dict[str, Any] = {"machine": machine, "columns": array.columns}
        if request.operation in cost.DENSE:
            _check_long(request, *shape)
            model = cost.tall if _long(request, array) else cost.dense
            estimate = model(request.operation, shape, array.size, array.dtype, **known)
        else:
            if array.placement is not None:
                from . import calls

                known["cut"] = calls.cut_for(shape[0], array.placement.grid)
            estimate = cost.blocked(request.operation, shape[0], array.size, array.dtype, **known, assume=request.assume)
        return replace(estimate, operation=request.name, engine=self.name)

    def prepare(self, request: Request, a: Any) -> None:
        if request.operation in cost.DENSE:
            _check_long(request, *a.array.shape)

    def run(self, request: Request, a: Any, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        from . import handle

        array, where = a
        if _log.isEnabledFor(logging.INFO):
            text = "%s: xla, %s %s over %d x %d devices, because the matrix is split"
            _log.info(text, request.name, array.shape, array.dtype, where.grid.p, where.grid.q)
        if request.operation == "factor":
            factored = handle.FactoredPanels.of(request, where, array)
            _raise_if_failed(request, array, factored.info)
            return (factored,)
        *results, info = handle.ROUTINES[request.operation](request, where, array, b)
        if request.operation not in DETERMINANTS or request.assume == "pos":  # a singular matrix has a determinant
            _raise_if_failed(request, array, info)
        return (*results, info) if request.status else tuple(results)


class OneDevice(Backend):
    """The whole matrix on one device, if it fits; in traced code on every device."""

    name, what, takes = "gathered", "the ordinary engines on one device", "JAX arrays with a NamedSharding"
    devices, engines = ("cpu", "cuda"), ("xla", "sharded")
    sees, refines = "arrays", True

    def refuses(self, array: Array) -> str:
        return "" if array.kind in ("jax", "spec") else "takes JAX arrays"

    def cost(self, request: Request, array: Array) -> Cost:
        machine = MACHINES[array.device]
        if array.kind == "jax":
            _check_size(request, array.shape, array.dtype, array.traced)
            if array.device == "cpu":  # each device is all of the host
                machine = replace(machine, memory=float(free_memory()))
        note = f"to one device: {_only_whole(request, array.traced)[0]}"
        return gathered_cost(request, array, machine, note, panels.GATHER_LIMIT)

    def run(self, request: Request, a: Any, b: Any, ranks: list[Any]) -> tuple[Any, ...]:
        from ....frameworks.jax import traced
        from . import sharding
        from .layout import in_mesh

        name, array = request.name, a.array
        size = bytes_in_words(_check_size(request, array.shape, str(array.dtype), traced(array)))
        where = "every device" if traced(array) else "one device"
        reason, cure = _only_whole(request, traced(array))
        text = f"{name}: a sharded matrix of {size} is gathered to {where}: {reason}\nhint: {cure}"
        warn(text)

        def work(a: Any, b: Any) -> tuple[Any, ...]:
            known = {"engine": "auto"} if "engine" in (request.function.__kwdefaults__ or {}) else {}
            return request.results(request.ordinary(*[x for x in (a, b) if x is not None], **known))

        if traced(array) or traced(b):
            return work(sharding.replicated(array, array), b if b is None else sharding.replicated(b, array))
        whole = sharding.on_one_device(array)
        with in_mesh(sharding.mesh_of(whole)):
            results = work(whole, b if b is None else sharding.on_the_device(b, whole))
        return tuple(
            x if x is None else sharding.put_back(x, array) if place is MATRIX else sharding.put_everywhere(x, array)
            for x, place in zip(results, request.places, strict=True)
        )


def is_tall(where: Placement, shape: tuple[int, ...]) -> bool:
    """Whether each device has at least as many rows (columns) as there are columns (rows) if only the longer side is split."""
    m, n = max(shape), min(shape)
    grid = where.grid if shape[0] >= shape[1] else where.grid.turned()
    block = m // grid.p
    # a block is split over the axes of the columns; the last part may be shorter
    return bool(block - (grid.q - 1) * -(-block // grid.q) >= n)


def _only_whole(request: Request, traced: bool) -> tuple[str, str]:
    """Why the call needs the whole matrix on one device, and a way around it; ("", "") if it does not."""
    if request.b:
        return (
            "b= has no distributed algorithm inside XLA",
            "with L = lapwing.cholesky(b), call eigh of L^-1 A L^-H (two solves)",
        )
    if request.certify:
        return "certify=True has no distributed algorithm inside XLA", "leave it out: sharded matrices are solved directly"
    if request.window is not None and traced:
        return "window= has no distributed algorithm in traced code", "call it outside of jit, or give subset="
    return "", ""


def _long(request: Request, array: Array) -> bool:
    """Whether the matrix is so long and narrow that each block of rows is factored separately."""
    shape = array.shape
    if request.operation not in cost.TALL or (request.operation in ("lstsq", "qr") and shape[0] < shape[1]):
        return False
    if array.placement is None:  # described: cut along its longer side
        return max(shape) // array.size >= min(shape)
    return is_tall(array.placement, shape)


def _check_long(request: Request, m: int, n: int) -> None:
    """Refuse calls whose results have the longer side squared as their size."""
    if request.operation == "qr" and request.mode == "complete" and m != n:
        raise ValueError(f"qr: the complete Q of a sharded {m} x {n} matrix is {m} x {m}\nhint: mode='reduced'")
    if request.operation == "polar" and m != n and (request.side == "left") != (m < n):
        raise ValueError(
            f"polar: P on the {request.side} of a sharded {m} x {n} matrix would be as large as the longer side squared"
            f"\nhint: side='{'right' if request.side == 'left' else 'left'}'"
        )


def _check_size(request: Request, shape: tuple[int, ...], dtype: str, traced: bool) -> int:
    """Refuse a matrix that is too large for one device; returns the bytes that fit."""
    name = request.name
    size: int = shape[0] * shape[1] * ITEMSIZE[dtype]
    if size > panels.GATHER_LIMIT:
        reason, cure = _only_whole(request, traced)
        raise NotImplementedError(
            f"{name}: a {shape[0]} x {shape[1]} matrix of {bytes_in_words(size)} is too large for one device"
            f" (at most {bytes_in_words(panels.GATHER_LIMIT)}), and {reason}\nhint: {cure}"
        )
    return size


def _raise_if_failed(request: Request, a: Any, info: Any) -> None:
    from ....frameworks.jax import traced
    from . import sharding
    from .layout import in_mesh

    if request.on_fail != "raise" or traced(a) or traced(info):
        return
    at = sharding.status(info)
    if not at:
        return
    name, assume = request.name, request.assume
    system = request.operation in cost.BLOCKED
    read = request.upper if assume in ONE_TRIANGLE else {"lower": False, "upper": True}.get(assume)
    with in_mesh(a.sharding.mesh):
        nonfinite = not sharding.all_finite(a, read if system else None)
    if system and assume == "pos":
        raise NotPositiveDefiniteError(name, minor=at, nonfinite=nonfinite)
    if system:
        raise SingularMatrixError(name, pivot=at, nonfinite=nonfinite)
    raise ConvergenceError(name, nonfinite=nonfinite)
