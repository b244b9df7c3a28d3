"""What takes the place of each public function for a torch DTensor.

Blocks on GPUs go to cuSOLVERMp. Blocks on CPUs go to ScaLAPACK where MPI started the ranks; else the matrix is gathered on one
rank, as long as it fits there. Matrices that are not cut (replicated, or a sharded batch) are each rank's own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops import cholesky as _cholesky
from ...ops import eigh as _eigh
from ...ops import factor as _factor
from ...ops import lstsq as _lstsq
from ...ops import qr as _qr
from ...ops import solve as _solve
from ...ops import svd as _svd
from ..matrix import ShardedMatrix
from ..ranks.protocol import agree
from . import calls as sharded_calls
from . import cuda as sharded_cuda
from . import cuda_factor as sharded_cuda_factor
from . import dtensor, dtensor_gradients
from .dtensor_checks import Entered, enter
from .dtensor_factor import DTensorFactor, GpuDTensorFactor, OwnFactor, RootFactor
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

_log = logging.getLogger("lapwing")
_warned: list[str] = []  # of a gathered matrix, once in a process


class _Public:
    """One of the public functions; ``results``: "m" a matrix like ``a``, "x" as ``b`` was, "v" the same on all ranks."""

    def __init__(self, plain: Callable[..., Any], results: str) -> None:
        self.plain, self.name, self.results = plain, plain.__name__, results
        functools.update_wrapper(self, plain)

    @dtensor.not_compiled
    def __call__(self, a: Any, /, *args: Any, **options: Any) -> Any:
        if not dtensor.cuts_matrix(a) and options.get("engine") != "cusolvermp":
            return self._each_rank_its_own(a, args, options)
        given, a = a, dtensor.standard(self.name, a)
        if dtensor.wants_gradient(a, *args):
            return _with_gradient(self, a, args, options)
        return self.run(a, args, options, given)

    def run(self, a: Any, args: tuple[Any, ...], options: dict[str, Any], like: Any = None) -> Any:
        """Without derivatives; ``a`` is a standard DTensor, and matrices are placed as ``like`` is."""
        given = args[0] if "x" in self.results else None
        other = options.get("b")  # of a generalised eigenproblem
        entered = enter(self.name, a, options, *[x for x in (given, other) if x is not None])
        blocks = entered.blocks
        b = sides = None
        vector = False
        if given is not None:
            vector = given.ndim == 1
            b = dtensor.as_sharded(self.name, given.unsqueeze(1) if vector else given, a)
            sides = dtensor.blocks_of(self.name, b)
        if entered.gpu:
            places = functools.partial(dtensor.layout_for, a), functools.partial(dtensor.layout_for, b)
            made = sharded_cuda.run(self.name, blocks, sides, options, *places)
        else:
            if other is not None:
                options = options | {"b": self._other(other, a, entered)}
            made = self._on_cpu(a, b, entered, sides, options)
        if self.name == "lstsq" and vector and made[1] is not None:
            made[1] = made[1].reshape(())
        wrapped = []
        for kind, x in zip(self.results, made, strict=True):
            if kind == "m":
                x = dtensor.placed_as(dtensor.wrap(x.local, a, x.layout.shape), like)
            elif kind == "x":
                x = dtensor.as_given(dtensor.wrap(x.local, b, x.layout.shape), given, vector)
            elif x is not None:
                x = dtensor.wrap_replicated(x, a)
            wrapped.append(x)
        return wrapped[0] if len(wrapped) == 1 else _RESULTS[self.name](*wrapped)

    def _other(self, b: Any, a: Any, entered: Entered) -> ShardedMatrix:
        blocks = dtensor.blocks_of(self.name, dtensor.as_sharded(self.name, b, a))
        return ShardedMatrix(blocks.local.numpy(), blocks.layout, entered.ranks)

    def _on_cpu(self, a: Any, b: Any, entered: Entered, sides: Any, options: dict[str, Any]) -> list[Any]:
        blocks, ranks = entered.blocks, entered.ranks
        matrices = [ShardedMatrix(x.local.numpy(), x.layout, ranks) for x in (blocks, sides) if x is not None]
        call = functools.partial(_gathered, self) if entered.mpi is None else getattr(sharded_calls, self.name)
        made = call(*matrices, **options)
        made = (made,) if len(self.results) == 1 else made
        found: list[Any] = []
        for kind, x in zip(self.results, made, strict=True):
            if kind in "mx":
                x = x.redistribute(dtensor.layout_for(a if kind == "m" else b, x.shape))
                x = dtensor.Blocks(dtensor.as_tensor(np.ascontiguousarray(x.local)), x.layout, blocks.ranks)
            found.append(x)
        return found

    def _each_rank_its_own(self, a: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        local = [dtensor.own(self.name, x, a) for x in (a, *args)]
        if options.get("b") is not None:
            options = options | {"b": dtensor.own(self.name, options["b"], a)}
        made = self.plain(*local, **options)
        parts = made if isinstance(made, tuple) else (made,)
        wrapped = [x if x is None else dtensor.wrap_own(x, a) for x in parts]
        if "x" in self.results:
            wrapped[0] = dtensor.placed_as(wrapped[0], args[0] if dtensor.is_sharded(args[0]) else None)
        return _RESULTS[self.name](*wrapped) if isinstance(made, tuple) else wrapped[0]


_RESULTS = {
    "slogdet": _solve.SlogdetResult,
    "eigh": _eigh.EighResult,
    "svd": _svd.SVDResult,
    "polar": _svd.PolarResult,
    "qr": _qr.QRResult,
    "lstsq": _lstsq.LstsqResult,
    "cholesky_ex": _cholesky.CholeskyResult,
    "solve_ex": _solve.SolveExResult,
    "inv_ex": _solve.InvExResult,
    "eigh_ex": _eigh.EighExResult,
}
cholesky = _Public(_cholesky.cholesky, "m")
solve = _Public(_solve.solve, "x")
inv = _Public(_solve.inv, "m")
slogdet = _Public(_solve.slogdet, "vv")
eigh = _Public(_eigh.eigh, "vm")
eigvalsh = _Public(_eigh.eigvalsh, "v")
svd = _Public(_svd.svd, "mvm")
svdvals = _Public(_svd.svdvals, "v")
polar = _Public(_svd.polar, "mm")
qr = _Public(_qr.qr, "mm")
lstsq = _Public(_lstsq.lstsq, "xvvv")


@dtensor.not_compiled
def factor(a: Any, /, **options: Any) -> DTensorFactor | OwnFactor:
    if not dtensor.cuts_matrix(a):
        return OwnFactor(_factor.factor(a.to_local(), **options), a)
    given, a = a, dtensor.standard("factor", a)
    if dtensor.wants_gradient(a):
        raise NotImplementedError(
            "factor: a factored DTensor has no derivatives\nhint: lapwing.solve and lapwing.slogdet have; or a.detach()"
        )
    entered = enter("factor", a, options)
    if entered.gpu:
        return GpuDTensorFactor(sharded_cuda_factor.factor(entered.blocks, options), a, given)
    options.pop("overwrite", None)  # the tensor is the user's
    matrix = ShardedMatrix(entered.blocks.local.numpy(), entered.blocks.layout, entered.ranks)
    made = _root_factor(matrix, options) if entered.mpi is None else sharded_calls.factor(matrix, **options)
    return DTensorFactor(made, a, given)


def _or_own(plain: Callable[..., Any], results: str, cut: Callable[..., Any]) -> Callable[..., Any]:
    """Matrices that are not cut are each rank's own here too."""
    whole = _Public(plain, results)

    @functools.wraps(plain)
    @dtensor.not_compiled
    def call(a: Any, /, *args: Any, **options: Any) -> Any:
        if not dtensor.cuts_matrix(a):
            return whole(a, *args, **options)
        return cut(a, *args, **options)

    return call


_statuses = status_calls(cholesky, factor, eigh)
cholesky_ex = _or_own(_cholesky.cholesky_ex, "mv", _statuses[0])
solve_ex = _or_own(_solve.solve_ex, "xv", _statuses[1])
inv_ex = _or_own(_solve.inv_ex, "mv", _statuses[2])
eigh_ex = _or_own(_eigh.eigh_ex, "vmv", _statuses[3])


def _root_factor(a: ShardedMatrix, options: dict[str, Any]) -> RootFactor:
    whole, made, error = _on_root("factor", a), None, None
    told: Any = None
    if a.ranks.rank == 0:
        try:
            made = _factor.factor(whole[0], **options)
            told = made.assume, made.upper, int(made.info), made.report
        except Exception as wrong:
            error = wrong
    agree(a.ranks, "factor", {}, error=error)
    return RootFactor(made, a, a.ranks.allgather(told)[0])


def _gathered(public: _Public, a: ShardedMatrix, *args: ShardedMatrix, **options: Any) -> tuple[Any, ...] | Any:
    """All of it on rank 0, which calls the ordinary function; the results go back. Every rank raises what that raises."""
    ranks, name = a.ranks, public.name
    error: Exception | None = None
    other = options.pop("b", None)
    whole = _on_root(name, a, *args, *([] if other is None else [other]))
    if other is not None:
        options["b"] = whole.pop()
    made: Any = None
    if ranks.rank == 0:
        try:
            made = public.plain(*whole, **options)
        except Exception as wrong:
            error = wrong
    agree(ranks, name, {}, error=error)
    if len(public.results) == 1:
        return _spread(public.results, made, a, *args)
    parts = made if made is not None else [None] * len(public.results)
    return tuple(_spread(kind, x, a, *args) for kind, x in zip(public.results, parts, strict=True))


def _on_root(name: str, *matrices: ShardedMatrix) -> list[Any]:
    """All of the matrices on rank 0, which has room for them."""
    ranks = matrices[0].ranks
    if ranks.rank == 0:
        said = "%s: gathered on rank 0 of %s, as MPI did not start the ranks (ScaLAPACK needs it)"
        if _warned:
            _log.info(said, name, ranks.size)
        else:
            # the log and not a warning: one that is made an error, on this rank alone, would leave the others waiting
            _warned.append(name)
            hint = "\nhint: lapwing launch -n %s script.py distributes the work: pip install mkl mpi4py mpich"
            _log.warning(f"{said}; this is said once{hint}", name, ranks.size, ranks.size)
    return [x.gather(0) for x in matrices]


def _spread(kind: str, x: Any, a: ShardedMatrix, *args: ShardedMatrix) -> Any:
    ranks = a.ranks
    if kind == "v":
        return ranks.allgather(x)[0]
    shape = ranks.allgather(None if x is None else x.shape)[0]
    like = a if kind == "m" else args[0]
    return ShardedMatrix.scatter(x, ranks, layout=like.layout.of_shape(shape))


def _with_gradient(public: _Public, a: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    assume = options.get("assume", "general")
    if public.name not in ("solve", "slogdet") or assume not in ("general", "pos"):
        raise NotImplementedError(
            f"{public.name}: a DTensor has derivatives in solve and slogdet, with assume='general' and 'pos'"
            "\nhint: a.detach(), or torch.no_grad()"
        )

    options = options | {"overwrite": False}  # the matrix is needed again

    def again(function: _Public, matrix: Any, *more: Any, **own: Any) -> Any:
        return function.run(matrix, more, {**options, **own})

    if public.name == "solve":
        b = args[0]
        return dtensor_gradients.differentiable_solve(functools.partial(again, solve), a, b, assume == "pos")
    plain = {key: value for key, value in options.items() if key in ("assume", "upper", "on_fail", "engine")}
    sign, logabs = dtensor_gradients.differentiable_slogdet(
        lambda matrix: slogdet.run(matrix, (), plain), lambda matrix: inv.run(matrix, (), plain), a, assume == "pos"
    )
    return _solve.SlogdetResult(sign, logabs)
