"""Systems, inverses, QR, singular values and least squares in the benchmark: how each library is asked for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.problem import Problem
from ..ops.lstsq import lstsq
from ..ops.qr import qr
from ..ops.solve import inv, solve
from ..ops.svd import svd
from .check_solve import check_solution, check_solution_on_device
from .library import Call, Library
from .operations import Operation

if TYPE_CHECKING:
    from .case import Case

__all__ = ["INV", "LSTSQ", "QR", "SOLVE", "SVD"]


class _Peer(NamedTuple):
    text: str
    call: Call
    queued: Call | None = None  # without waiting for the device, where that is another call


# What a library offers beside the call of the same name: the routine, its library, and for which operation and matrices.
_EXTRA = {
    "cho_solve": ("scipy", "solve", "pos"),
    "lu_solve": ("scipy", "solve", "general"),
    "torch_solve": ("torch", "solve", "pos"),
    "torch_inv": ("torch", "inv", "pos"),
    "jax_solve": ("jax", "solve", "pos"),
    "jax_inv": ("jax", "inv", "pos"),
    "gesvd": ("torch", "svd", "general"),
    "gesvdj": ("torch", "svd", "general"),
    "gesvda": ("torch", "svd", "general"),
}
_ON_GPU = ("gesvd", "gesvdj", "gesvda")  # torch lets its users choose only there


def _numpy(library: Library, case: Case) -> dict[str, _Peer]:
    linalg: Any = np.linalg
    return {
        "solve": _Peer("numpy.linalg.solve(a, b)", lambda ab: linalg.solve(*ab)),
        "inv": _Peer("numpy.linalg.inv(a)", linalg.inv),
        "qr": _Peer("numpy.linalg.qr(a)", linalg.qr),
        "svd": _Peer("numpy.linalg.svd(a, full_matrices=False)", partial(linalg.svd, full_matrices=False)),
        "lstsq": _Peer("numpy.linalg.lstsq(a, b, rcond=None)[0]", lambda ab: linalg.lstsq(*ab, rcond=None)[0]),
    }


def _scipy(library: Library, case: Case) -> dict[str, _Peer]:
    import scipy.linalg as sl

    # without check_finite, as the others do not look either
    fast: dict[str, Any] = {"check_finite": False}
    lower = not case.upper
    pos = {"assume_a": "pos", "lower": lower}
    try:
        sl.inv(np.eye(1), **pos)
        inverse = _Peer('scipy.linalg.inv(a, assume_a="pos")', partial(sl.inv, **fast, **pos))
    except TypeError:  # before SciPy 1.17
        inverse = _Peer("scipy.linalg.inv(a)", partial(sl.inv, **fast))
    return {
        "solve": _Peer('scipy.linalg.solve(a, b, assume_a="gen")', lambda ab: sl.solve(*ab, assume_a="gen", **fast)),
        "solve pos": _Peer('scipy.linalg.solve(a, b, assume_a="pos")', lambda ab: sl.solve(*ab, **pos, **fast)),
        "cho_solve": _Peer(
            "scipy.linalg.cho_solve(cho_factor(a), b)",
            lambda ab: sl.cho_solve(sl.cho_factor(ab[0], lower=lower, **fast), ab[1], **fast),
        ),
        "lu_solve": _Peer(
            "scipy.linalg.lu_solve(lu_factor(a), b)", lambda ab: sl.lu_solve(sl.lu_factor(ab[0], **fast), ab[1], **fast)
        ),
        "inv": _Peer("scipy.linalg.inv(a)", partial(sl.inv, **fast)),
        "inv pos": inverse,
        "qr": _Peer('scipy.linalg.qr(a, mode="economic")', partial(sl.qr, mode="economic", **fast)),
        "svd": _Peer("scipy.linalg.svd(a, full_matrices=False)", partial(sl.svd, full_matrices=False, **fast)),
        "lstsq": _Peer("scipy.linalg.lstsq(a, b)[0]", lambda ab: sl.lstsq(*ab, **fast)[0]),
    }


def _torch(library: Any, case: Case) -> dict[str, _Peer]:
    torch, linalg, upper = library.torch, library.torch.linalg, case.upper

    def factor(a: Any) -> Any:
        return linalg.cholesky(a, upper=upper)

    def factor_ex(a: Any) -> Any:
        return linalg.cholesky_ex(a, upper=upper)[0]

    general = _Peer("torch.linalg.solve(a, b)", lambda ab: linalg.solve(*ab), lambda ab: linalg.solve_ex(*ab)[0])
    inverse = _Peer("torch.linalg.inv(a)", linalg.inv, lambda a: linalg.inv_ex(a)[0])
    return {
        "solve": general,
        "solve pos": _Peer(
            "torch.cholesky_solve(b, torch.linalg.cholesky(a))",
            lambda ab: torch.cholesky_solve(ab[1], factor(ab[0]), upper=upper),
            lambda ab: torch.cholesky_solve(ab[1], factor_ex(ab[0]), upper=upper),
        ),
        "torch_solve": general,
        "inv": inverse,
        "inv pos": _Peer(
            "torch.cholesky_inverse(torch.linalg.cholesky(a))",
            lambda a: torch.cholesky_inverse(factor(a), upper=upper),
            lambda a: torch.cholesky_inverse(factor_ex(a), upper=upper),
        ),
        "torch_inv": inverse,
        "qr": _Peer("torch.linalg.qr(a)", linalg.qr),
        "svd": _Peer("torch.linalg.svd(a, full_matrices=False)", partial(linalg.svd, full_matrices=False)),
        **{
            name: _Peer(
                f'torch.linalg.svd(a, full_matrices=False, driver="{name}")',
                partial(linalg.svd, full_matrices=False, driver=name),
            )
            for name in _ON_GPU
        },
        "lstsq": _Peer("torch.linalg.lstsq(a, b).solution", lambda ab: linalg.lstsq(*ab).solution),
    }


def _jax(library: Any, case: Case) -> dict[str, _Peer]:
    jnp, lax, upper = library.jax.numpy, library.jax.lax.linalg, case.upper

    def solved(a: Any, b: Any) -> Any:
        l = lax.cholesky(jnp.conj(a.mT) if upper else a, symmetrize_input=False)
        y = lax.triangular_solve(l, b, left_side=True, lower=True)
        return lax.triangular_solve(l, y, left_side=True, lower=True, transpose_a=True, conjugate_a=True)

    def least(a: Any, b: Any) -> Any:
        return jnp.linalg.lstsq(a, b)[0]

    general = _Peer("jax.jit(jax.numpy.linalg.solve)(a, b)", lambda ab: jnp.linalg.solve(*ab))
    inverse = _Peer("jax.jit(jax.numpy.linalg.inv)(a)", jnp.linalg.inv)
    factored = "jax.jit of jax.lax.linalg.cholesky and two triangular_solve"
    return {
        "solve": general,
        "solve pos": _Peer(f"{factored} of b", lambda ab: solved(*ab)),
        "jax_solve": general,
        "inv": inverse,
        "inv pos": _Peer(
            f"{factored} of I", lambda a: solved(a, jnp.broadcast_to(jnp.eye(case.n, dtype=a.dtype), a.shape))
        ),
        "jax_inv": inverse,
        "qr": _Peer("jax.jit(jax.numpy.linalg.qr)(a)", jnp.linalg.qr),
        "svd": _Peer(
            "jax.jit(jax.numpy.linalg.svd)(a), full_matrices=False", lambda a: jnp.linalg.svd(a, full_matrices=False)
        ),
        "lstsq": _Peer(
            "jax.jit(jax.numpy.linalg.lstsq)(a, b)[0], under vmap for a batch",
            lambda ab: (library.jax.vmap(least) if case.lead else least)(*ab),
        ),
    }  # fmt: skip


def _tensorflow(library: Any, case: Case) -> dict[str, _Peer]:
    linalg = library.tf.linalg

    def factor(a: Any) -> Any:
        return linalg.cholesky(linalg.adjoint(a) if case.upper else a)

    def decomposed(a: Any) -> Any:
        s, u, v = linalg.svd(a, full_matrices=False)
        return u, s, linalg.adjoint(v)

    return {
        "solve": _Peer("tensorflow.linalg.solve(a, b)", lambda ab: linalg.solve(*ab)),
        "solve pos": _Peer(
            "tensorflow.linalg.cholesky_solve(tensorflow.linalg.cholesky(a), b)",
            lambda ab: linalg.cholesky_solve(factor(ab[0]), ab[1]),
        ),
        "inv": _Peer("tensorflow.linalg.inv(a)", linalg.inv),
        "qr": _Peer("tensorflow.linalg.qr(a)", linalg.qr),
        "svd": _Peer("tensorflow.linalg.svd(a)", decomposed),
        "lstsq": _Peer("tensorflow.linalg.lstsq(a, b, fast=False)", lambda ab: linalg.lstsq(*ab, fast=False)),
    }


def _cupy(library: Any, case: Case) -> dict[str, _Peer]:
    linalg = library.cupy.linalg
    return {
        "solve": _Peer("cupy.linalg.solve(a, b)", lambda ab: linalg.solve(*ab)),
        "inv": _Peer("cupy.linalg.inv(a)", linalg.inv),
        "qr": _Peer("cupy.linalg.qr(a)", linalg.qr),
        "svd": _Peer("cupy.linalg.svd(a, full_matrices=False)", partial(linalg.svd, full_matrices=False)),
        "lstsq": _Peer("cupy.linalg.lstsq(a, b, rcond=None)[0]", lambda ab: linalg.lstsq(*ab, rcond=None)[0]),
    }


_PEERS: dict[str, Callable[[Any, Case], dict[str, _Peer]]] = {
    "numpy": _numpy,
    "scipy": _scipy,
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "cupy": _cupy,
}


def _peer(library: Library, case: Case, name: str) -> _Peer:
    offered = _PEERS[library.name](library, case)
    for key in (name, f"{case.operation} {case.assume}", case.operation):
        if key in offered:
            return offered[key]
    raise AssertionError(f"{name} has no {case.operation}")


def _own(library: Library, case: Case, name: str) -> Call:
    return library.compiled(_peer(library, case, name).call)


def _own_queued(library: Library, case: Case, name: str) -> Call:
    peer = _peer(library, case, name)
    return library.compiled(peer.queued or peer.call)


def _own_text(name: str, case: Case) -> str:
    from .libraries import open_library

    return _peer(open_library(_EXTRA[name][0] if name in _EXTRA else name), case, name).text


def _extra(case: Case) -> tuple[tuple[str, str], ...]:
    fits = [
        (name, library) for name, (library, *asked) in _EXTRA.items()
        if asked == [case.operation, case.assume] and (name not in _ON_GPU or case.device == "cuda")
    ]  # fmt: skip
    return tuple(fits)


def _through(library: Library, case: Case, engine: str, on_fail: str) -> Call:
    kept: dict[str, Any] = {"engine": engine} | ({} if case.operation in ("qr", "lstsq") else {"on_fail": on_fail})
    if case.operation in ("solve", "inv"):
        kept |= {"assume": case.assume, "upper": case.upper}
    if case.operation == "solve":
        kept |= {"precision": case.precision}
        return library.compiled(lambda ab: solve(*ab, **kept))
    if case.operation == "inv":
        return library.compiled(partial(inv, **kept))
    if case.operation == "lstsq":
        return library.compiled(lambda ab: lstsq(*ab, **kept).x)
    return library.compiled(partial(qr if case.operation == "qr" else svd, **kept))


def _problem(case: Case) -> Problem:
    operation = {"inv": "inverse", "lstsq": "svd"}.get(case.operation, case.operation)
    columns = {"solve": case.k, "inv": None}.get(case.operation, case.n)
    return Problem(
        operation, case.dtype, case.batch, case.height, case.device,
        upper=case.upper, columns=columns, pos=case.assume == "pos",
    )  # fmt: skip


def _shapes(case: Case) -> tuple[tuple[int, ...], ...]:
    square = (*case.lead, case.n, case.n)
    return {
        "solve": ((*case.lead, case.n, case.k),),
        "lstsq": ((*case.lead, case.n, case.k),),
        "inv": (square,),
        "qr": (case.shape, square),
        "svd": (case.shape, (*case.lead, case.n), square),
    }[case.operation]


_WORK = {
    "solve": "2n^3/3 + 2kn^2, for pos n^3/3 + 2kn^2",
    "inv": "2n^3, for pos n^3",
    "qr": "4mn^2 - 4n^3/3",
    "svd": "6mn^2 + 20n^3",
    "lstsq": "6mn^2 + 20n^3",
}
_SYSTEM = ("assume", "upper", "condition")
_CHOICES = {
    "solve": ("k", "precision", *_SYSTEM),
    "inv": _SYSTEM,
    "qr": ("rows", "condition"),
    "svd": ("rows", "condition"),
    "lstsq": ("k", "rows", "condition"),
}


def _operation(name: str) -> Operation:
    return Operation(
        name=name,
        matrices=("random", "known", "wishart_shift") if "assume" in _CHOICES[name] else ("random",),
        flops=lambda case: case.problem.flops,
        bytes_moved=lambda case: case.problem.bytes_moved,
        work=f"GFLOP/s by {_WORK[name]} (complex: 4 times), whatever the method does; GB/s by one read and one write of all.",
        shapes=_shapes,
        through=_through,
        own=_own,
        own_queued=_own_queued,
        own_text=_own_text,
        check=check_solution,
        check_on_device=check_solution_on_device,
        routines=_extra,
        problem=_problem,
        right_hand_sides="k" in _CHOICES[name],
        choices=_CHOICES[name],
    )


SOLVE, INV, QR, SVD, LSTSQ = (_operation(name) for name in _CHOICES)
