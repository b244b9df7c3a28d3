"""Mean, variance, smallest and largest value of a field over the run, at every point."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..analysis import AT_END, Analysis, Context, as_names, choose_name
from ..solver.arrays import as_double, functions_of, host_as_numpy, library_of, numpy_dtype, restore_array, to_host
from ..solver.guard import Guard, check_shape


class _Moments:
    """Running moments of one field, on its device, in double precision.

    Add one snapshot x (Welford): d = x - mean, mean += d/n, m2 += conj(d) (x - new mean).
    Merge two runs (Chan): mean += d n2/n, m2 += m2' + |d|^2 n1 n2/n, with d the difference of the means.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = None
        self.m2: Any = None
        self.low: Any = None
        self.high: Any = None

    def add(self, x: Any) -> None:
        self.count += 1
        with functions_of(x) as xp:
            x = as_double(x)
            real = numpy_dtype(x).kind != "c"
            if self.mean is None:
                self.mean = x + 0  # a copy: the conversion may have returned the solver's own array
                self.m2 = xp.zeros_like(x.real)
                if real:
                    self.low, self.high = x + 0, x + 0
                return
            d = x - self.mean
            self.mean = self.mean + d / self.count
            after = x - self.mean
            self.m2 = self.m2 + (d * after if real else (d.conj() * after).real)
            if real:
                self.low, self.high = xp.minimum(self.low, x), xp.maximum(self.high, x)

    def merge(self, other: _Moments) -> None:
        if not other.count:
            return
        if not self.count:
            self.__dict__.update(other.__dict__)
            return
        n = self.count + other.count
        d = to_host(other.mean) - to_host(self.mean)
        self.m2 = to_host(self.m2) + to_host(other.m2) + np.abs(d) ** 2 * (self.count * other.count / n)
        self.mean = to_host(self.mean) + d * (other.count / n)
        if self.low is not None:
            self.low = np.minimum(to_host(self.low), to_host(other.low))
            self.high = np.maximum(to_host(self.high), to_host(other.high))
        self.count = n


class Stats(Analysis):
    """Mean, variance, minimum and maximum over time at every point, and over the whole run and all ranks.

    Parameters
    ----------
    *fields : str
    every : int
    spread : int
        Degrees of freedom subtracted in the variance: 0, or 1 for the estimate from a sample.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> stats = insitu.Stats("u")
    >>> with insitu.Hub([stats], output=None, quiet=True) as hub:
    ...     for n in range(5):
    ...         status = hub.step(n, 0.1 * n, u=np.array([1.0, n]))
    >>> stats.mean("u"), stats.variance("u"), stats.maximum("u")
    (array([1., 2.]), array([0., 2.]), array([1., 4.]))
    >>> stats.overall("u")["max"]
    4.0
    """

    collective = True
    collective_every = AT_END

    def __init__(self, *fields: str, every: int = 1, spread: int = 0) -> None:
        self.fields = as_names(fields, "Stats('u')")
        self.every = every
        self.spread = spread
        self._moments = {name: _Moments() for name in self.fields}
        self._overall: dict[str, dict[str, float]] = {}
        self._guard = Guard("Stats")

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        names = self.fields or ()
        arrays = tuple(host_as_numpy(a) for a in arrays)
        for name, array in zip(names, arrays, strict=True):
            if self._moments[name].count:
                check_shape("Stats", ctx.step, name, array.shape, self._moments[name].mean.shape)
            self._guard.check(ctx.step, name, array)
        for name, array in zip(names, arrays, strict=True):
            self._moments[name].add(array)

    def on_finish(self, ctx: Context) -> None:
        self._guard.flush()
        for name in self.fields or ():
            self._overall[name] = self._over_space(self._moments[name], ctx.comm)

    def _over_space(self, moments: _Moments, comm: Any) -> dict[str, float]:
        """The statistics over all points, steps and ranks, in three small reductions."""
        have = moments.count > 0 and moments.mean.shape != (0,) and to_host(moments.mean).size > 0
        mean = np.abs(to_host(moments.mean)) if have and moments.low is None else to_host(moments.mean) if have else np.zeros(0)
        sums = comm.sum(np.array([float(mean.sum()), float(mean.size)]))
        centre = sums[0] / sums[1] if sums[1] else np.nan
        # the variance over space and time is the mean variance in time plus the variance of the means in space
        spread = float(to_host(moments.m2).sum() / moments.count + ((mean - centre) ** 2).sum()) if have else 0.0
        variance = comm.sum(np.array([spread]))[0] / sums[1] if sums[1] else np.nan
        known = have and moments.low is not None
        ends = np.array([-to_host(moments.low).min(), to_host(moments.high).max()] if known else [-np.inf, -np.inf])
        low, high = comm.maximum(ends)
        return {"mean": float(centre), "variance": float(variance), "min": float(-low), "max": float(high)}

    def merge(self, other: Stats) -> None:
        """Add the statistics of another run with the same fields (another time span, or another member of an ensemble)."""
        for name in self.fields or ():
            self._moments[name].merge(other._moments[name])

    def count(self, field: str | None = None) -> int:
        return self._of(field).count

    def mean(self, field: str | None = None) -> Any:
        return self._of(field).mean

    def variance(self, field: str | None = None) -> Any:
        moments = self._of(field)
        return moments.m2 / max(moments.count - self.spread, 1)

    def minimum(self, field: str | None = None) -> Any:
        return self._of(field).low

    def maximum(self, field: str | None = None) -> Any:
        return self._of(field).high

    def overall(self, field: str | None = None) -> dict[str, float]:
        """mean, variance, min and max over all points, steps and ranks; known after the run."""
        return self._overall[choose_name("Stats", field, self._moments)]

    def _of(self, field: str | None) -> _Moments:
        return self._moments[choose_name("Stats", field, self._moments)]

    def results(self) -> dict[str, Any]:
        """All results, for `Writer`."""
        results: dict[str, Any] = {}
        for name, m in self._moments.items():
            if m.count:
                results[f"mean_{name}"], results[f"count_{name}"] = to_host(m.mean), m.count
                results[f"variance_{name}"] = to_host(self.variance(name))
                if m.low is not None:
                    results[f"min_{name}"], results[f"max_{name}"] = to_host(m.low), to_host(m.high)
        return results

    def summary(self) -> str:
        return "; ".join(
            f"{name}: mean {s['mean']:.6g}, in [{s['min']:.6g}, {s['max']:.6g}]" for name, s in self._overall.items()
        )

    def state(self) -> dict[str, Any]:
        self._guard.flush()
        return {name: dict(vars(m)) | {"library": library_of(m.mean)} for name, m in self._moments.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, m in self._moments.items():
            saved = state[name]
            library = saved.pop("library")
            for key, value in saved.items():
                setattr(m, key, restore_array(library, value))
