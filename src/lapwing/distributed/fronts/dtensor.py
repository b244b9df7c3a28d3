"""torch's DTensor as a kind of array.

Blocks on GPUs go to cuSOLVERMp. Blocks on CPUs go to ScaLAPACK if MPI started the ranks; else the matrix is gathered on one
rank, if it fits there. With matrices that are not cut (replicated, or a sharded batch) each rank works alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Replicate

from ...core.problem import Spec
from ...core.request import MATRIX, RIGHT, Place, Request
from ..backends.choice import choose, explained
from ..backends.protocol import DETERMINANTS, Array, Backend, Part, check_right, columns_of, promote
from . import dtensor_blocks as blocks
from . import front

_PART_OF_B = "\nhint: a tensor is all of b, on every rank; a rank's rows of it are DTensor.from_local(b, mesh, [Shard(0)])"


class DTensorFront:
    sharded: Literal[True] = True

    def describe(self, a: Any, /) -> Spec:
        return Spec(tuple(a.shape), blocks.dtype_of(a), "cuda" if blocks.on_gpu(a) else "cpu", str(a.placements))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the ranks talk to each other through Python
    def call(self, function: Callable[..., Any], a: Any, b: Any = None, /, **options: Any) -> Any:
        name = function.__name__
        if not blocks.cuts_matrix(a) and options.get("engine") != "cusolvermp":
            return _each_rank_its_own(self.describe(a), function, a, b, options)
        like, a = a, blocks.standard(name, a)
        a, b = promote(a, b, blocks.cast)
        if blocks.wants_gradient(a, b):
            return self._with_gradient(function, a, b, options)
        return self._run(function, a, b, options, like)

    def _run(self, function: Callable[..., Any], a: Any, b: Any, options: dict[str, Any], like: Any = None) -> Any:
        """The call without derivatives; ``a`` is a standard DTensor, and results that are matrices are placed like ``like``."""
        name, gpu, ranks = function.__name__, blocks.on_gpu(a), blocks.ranks_of(a.device_mesh)
        mpi = None if gpu else blocks.mpi_of(ranks)
        facts = {"shape": tuple(a.shape), "dtype": blocks.dtype_of(a), "placements": str(a.placements)} | _facts(b)
        options = options if gpu or "overwrite" not in options else options | {"overwrite": False}  # the tensor is the user's

        def check() -> tuple[Request, Backend, Part]:
            described = self.describe(a)
            request = front.requested(function, described, b, options)
            part = blocks.block_of(name, a, mpi)
            if b is not None:
                _check_right(name, described, b)
            return request, choose(request, self._array(a, b, part.layout, mpi is not None)), part

        request, backend, part, from_ranks = front.agreed(ranks, name, facts, check)
        return front.run(request, backend, _Placing(a, like, mpi, described=True), part, b, from_ranks)

    def explain(self, function: Callable[..., Any], a: Any, b: Any, ordinary: Callable[..., Any], /, **options: Any) -> Any:
        if not blocks.cuts_matrix(a) and options.get("engine") != "cusolvermp":
            return ordinary(*[x.to_local() if hasattr(x, "to_local") else x for x in (a, b) if x is not None])
        name, described = function.__name__, self.describe(a)
        layout = blocks.standard_layout(name, a)
        if b is not None:
            check_right(name, described, Spec(tuple(b.shape), described.dtype))
        request = front.requested(function, described, b, options)
        return explained(request, self._array(a, b, layout, blocks.mpi_seen()))

    def _array(self, a: Any, b: Any, layout: Any, mpi: bool) -> Array:
        described = self.describe(a)
        shape, size = (described.shape[0], described.shape[1]), a.device_mesh.size()
        return Array("dtensor", shape, described.dtype, described.device, size, layout, "torch", mpi, columns=columns_of(b))

    def _with_gradient(self, function: Any, a: Any, b: Any, options: dict[str, Any]) -> Any:
        request = front.requested(function, self.describe(a), b, options)
        pos = request.assume == "pos"
        known = request.operation in ("solve", *DETERMINANTS)
        if not known or request.status or request.assume not in ("general", "pos"):
            what = "a DTensor has derivatives in solve, det and slogdet, with assume='general' and 'pos'"
            hint = "a.detach(), or torch.no_grad()"
            if request.operation == "factor":
                what = "a factored DTensor has no derivatives"
                hint = "use lapwing.solve, lapwing.det or lapwing.slogdet, which have derivatives; or pass a.detach()"
            raise NotImplementedError(f"{request.name}: {what}\nhint: {hint}")
        if request.operation == "solve":
            options = options | {"overwrite": False}  # the matrix is needed again
            return _Solve.apply(a, b, lambda a, b: self._run(function, a, b, options), pos)
        value, inverse = (partial(self._run, one, b=None, options=options) for one in (function, function.inverse))
        if request.operation == "det":
            return _Det.apply(a, value, inverse, pos)
        return request.returned(_Slogdet.apply(a, value, inverse, pos))


FRONT = DTensorFront()


class _Placing:
    """Results are placed like the matrix or the right-hand side; values are replicated."""

    def __init__(self, a: Any, like: Any, mpi: Any, described: bool) -> None:
        # DTensors of the same mesh and placements that hold nothing
        self._a, self._like = blocks.empty_like(a), None if like is None else blocks.empty_like(like)
        self._described, self._mpi, self._sides = Spec(tuple(a.shape), blocks.dtype_of(a)), mpi, None
        self.ranks = blocks.ranks_of(a.device_mesh)
        self._agreed = described  # whether the right-hand side was already part of an agreement

    def right(self, name: str, b: Any) -> Part:
        if blocks.wants_gradient(b):
            raise NotImplementedError(f"{name}: a factored DTensor has no derivatives\nhint: lapwing.solve has them")
        if not self._agreed:
            _, b = promote(self._described, b, blocks.cast, fixed=True)
            front.agreed_right(self.ranks, name, lambda: _check_right(name, self._described, b))
        self._agreed = False
        sides = blocks.as_sharded(name, b.unsqueeze(1) if b.ndim == 1 else b, self._a)
        self._sides = blocks.empty_like(sides)
        return blocks.block_of(name, sides, self._mpi)

    def leave(self, x: Any, place: Place, b: Any) -> Any:
        if isinstance(x, Part):
            if place is MATRIX:
                return blocks.placed_as(blocks.wrap(x.local, self._a, x.shape), self._like)
            return blocks.as_right(blocks.wrap(x.local, self._sides, x.shape), b, b.ndim == 1)
        if b is not None and b.ndim == 1 and getattr(x, "shape", ()) == (1,):  # residuals of one right-hand side
            x = x.reshape(())
        return x if x is None else blocks.wrap_replicated(x, self._a)


def _each_rank_its_own(described: Spec, function: Any, a: Any, b: Any, options: dict[str, Any]) -> Any:
    """The ordinary function on this rank's matrices."""
    request = replace(front.requested(function, described, b, options), b=False)
    returned = request.ordinary(*[blocks.own_part(request.name, x, a) for x in (a, b) if x is not None])
    if request.operation == "factor":
        return request.returned((_Own(returned, a),))
    results = [
        x if x is None else blocks.wrap_own(x, a, matrix=place is MATRIX)
        for x, place in zip(request.results(returned), request.places, strict=True)
    ]
    if RIGHT in request.places:
        results[0] = blocks.placed_as(results[0], b if isinstance(b, DTensor) else None)
    return request.returned(results)


class _Own:
    """The handle of matrices that are whole on each rank: a replicated DTensor, or a sharded batch."""

    about = ", one for each rank"

    def __init__(self, factor: Any, a: Any) -> None:
        self._factor, self._a, self.shape, self.dtype = factor, a.detach(), tuple(a.shape), blocks.dtype_of(a)
        self.assume, self.upper, self.report = factor.assume, factor.upper, factor.report

    @property
    def info(self) -> Any:
        return blocks.wrap_own(self._factor.info, self._a)

    @property
    def l(self) -> Any:  # noqa: E743
        return blocks.wrap_own(self._factor.l, self._a, matrix=True)

    @property
    def lu(self) -> Any:
        factor, rows = self._factor.lu
        return blocks.wrap_own(factor, self._a, matrix=True), blocks.wrap_own(rows, self._a)

    def solve(self, b: Any, /) -> Any:
        x = blocks.wrap_own(self._factor.solve(blocks.own_part("Factor.solve", b, self._a)), self._a)
        return blocks.placed_as(x, b if isinstance(b, DTensor) else None)

    def inverse(self) -> Any:
        return blocks.wrap_own(self._factor.inv(), self._a, matrix=True)

    def slogdet(self) -> Any:
        return tuple(blocks.wrap_own(x, self._a) for x in self._factor.slogdet())

    def logdet(self) -> Any:
        return blocks.wrap_own(self._factor.logdet(), self._a)

    def rcond(self) -> Any:
        return blocks.wrap_own(self._factor.rcond(), self._a)


def _check_right(name: str, a: Spec, b: Any) -> dict[str, str]:
    """What all ranks must agree on."""
    if not isinstance(b, torch.Tensor):
        raise TypeError(f"{name}: b must be a DTensor, or a torch tensor that every rank has, got {type(b).__name__}")
    check_right(name, a, b, "" if isinstance(b, DTensor) else _PART_OF_B)
    return _facts(b)


def _facts(b: Any) -> dict[str, str]:
    return {f"{field} of b": str(getattr(b, field, "none")) for field in ("shape", "dtype", "placements")}


class _Solve(torch.autograd.Function):
    """gb = A^-H g, gA = -gb x^H, for a positive definite matrix its Hermitian part. The engine runs again, on such blocks."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, run: Any, pos: bool) -> Any:
        x = run(a.detach(), b.detach())
        ctx.save_for_backward(a, x)
        ctx.run, ctx.pos, ctx.placements = run, pos, x.placements if isinstance(x, DTensor) else None
        ctx.partial = isinstance(b, DTensor) and any(p.is_partial() for p in b.placements)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        a, x = ctx.saved_tensors
        if ctx.placements is not None:
            g = g.redistribute(placements=ctx.placements)
        gb = ctx.run(a.detach() if ctx.pos else blocks.adjoint(a.detach()), g.detach())
        ga = _outer(a, gb, x, ctx.pos) if ctx.needs_input_grad[0] else None
        # each summand of a partial b has the gradient of the sum
        return ga, gb.redistribute(placements=[Replicate()] * gb.device_mesh.ndim) if ctx.partial else gb, None, None


def _outer(a: Any, gb: Any, x: Any, pos: bool) -> Any:
    """This rank's block of -gb x^H. Every rank gets all right-hand sides, as they are few."""
    left, right = (blocks.whole(y).reshape(a.shape[0], -1) for y in (gb, x))
    layout = blocks.layout_for(a, tuple(a.shape))
    rows, columns = (torch.from_numpy(i).to(left.device) for i in layout.indices(blocks.ranks_of(a.device_mesh).rank))
    block = -left[rows] @ right[columns].mH
    if pos:
        block = (block - right[rows] @ left[columns].mH) / 2
    return blocks.wrap(block, a, tuple(a.shape))


class _Slogdet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, run: Any, invert: Any, pos: bool) -> Any:
        sign, logabs = run(a.detach())
        ctx.save_for_backward(a)
        ctx.invert, ctx.pos = invert, pos
        ctx.mark_non_differentiable(sign)
        return sign, logabs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any, g: Any) -> Any:  # type: ignore[override]
        (a,) = ctx.saved_tensors
        return _times_inverse(ctx, a, blocks.whole(g)), None, None, None


class _Det(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any, run: Any, invert: Any, pos: bool) -> Any:
        value = run(a.detach())
        ctx.save_for_backward(a, value)
        ctx.invert, ctx.pos = invert, pos
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        a, value = ctx.saved_tensors
        weight = blocks.whole(g) * blocks.whole(value).conj()
        return _times_inverse(ctx, a, weight.real if ctx.pos else weight), None, None, None


def _times_inverse(ctx: Any, a: Any, weight: Any) -> Any:
    """A^-H times a number; the inverse of a Hermitian matrix is its own adjoint."""
    x = ctx.invert(a.detach())
    x = x if ctx.pos else blocks.adjoint(x).redistribute(placements=a.placements)
    return blocks.wrap(x.to_local() * weight, a, tuple(a.shape))
