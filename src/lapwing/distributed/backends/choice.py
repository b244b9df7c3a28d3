"""The backends for matrices over many devices, in the order in which they are asked, and the choice between them."""

from __future__ import annotations

from dataclasses import replace

from ...core.problem import ITEMSIZE, REAL
from ...core.request import Request
from ..cost import Cost
from .alone import Alone
from .cusolvermg.backend import CusolverMg
from .cusolvermp.backend import CusolverMp
from .elpa import Elpa
from .gathered import Gathered
from .protocol import Array, Backend
from .scalapack.backend import Scalapack
from .xla.backend import OneDevice, Xla

BACKENDS: tuple[Backend, ...] = (Alone(), CusolverMp(), CusolverMg(), Elpa(), Scalapack(), Xla(), Gathered(), OneDevice())
# those that a user can ask for; lapwing.engines() lists them
PUBLIC = tuple(backend for backend in BACKENDS if backend.name in backend.engines)


def choose(request: Request, array: Array) -> Backend:
    """The backend of a call: the one that ``engine=`` names, else the first that takes it. Runs nothing and asks no rank."""
    name, engine = request.name, request.engine
    asked = [backend for backend in BACKENDS if engine == "auto" or engine in backend.engines]
    reasons: dict[str, Exception] = {}
    for backend in asked:
        if refused := backend.refuses(array):
            if engine != "auto":
                reasons[backend.name] = ValueError(f"{name}: engine={engine!r} {refused}{_others(request, array, refused)}")
        elif support := backend.support(request, array):
            return backend
        else:
            reasons[backend.name] = NotImplementedError(f"{name}: {support.reason}")
    if reasons:
        raise max(reasons.values(), key=lambda error: isinstance(error, NotImplementedError))
    known = "takes no sharded matrices" if any(engine in b.engines for b in BACKENDS) else "is not known"
    raise ValueError(f"{name}: engine={engine!r} {known}{_others(request, array)}")


def _others(request: Request, array: Array, refused: str = "") -> str:
    """The hint: the values of ``engine=`` that would be accepted."""
    if "\nhint:" in refused:
        return ""
    names = ["auto"]
    for backend in PUBLIC:
        accepts = not backend.refuses(array) and backend.support(replace(request, engine=backend.name), array)
        if accepts and not _missing(backend, array):
            names.append(backend.name)
    return f"\nhint: use one of {', '.join(map(repr, names))}"


def explained(request: Request, array: Array) -> Cost:
    """The cost of the call with the backend that would run it."""
    backend = choose(request, array)
    cost = backend.cost(request, array)
    note = f"{cost.note} in full precision".strip() if request.mixed and not backend.refines else cost.note
    return replace(cost, note=note, missing=_missing(backend, array), host=_host_bytes(request, backend, array))


def _host_bytes(request: Request, backend: Backend, array: Array) -> float:
    """Bytes of eigenvalues and singular values, which libraries return on the host; XLA leaves them on the devices."""
    values = request.operation in ("eigh", "eigvalsh", "svd", "svdvals")
    if array.device == "cpu" or backend.sees == "arrays" or not values:
        return 0.0
    return float(min(array.shape) * ITEMSIZE[REAL[array.dtype]])


def _missing(backend: Backend, array: Array) -> str:
    """ "" or why the backend cannot run here; always "" for a described matrix, which is planned for another machine."""
    return "" if array.kind == "spec" else backend.missing(array.device)
