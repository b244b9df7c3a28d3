r"""The singular value decomposition of a stream of snapshots, block by block, in bounded memory.

Snapshots are the rows of A (N x n); only the newest block of them is stored. The stream keeps k rows T (k x n), such that
A^H A = T^H T + (what was dropped). A new block A' of b snapshots is added by

    B = [T; A']                          the stored rows, (k + b) x n
    G = B B^H                            one product, and one sum over the ranks of a (k + b)^2 matrix
    G = W diag(lambda) W^H               small; lambda in descending order
    T <- W_k^H B                         one product; W_k are the first k columns of W

Three properties make this safe for data of numerically low rank, such as smooth fields:

- T holds sigma_i times the mode, never the mode itself, so no row is ever divided by a small singular value: T <- W^H B is a
  rotation with rounding errors of the order of eps sigma_0, however inaccurate the small eigenvectors are.
- G is computed from the actual rows, without assuming that they are orthogonal. Each update therefore corrects the loss of
  orthogonality in T, and errors do not accumulate over the stream.
- Modes are computed only at the end. The rows of T are first scaled to length one, which makes their Gram matrix well
  conditioned, and then orthonormalised twice.

Bound. W is unitary, so B^H B = T_new^H T_new + D^H D with D the dropped rows, and over all updates

    A^H A = T^H T + sum_j D_j^H D_j ,     hence     sigma_i^2 <= sigma_i(A)^2 <= sigma_i^2 + sum_j d_j^2 ,

with d_j the largest value dropped in update j. This bound is never larger than the sum of the d_j (Weyl), and much smaller for
large sigma_i. The trace of the same identity gives the captured energy exactly.

Mean. With ``centre`` the result is exactly the decomposition of the fluctuations about the mean of all snapshots: if m is the
mean of the n earlier snapshots, and the rows of A' are the b new ones minus m, then the scatter about the new mean grows by

    A'^H (I - J/(n + b)) A' = (R A')^H (R A') ,    R = I - (1 - sqrt(n/(n + b))) J/b ,    J = 1 1^T ,

so R A' replaces A'. R is small: it is applied to G and to W, never to the long rows.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import lapwing as lw

from ..analysis import CollectiveError
from ..solver.arrays import double_dtype, to_host
from .rows import Rows

if TYPE_CHECKING:
    from .jax_rows import JaxRows

_EPS = float(np.finfo(np.float64).eps)
_STATE: tuple[str, ...] = ("kept", "held", "labels", "count", "total", "dropped", "dropped_first", "weyl")
_STATE += ("largest", "rounding", "updates", "values")
_TINY = 1e-280  # smaller squares have few digits left
# error of the eigenvalues of G, in eps times the largest one; measured below 2 on smooth fields, sizes 64 to 131072
_GRAM_ERROR = 4.0


@dataclass(frozen=True)
class Decomposition:
    """The result: A = V diag(sigma) U.

    sigma : (K,) singular values, descending.
    basis : (K, k) the modes in terms of the stream's rows: U = basis @ T.
    right : (N, K) right singular vectors V, or None.
    bounds : (K,) each singular value is at most this far below the true one.
    weyl : sum over updates of the largest dropped value; a simpler, larger bound.
    energy : fraction of the sum of squares of A that the K modes hold.
    total : the sum of squares of A.
    """

    sigma: np.ndarray
    basis: np.ndarray
    right: np.ndarray | None
    bounds: np.ndarray
    weyl: float
    energy: float
    total: float


class BlockSVD:
    """The stream. Add snapshots with `put`; when it is `full`, call `update` on all ranks; `result` works at any time.

    Parameters
    ----------
    rank : int
        Number of modes, K. Twice as many rows are kept, so that the last modes are as accurate as the first ones.
    tol : float, optional
        Keep and report more modes, until the part of A outside of them is at most ``tol`` times A in the Frobenius norm.
    max_rank : int, optional
        Never report more modes than this; default max(4 rank, 128) with ``tol``.
    block : int, optional
        Number of snapshots in a block; default 2 rank, but at least 16 and at most 128.
    centre : bool
        Subtract the mean.
    right : bool
        Keep the data for the right vectors: about 8 k (k + b)/b bytes per snapshot.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing.insitu.analyses.blocks import BlockSVD
    >>> from lapwing.insitu.analyses.rows import Layout, make_rows
    >>> a = np.random.default_rng(0).standard_normal((40, 3)) @ np.random.default_rng(1).standard_normal((3, 500))
    >>> stream = BlockSVD(3)
    >>> stream.open(make_rows("numpy", a, Layout.of(["a"], [(500,)], True), stream.capacity, a.dtype))
    >>> for i, x in enumerate(a):
    ...     stream.put(i, [x])
    ...     if stream.full:
    ...         stream.update()
    >>> stream.update()
    >>> result = stream.result()
    >>> bool(np.allclose(result.sigma, np.linalg.svd(a, compute_uv=False)[:3]))
    True
    """

    def __init__(
        self,
        rank: int | None = 10,
        *,
        block: int | None = None,
        centre: bool = False,
        right: bool = True,
        tol: float | None = None,
        max_rank: int | None = None,
    ) -> None:
        if rank is None and tol is None:
            raise ValueError("POD: rank=None needs tol\nhint: set rank, or tol, or both")
        self.rank = 1 if rank is None else _count(rank, "rank")
        if tol is not None and not 0 < tol < 1:
            raise ValueError(f"POD: tol must be between 0 and 1, got {tol!r}")
        self.tol = tol
        if max_rank is None:
            max_rank = self.rank if tol is None else max(4 * self.rank, 128)
        self.max_rank = max(_count(max_rank, "max_rank"), self.rank)
        self.block = min(max(2 * self.rank, 16), 128) if block is None else _count(block, "block")
        self.centre, self.right = centre, right
        self.rows: Rows | JaxRows | None = None
        self.kept = 0  # k, the number of rows of T
        self.held = 0  # number of snapshots in the current block
        self.labels: list[int] = []  # their steps
        self.count = 0  # number of snapshots in T
        self.total = 0.0  # their sum of squares, about the mean if centred
        self.dropped = 0.0  # sum of squares of all dropped values
        self.dropped_first = 0.0  # sum of d_j^2
        self.weyl = 0.0  # sum of d_j
        self.largest = 0.0  # sigma_0
        self.rounding = 0.0
        self.updates = 0
        self.values = np.zeros(0)  # singular values after the last update
        self.factors: list[tuple[np.ndarray, int, int]] = []  # (W, k before, n before) of each update, for the right vectors
        self.mean: Any = None
        self.scale: Any = None  # square roots of the weights
        self._check = 0

    @property
    def capacity(self) -> int:
        """Number of rows to allocate."""
        return max(2 * self.rank, self.kept) + self.block

    @property
    def full(self) -> bool:
        return self.held == self.block

    def open(self, rows: Rows | JaxRows, scale: Any = None) -> None:
        """Store the rows here; ``scale`` (in the layout of the rows) multiplies every snapshot."""
        self.rows = rows
        self.scale = scale
        if self.centre:
            self.mean = rows.vector(dtype=double_dtype(rows.dtype))

    def put(self, label: int, arrays: list[Any]) -> None:
        """Copy one snapshot into the block. ``label`` names it in messages."""
        rows = self._rows
        if self.centre and not self.count and not self.held:
            # before the first block any vector near the data can serve as the mean; it makes the rows small
            self.mean = self._first_mean(arrays)
        rows.put(self.kept + self.held, arrays, self.scale, self.mean)
        self.held += 1
        self.labels.append(label)

    def discard(self) -> None:
        """Discard the current block."""
        self.held = 0
        self.labels = []

    def update(self, comm: Any = None) -> None:
        """Add the block to T, with one all-reduce. Snapshots with NaN or Inf are left out; an error then names them."""
        if not self.held:
            return
        rows, k, b = self._rows, self.kept, self.held
        gram = self._reduced(rows.gram(k + b), comm)
        squares = gram.diagonal().real
        bad = [i for i in range(b) if not np.isfinite(squares[k + i]) or self._too_small(squares, k + i, comm)]
        refused = [(self.labels[i], rows.not_finite(k + i)) for i in bad]
        good = np.setdiff1d(np.arange(k + b), [k + i for i in bad])
        gram = gram[np.ix_(good, good)]
        b -= len(bad)
        for i in bad:
            rows.zero(k + i)  # 0 times NaN is not 0
        if b:
            self._add(gram, good, b)
        self.discard()
        if refused:
            raise NotFinite(refused)

    def _too_small(self, squares: np.ndarray, row: int, comm: Any) -> bool:
        """Whether all values so far are so small that their squares have lost digits, and this row is not zero."""
        if not squares.max() < _TINY:
            return False
        if squares[row] > 0:
            return True
        alone = comm is None or comm.size == 1  # several ranks would have to agree on it
        return alone and float(to_host(abs(self._rows.data[:, row]).max())) > 0

    def _add(self, gram: np.ndarray, good: np.ndarray, b: int) -> None:
        rows, k, n = self._rows, self.kept, self.count
        # B <- [T; R A'], hence G <- [I 0; 0 R] G [I 0; 0 R]
        if self.centre:
            shrink = (1.0 - np.sqrt(n / (n + b))) / b
            gram[:, k:] -= shrink * gram[:, k:].sum(axis=1, keepdims=True)
            gram[k:] -= shrink * gram[k:].sum(axis=0, keepdims=True)
        new = float(np.trace(gram[k:, k:]).real)
        # G = W diag(lambda) W^H
        values, vectors = lw.eigh((gram + gram.conj().T) / 2)
        values, w = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        kept = self._how_many(values, new)
        # the largest dropped value, and its error
        first = (values[kept] if kept < len(values) else 0.0) + _GRAM_ERROR * _EPS * values[0]
        self.dropped += float(values[kept:].sum())
        self.dropped_first += first
        self.weyl += float(np.sqrt(first))
        self.total += new
        self.largest = float(np.sqrt(values[0]))
        eps = float(np.finfo(rows.dtype).eps)
        self.rounding = max(self.rounding, eps * self.largest * np.sqrt(k + b))
        w = np.ascontiguousarray(w[:, :kept])
        if self.right:
            self.factors.append((w, k, n))
        spread = np.zeros((k + self.held, kept), w.dtype)
        spread[good] = w
        extra = None
        if self.centre:
            # T <- W_k^H [T; R A']: R goes into W
            spread[good[k:]] -= shrink * w[k:].sum(axis=0)
            # m <- m + 1^T A' / (n + b)
            extra = np.zeros((1, k + self.held))
            extra[0, good[k:]] = 1.0 / (n + b)
        if kept + self.block > rows.capacity:
            rows.grow(min(kept + kept // 2, 2 * self.max_rank) + self.block if kept < 2 * self.max_rank else kept + self.block)
        shift = rows.rotate(k + self.held, spread, extra)
        if self.centre:
            self.mean = self.mean + shift
        self.kept = kept
        self.values = np.sqrt(values[:kept])
        self.count += b
        self.updates += 1
        self._check = zlib.crc32(w.tobytes()) & 0xFFFF

    def _how_many(self, values: np.ndarray, new: float) -> int:
        """Number of rows to keep: 2 K, or more if the tolerance needs them."""
        if not values[0] > 0:
            return 0
        keep = 2 * self.rank
        if self.tol is not None:
            # the updates may use half the tolerance, in proportion to the energy of each block; the end uses the other half
            allowed = (self.tol / 2) ** 2 * new
            tail = np.append(np.cumsum(values[::-1])[::-1], 0.0)
            enough = int(np.argmax(tail <= allowed))
            # smaller eigenvalues are rounding errors
            known = int(np.sum(values > _GRAM_ERROR * _EPS * values[0]))
            keep = max(keep, min(enough, known, 2 * self.max_rank))
        return min(keep, len(values))

    # ------------------------------------------------------------------------------------------------------------- result

    def result(self, comm: Any = None) -> Decomposition:
        """The decomposition of the complete blocks. The stream does not change; several ranks need two small all-reduces."""
        basis, sigma, left = self._orthonormal(comm)
        lost = self.total - float((sigma**2).sum())
        reported = min(self.rank, len(sigma))
        if self.tol is not None and self.total > 0:
            # sum of squares outside of the first K modes
            outside = np.maximum(lost + np.append(np.cumsum(sigma[::-1] ** 2)[::-1], 0.0), 0.0)
            within = outside <= self.tol**2 * self.total
            enough = int(np.argmax(within)) if within[-1] else len(sigma)
            reported = min(max(reported, enough), self.max_rank, len(sigma))
        sigma, basis, left = sigma[:reported], basis[:reported], left[:, :reported]
        right = self._coefficients() @ left if self.right else None
        if right is not None and reported:
            # the sign of a mode is arbitrary: make its largest coefficient positive
            signs = _signs(right)
            right, basis = right * signs.conj(), basis * signs[:, None]
        return Decomposition(sigma, basis, right, self.bounds(sigma), self.weyl, self.energy(sigma), self.total)

    def bounds(self, sigma: np.ndarray) -> np.ndarray:
        """How far the true singular values can be above these."""
        # sqrt(s^2 + d) - s without cancellation
        above = np.sqrt(sigma**2 + self.dropped_first) + sigma
        gap = np.divide(self.dropped_first, above, out=np.zeros_like(sigma), where=above > 0)
        return gap + self.updates * self.rounding  # type: ignore[no-any-return]

    def energy(self, sigma: np.ndarray) -> float:
        """Fraction of the sum of squares that modes with these singular values hold."""
        return min(float((sigma**2).sum()) / self.total, 1.0) if self.total > 0 else 1.0

    def tolerance_met(self, sigma: np.ndarray) -> bool:
        """Whether the part outside these modes is within the tolerance."""
        outside = max(self.total - float((sigma**2).sum()), 0.0)
        return self.tol is None or outside <= self.tol**2 * self.total + 10 * _EPS * self.total

    def modes(self, result: Decomposition) -> list[Any]:
        """U for each field, in the library of the rows: arrays (K, *shape), divided by the square roots of the weights."""
        inverse = None if self.scale is None else _inverse(self.scale)
        return self._rows.combine(self.kept, result.basis, inverse)

    def means(self) -> list[Any]:
        """The mean of each field."""
        mean = self.mean if self.scale is None else self.mean * _inverse(self.scale)
        return self._rows.fields_of(mean)

    def _orthonormal(self, comm: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """C, sigma, P with U = C T orthonormal and T = P diag(sigma) U."""
        k = self.kept
        empty = np.zeros((0, k)), np.zeros(0), np.zeros((k, 0))
        if not k:
            return empty
        gram = self._reduced(self._rows.gram(k), comm, check=False)
        lengths = np.sqrt(np.maximum(np.diag(gram).real, 0.0))
        # rows as short as rounding errors hold no information
        eps = float(np.finfo(self._rows.dtype).eps)
        floor = 10.0 * np.sqrt(self.updates + k) * eps * lengths.max()
        live = lengths > floor
        if not live.any():
            return empty
        # D G D has a unit diagonal: its entries are accurate to eps, however short the rows
        scale = 1.0 / lengths[live]
        values, w = lw.eigh(scale[:, None] * gram[np.ix_(live, live)] * scale)
        sound = values > k * _EPS * values[-1]
        values, w = values[sound], w[:, sound]
        first = np.zeros((len(values), k), w.dtype)
        first[:, live] = (w / np.sqrt(values)).conj().T * scale  # C1 = Lambda^-1/2 W^H D
        # once more, on rows that are nearly orthonormal: G3 = L L^H, C = L^-1 C1
        gram = self._reduced(self._rows.gram(k, first), comm, check=False)
        values3, w3 = lw.eigh((gram + gram.conj().T) / 2)
        basis = (w3 / np.sqrt(values3)).conj().T @ first
        # T = D^-1 W Lambda^1/2 (C1 T) and C1 T = W3 Lambda3^1/2 (C T)
        core = np.zeros((k, len(values)), w.dtype)
        core[live] = lengths[live][:, None] * (w * np.sqrt(values)) @ (w3 * np.sqrt(values3))
        left, sigma, right = np.linalg.svd(core, full_matrices=False)
        strong = sigma > floor
        return (right @ basis)[strong], sigma[strong], left[:, strong]

    def _coefficients(self) -> np.ndarray:
        """The coefficients (N, k) of every snapshot (about the mean, if centred) in the rows T.

        A' = W T_new on the rows of the block, T_old = W T_new on the others; going back from the last update, P T_last = T_now.
        """
        k = self.kept
        p = np.eye(k)
        drift: Any = 0.0  # mean at the end minus mean after this update, as coefficients of T
        blocks = []
        for w, before, n in reversed(self.factors):
            new = w[before:]
            b = new.shape[0]
            if self.centre:
                # A' - (new mean - m) = R^2 A' = R (R A'), and R A' = W T
                shrink = (1.0 - np.sqrt(n / (n + b))) / b
                total = new.sum(axis=0)
                blocks.append((new - shrink * total) @ p - drift)
                if n:
                    # new mean - m = 1^T A'/(n + b) = 1^T R A' / sqrt(n (n + b))
                    drift = drift + (total / np.sqrt(n * (n + b))) @ p
            else:
                blocks.append(new @ p)
            p = w[:before] @ p
        return np.concatenate(blocks[::-1]) if blocks else np.zeros((0, k))

    # --------------------------------------------------------------------------------------------------------------- ranks

    def _reduced(self, gram: np.ndarray, comm: Any, check: bool = True) -> np.ndarray:
        """Sum the Gram matrix over the ranks, and check that all of them have applied the same rotations."""
        if comm is None or comm.size == 1:
            return gram
        flat = np.append(np.ascontiguousarray(gram).reshape(-1).view(np.float64), [self._check, self._check**2])
        flat = comm.sum(flat)
        # integers below 2^53, so the sums are exact: all equal if and only if p sum(c^2) = sum(c)^2
        if check and comm.size * flat[-1] != flat[-2] ** 2:
            raise CollectiveError(
                "POD: the ranks no longer agree on their modes; the MPI library must return the same sum on all of them"
            )
        return flat[:-2].view(gram.dtype).reshape(gram.shape)  # type: ignore[no-any-return]

    @property
    def _rows(self) -> Rows | JaxRows:
        if self.rows is None:
            raise RuntimeError("POD: there are no snapshots yet")
        return self.rows

    def _first_mean(self, arrays: list[Any]) -> Any:
        rows = self._rows
        mean = rows.vector(arrays, double_dtype(rows.dtype))
        if self.scale is not None:
            mean = mean * self.scale
        # a first snapshot with NaN must not spoil those after it
        return mean if np.isfinite(to_host(mean.sum())) else rows.vector(dtype=double_dtype(rows.dtype))

    # ------------------------------------------------------------------------------------------------------------- restart

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: getattr(self, name) for name in _STATE}
        state |= {"check": self._check, "factors": [list(f) for f in self.factors]}
        state["settings"] = self._settings()
        if self.rows is not None:
            state["rows"] = self.rows.to_host(self.kept + self.held)
            state["capacity"] = self.rows.capacity
            state["mean"] = self.mean
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Load a state; if it has rows, the storage must be open."""
        self.check_settings(state)
        for name in _STATE:
            setattr(self, name, state[name])
        self._check = state["check"]
        self.labels = list(self.labels)
        self.factors = [(f[0], f[1], f[2]) for f in state["factors"]]
        if "rows" in state:
            if state["capacity"] > self._rows.capacity:
                self._rows.grow(state["capacity"])
            self._rows.from_host(state["rows"])
            if self.centre:
                self.mean = self._rows.take_vector(state["mean"])

    def check_settings(self, state: dict[str, Any]) -> None:
        saved, own = state["settings"], self._settings()
        if saved != own:
            differ = ", ".join(f"{name}={saved[name]} (here {own[name]})" for name in own if saved[name] != own[name])
            raise ValueError(f"POD: the checkpoint was written with {differ}")

    def _settings(self) -> dict[str, Any]:
        names = ("rank", "tol", "max_rank", "block", "centre", "right")
        return {name: getattr(self, name) for name in names}


class NotFinite(CollectiveError):
    """Snapshots with NaN or Inf, on this rank or another, or with values too large or too small to be squared.

    ``refused`` has the step and the names of the fields; no names if all values are finite on this rank.
    """

    def __init__(self, refused: list[tuple[int, list[str]]]) -> None:
        elsewhere = "on another rank (or values too large or too small to be squared)"
        words = []
        for label, names in refused:
            where = " and ".join(f"in field {name!r}" for name in names) or elsewhere
            words.append(f"step {label}: NaN or Inf {where}")
        super().__init__(f"POD: {'; '.join(words)}; left out")
        self.refused = refused


def _signs(right: np.ndarray) -> np.ndarray:
    largest = right[np.argmax(np.abs(right), axis=0), np.arange(right.shape[1])]
    return largest / np.abs(largest)  # type: ignore[no-any-return]


def _inverse(scale: Any) -> Any:
    """1/scale, and 0 where scale is 0: in the padding of the last chunk."""
    return 1.0 / (scale + (scale == 0)) * (scale != 0)


def _count(value: int, name: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"POD: {name} must be a positive whole number, got {value!r}")
    return value
