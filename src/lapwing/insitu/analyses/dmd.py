"""Dynamic mode decomposition, computed from the coefficients of a streaming POD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..analysis import Analysis, Context
from ..solver.arrays import to_host
from .pod import POD


@dataclass(frozen=True)
class _Result:
    eigenvalues: np.ndarray
    vectors: np.ndarray
    amplitudes: np.ndarray
    dt: float


class DMD(Analysis):
    """Modes that grow, decay and oscillate, each with one complex frequency: x(n + 1) = A x(n) with A of low rank.

    The snapshots are x = U^T c with the modes U and the coefficients c of a POD. A is computed from the small vectors c;
    no array of a field's length is used until you ask for modes.

    Parameters
    ----------
    *source : str, or one POD
        Names of fields, for which this analysis runs a POD itself; or a POD of the same hub that is listed before this one.
    rank : int, optional
        Number of singular values of the coefficients to use; by default all that exceed rounding errors.
    modes : int
        Rank of the POD that this analysis runs.
    **pod
        Other options of that POD: tol, weights, every, block.

    Attributes
    ----------
    eigenvalues : (r,) complex
        Growth factor of each mode from one snapshot to the next, sorted by falling amplitude.
    frequencies, growth : (r,)
        A mode evolves as exp((growth + 2 pi i frequency) t).
    amplitudes : (r,) complex
        Amplitude of each mode in the first snapshot.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> x = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    >>> dmd = insitu.DMD("u", modes=4)
    >>> with insitu.Hub([dmd], output=None, quiet=True) as hub:
    ...     for n in range(200):
    ...         t = 0.05 * n
    ...         status = hub.step(n, t, u=np.exp(-0.1 * t) * np.sin(x - 3 * t))
    >>> bool(np.allclose(dmd.growth, -0.1)), bool(np.allclose(np.abs(dmd.frequencies), 3 / (2 * np.pi)))
    (True, True)
    """

    def __init__(self, *source: str | POD, rank: int | None = None, modes: int = 10, **pod: Any) -> None:
        if len(source) == 1 and isinstance(source[0], POD):
            if pod:
                raise TypeError(f"DMD: {', '.join(pod)}: set these options on the POD that you pass")
            self.pod, self._owns_pod = source[0], False
        else:
            self.pod, self._owns_pod = POD(*source, rank=modes, **pod), True  # type: ignore[arg-type]
            self.fields = self.pod.fields
            self.every = self.pod.every
            self.collective_every = self.pod.collective_every
        if rank is not None and rank < 1:
            raise ValueError(f"DMD: rank must be positive, got {rank}")
        self.collective = self._owns_pod
        self.rank = rank
        self._solved: _Result | None = None

    def on_start(self, ctx: Context) -> None:
        if self._owns_pod:
            self.pod.on_start(ctx)

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        if self._owns_pod:
            self.pod.on_step(ctx, *arrays)

    def on_collective(self, ctx: Context) -> None:
        self.pod.on_collective(ctx)

    def on_skipped(self, ctx: Context) -> None:
        self.pod.on_skipped(ctx)

    def on_finish(self, ctx: Context) -> None:
        if self._owns_pod:
            self.pod.on_finish(ctx)
        self._solve()

    def _solve(self) -> None:
        c = self.pod.coefficients
        if c is None:
            raise ValueError("DMD: the POD keeps no coefficients, because it has right=False")
        before, dt = _pairs(np.array(self.pod.steps), np.array(self.pod.times))
        # X, Y: columns are consecutive snapshots; X = P S Q^H
        x, y = c[before].T, c[before + 1].T
        if not x.size:
            self._solved = _Result(np.zeros(0, complex), np.zeros((c.shape[1], 0), complex), np.zeros(0, complex), dt)
            return
        p, s, qh = np.linalg.svd(x, full_matrices=False)
        r = int(np.sum(s > max(x.shape) * np.finfo(float).eps * s[0]))
        r = r if self.rank is None else min(r, self.rank)
        p, s, q = p[:, :r], s[:r], qh[:r].conj().T
        # A in the basis P: P^H Y Q S^-1
        values, w = np.linalg.eig(p.conj().T @ y @ (q / s))
        # modes of A itself: Y Q S^-1 w / lambda; where lambda is 0, the projected mode P w
        vectors = y @ (q / s) @ w
        fast = np.abs(values) > np.finfo(float).eps
        vectors = np.where(fast, vectors / np.where(fast, values, 1), p @ w)
        amplitudes = np.linalg.lstsq(vectors, c[0].astype(complex), rcond=None)[0]
        order = np.argsort(-np.abs(amplitudes), kind="stable")
        self._solved = _Result(values[order], vectors[:, order], amplitudes[order], dt)

    @property
    def eigenvalues(self) -> np.ndarray:
        return self._result.eigenvalues

    @property
    def amplitudes(self) -> np.ndarray:
        return self._result.amplitudes

    @property
    def growth(self) -> np.ndarray:
        return np.log(np.abs(self.eigenvalues)) / self._result.dt  # type: ignore[no-any-return]

    @property
    def frequencies(self) -> np.ndarray:
        return np.angle(self.eigenvalues) / (2 * np.pi * self._result.dt)  # type: ignore[no-any-return]

    def modes(self, field: str | None = None) -> np.ndarray:
        """Modes of a field (the first by default), complex, shape (r, *shape of the field), on the host."""
        u = to_host(self.pod.modes(field))
        return np.tensordot(self._result.vectors.T, u, axes=1)

    @property
    def _result(self) -> _Result:
        if self._solved is None:
            self._solve()
        assert self._solved is not None
        return self._solved

    def results(self) -> dict[str, Any]:
        """All results, for `Writer`."""
        results = {name: getattr(self, name) for name in ("eigenvalues", "amplitudes", "growth", "frequencies")}
        return results | {f"modes_{name}": self.modes(name) for name in self.pod.fields or ()}

    def summary(self) -> str:
        if self._solved is None:
            return "no result"
        pairs = [f"{f:.4g} ({g:+.3g})" for f, g in zip(self.frequencies[:3], self.growth[:3], strict=True)]
        return f"{len(self.eigenvalues)} modes, frequency (growth): {', '.join(pairs) or 'none'}"

    def state(self) -> dict[str, Any]:
        return {"pod": self.pod.state()} if self._owns_pod else {}

    def restore(self, state: dict[str, Any]) -> None:
        if self._owns_pod:
            self.pod.restore(state["pod"])
        self._solved = None


def _pairs(steps: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float]:
    """Indices of the snapshots that are followed by the next one, and the time between the two."""
    gaps = np.diff(steps)
    if not len(gaps):
        return np.zeros(0, int), 1.0
    gap = gaps.min()
    before = np.flatnonzero(gaps == gap)
    spans = np.diff(times)[before]
    dt = float(np.median(spans))
    if not dt > 0:
        return before, float(gap)  # the solver passed no times: count in steps
    if np.abs(spans - dt).max() > 1e-3 * dt:
        raise ValueError(f"DMD: snapshots must be equally spaced in time; they are {spans.min():g} to {spans.max():g} apart")
    return before, dt
