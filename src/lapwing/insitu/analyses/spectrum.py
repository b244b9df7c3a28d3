"""The power spectrum of a field in space, averaged over the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..analysis import AT_END, Analysis, CollectiveError, Context
from ..solver.arrays import functions_of, host_as_numpy, library_of, restore_array, to_host
from ..solver.guard import Guard, check_shape


class Spectrum(Analysis):
    """Power of the Fourier modes along one axis of a field, averaged over the other axes, the steps and the ranks.

    With u_hat = fft(u) / N for N points, the power of wavenumber k is |u_hat_k|^2 + |u_hat_-k|^2; the sum over all k is the
    mean square of the field (Parseval). For a spectrum in time, transform the history that a `Probe` records.

    Parameters
    ----------
    field : str
    axis : int
        Axis of the transform; each rank must hold all its points.
    window : {None, "hann"}
        A window for fields that are not periodic, scaled so that it keeps the mean square of noise.
    every : int

    Attributes
    ----------
    power : array
        Power of each wavenumber, mean over the run.
    last : array
        Power in the last step.
    wavenumbers : array
        2 pi k / L if the mesh has a spacing, else whole numbers k.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> x = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    >>> spectrum = insitu.Spectrum("u")
    >>> with insitu.Hub([spectrum], output=None, quiet=True) as hub:
    ...     for n in range(4):
    ...         status = hub.step(n, 0.1 * n, u=2 * np.sin(5 * x + n))
    >>> int(spectrum.power.argmax()), round(float(spectrum.power.sum()), 12)
    (5, 2.0)
    """

    collective = True
    collective_every = AT_END

    def __init__(self, field: str, *, axis: int = -1, window: str | None = None, every: int = 1) -> None:
        if window not in (None, "hann"):
            raise ValueError(f"Spectrum: window must be None or 'hann', got {window!r}")
        self.fields = (field,)
        self.axis, self.window, self.every = axis, window, every
        self.count = 0
        self.wavenumbers: np.ndarray = np.zeros(0)
        self._sum: Any = None
        self._last: Any = None
        self._shape: tuple[int, ...] | None = None
        self._taper: Any = None
        self._mean: np.ndarray | None = None
        self._guard = Guard("Spectrum")

    def on_start(self, ctx: Context) -> None:
        self._mesh = ctx.mesh

    def on_step(self, ctx: Context, u: Any) -> None:
        u = host_as_numpy(u)
        name = (self.fields or ("",))[0]
        shape = tuple(u.shape)
        if self._shape is None:
            self._open(name, shape)
        assert self._shape is not None
        check_shape("Spectrum", ctx.step, name, shape, self._shape)
        self._guard.check(ctx.step, name, u)
        self._last = self._power(u)
        self._sum = self._last if self._sum is None else self._sum + self._last
        self.count += 1

    def _open(self, name: str, shape: tuple[int, ...]) -> None:
        if not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"Spectrum: field {name!r} of shape {shape} has no axis {self.axis}")
        axis = self.axis % len(shape)
        n = shape[axis]
        mesh = self._mesh
        if mesh is not None and mesh.global_shape is not None and mesh.global_shape[axis] != n:
            raise ValueError(
                f"Spectrum: this rank has {n} of the {mesh.global_shape[axis]} points of axis {axis} of field {name!r}"
                "\nhint: choose an axis that is not split between the ranks"
            )
        self._shape = shape
        if self.window == "hann":
            taper = np.hanning(n + 1)[:-1]
            self._taper = taper / np.sqrt((taper**2).mean())
        unit = 1.0 if mesh is None or mesh.spacing is None else 2 * np.pi / (n * mesh.spacing[axis])
        self.wavenumbers = unit * np.arange(n // 2 + 1)

    def _power(self, u: Any) -> Any:
        """|u_hat|^2 for the wavenumbers 0, 1, ..., n/2, both signs added, mean over the other axes."""
        with functions_of(u) as xp:
            u = xp.moveaxis(u.detach() if library_of(u) == "torch" else u, self.axis, -1)
            n = u.shape[-1]
            if self._taper is not None:
                u = u * restore_array(library_of(u), self._taper)
            power = (abs(xp.fft.fft(u) / n) ** 2).reshape(-1, n).mean(0)
            # k and n - k are the same wavenumber; 0, and n/2 if n is even, have no partner
            paired = (n - 1) // 2
            other = xp.flip(power[n - paired :], (0,))
            return xp.hstack([power[:1], power[1 : paired + 1] + other, power[paired + 1 : n // 2 + 1]])

    def on_finish(self, ctx: Context) -> None:
        self._guard.flush()
        if ctx.size == 1:
            return
        size = float(np.prod(self._shape)) if self._shape else 0.0
        here = len(self.wavenumbers)
        # a rank without a part of the field has no wavenumbers and is left out of the comparison
        length, shortest = ctx.comm.maximum(np.array([here, -here if here else -(1 << 62)], np.int64))
        if length and -shortest != length:
            raise CollectiveError(
                f"Spectrum: the ranks have {-shortest} to {length} wavenumbers; each rank must hold all points of the axis"
            )
        local = np.zeros(int(length) + 1)
        if self.count and size:
            local[:-1] = size * to_host(self._sum) / self.count
            local[-1] = size
        total = ctx.comm.sum(local)
        self._mean = total[:-1] / total[-1] if total[-1] else total[:-1]

    @property
    def power(self) -> np.ndarray:
        if self._mean is not None:
            return self._mean
        return to_host(self._sum) / self.count if self.count else np.zeros(0)

    @property
    def last(self) -> np.ndarray:
        return to_host(self._last) if self._last is not None else np.zeros(0)

    def results(self) -> dict[str, Any]:
        return {"power": self.power, "last": self.last, "wavenumbers": self.wavenumbers, "count": self.count}

    def summary(self) -> str:
        if not self.count:
            return "no steps"
        k = int(self.power.argmax())
        return f"{self.count} steps, most power at wavenumber {self.wavenumbers[k]:g}"

    def status(self) -> dict[str, Any]:
        return {"power": [float(x) for x in self.last[:256]]}

    def state(self) -> dict[str, Any]:
        self._guard.flush()
        return {
            "count": self.count,
            "sum": self._sum,
            "last": self._last,
            "library": library_of(self._sum),
            "shape": None if self._shape is None else list(self._shape),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self._sum = restore_array(state["library"], state["sum"])
        self._last = restore_array(state["library"], state["last"])
        if state["shape"] is not None:
            self._open((self.fields or ("",))[0], tuple(state["shape"]))
