"""Proper orthogonal decomposition of a running simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..analysis import Analysis, Context, Sketch, as_names, choose_name
from ..solver.arrays import device_of, empty_like_device, host_as_numpy, library_of, numpy_dtype, to_host
from ..solver.guard import check_shape
from ..solver.mesh import Mesh
from .blocks import BlockSVD, Decomposition
from .preview import sketch_modes
from .rows import Layout, make_rows


class POD(Analysis):
    """The modes that hold most of the energy of a field over the run, computed without storing its history.

    This is the singular value decomposition A = V diag(sigma) U of the snapshots (the rows of A), computed block by block:
    `lapwing.insitu.analyses.blocks` has the method and its error bound. Each snapshot is copied once, on its device, so the
    solver may overwrite the field afterwards. Memory: 2 ``rank`` + ``block`` snapshots. With MPI each rank holds its part of
    the modes; a block costs one all-reduce of a small matrix.

    Parameters
    ----------
    *fields : str
        Names of the fields that form one state, for instance "u", "v".
    rank : int, optional
        Number of modes to report, K. Twice as many are kept inside.
    tol : float, optional
        Report more modes, until the part of the snapshots outside of them is at most ``tol`` times the whole (Frobenius norm),
        but never more than ``max_rank``.
    weights : array, float, dict or "mesh", optional
        Weights of the inner product, positive: an array of the field's shape (or one that broadcasts to it), a dict with one
        for each field, or "mesh" for the weights of the mesh (or the volume of its cells).
    centre : bool
        Decompose the fluctuations about the mean of all snapshots. This is exact, although the mean is only known at the end.
    every, block : int, optional
        Use steps whose number is a multiple of ``every``; process ``block`` snapshots at once (default 2 ``rank``).
    right : bool
        Keep the data for ``coefficients``, about 4 K numbers per snapshot at the default block size.

    Attributes
    ----------
    sigma : (K,) array
        Singular values; during the run, those of the complete blocks.
    bounds, bound : (K,) array, float
        How far each true singular value can be above the computed one, and the largest of these bounds.
    weyl : float
        The sum of the largest values dropped: a simpler, larger bound for all of them.
    energy : float
        Fraction of the sum of squares of all snapshots that the K modes hold. It is exact.
    right, coefficients : (N, K) arrays
        V, and V diag(sigma): the value of each mode in each snapshot. Both are None with ``right=False``.
    steps, times : lists
        Steps and times of the snapshots.

    Examples
    --------
    >>> import numpy as np
    >>> from lapwing import insitu
    >>> x = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    >>> history = [np.sin(x - 0.1 * n) for n in range(100)]
    >>> pod = insitu.POD("u", rank=3)
    >>> with insitu.Hub([pod], output=None, quiet=True) as hub:
    ...     for n, u in enumerate(history):
    ...         status = hub.step(n, 0.1 * n, u=u)
    >>> pod.sigma.size  # a travelling wave has two modes
    2
    >>> np.allclose(pod.coefficients @ pod.modes("u"), history)
    True
    """

    def __init__(
        self,
        *fields: str,
        rank: int | None = 10,
        tol: float | None = None,
        max_rank: int | None = None,
        weights: Any = None,
        centre: bool = False,
        every: int = 1,
        block: int | None = None,
        right: bool = True,
    ) -> None:
        self.fields = as_names(fields, "POD('u')")
        self.every = every
        self.weights = weights
        self.stream = BlockSVD(rank, tol=tol, max_rank=max_rank, block=block, centre=centre, right=right)
        self.collective_every = self.stream.block
        self.steps: list[int] = []
        self.times: list[float] = []
        self._pending: list[float] = []  # times of the snapshots in the current block
        self._layout: Layout | None = None
        self._kind: tuple[str, np.dtype] | None = None
        self._result: Decomposition | None = None
        self._modes: list[Any] | None = None
        self._mesh: Mesh | None = None

    # ----------------------------------------------------------------------------------------------------------- the run

    def on_start(self, ctx: Context) -> None:
        self._mesh = ctx.mesh

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        arrays = tuple(host_as_numpy(a) for a in arrays)
        if self._layout is None:
            library = library_of(arrays[0]) or "numpy"
            self._open(library, arrays[0], [tuple(a.shape) for a in arrays], _storage(arrays))
        self._check(ctx, arrays)
        self.stream.put(ctx.step, list(arrays))
        self._pending.append(ctx.time)

    def on_collective(self, ctx: Context) -> None:
        """Process the block."""
        labels, times, before = self.stream.labels, self._pending, self.stream.count
        self._pending = []
        refused: set[int] = set()
        try:
            self.stream.update(ctx.comm)
        except Exception as error:
            refused = {step for step, _ in getattr(error, "refused", ())}
            raise
        finally:
            if self.stream.count > before:
                kept = [i for i, step in enumerate(labels) if step not in refused]
                self.steps += [labels[i] for i in kept]
                self.times += [times[i] for i in kept]

    def on_skipped(self, ctx: Context) -> None:
        self.stream.discard()
        self._pending = []

    def on_finish(self, ctx: Context) -> None:
        try:
            self.on_collective(ctx)
        finally:
            self._result = self.stream.result(ctx.comm)
            if self.stream.rows is not None:
                self._modes = self.stream.modes(self._result)

    def _open(self, library: str, like: Any, shapes: list[tuple[int, ...]], dtype: np.dtype) -> None:
        """Allocate the rows on the device of the array ``like``."""
        layout = Layout.of(self.fields or (), shapes, on_host=library == "numpy")
        weights = self._weights(layout)
        rows = make_rows(library, like, layout, self.stream.capacity, dtype)
        scale = None
        if weights is not None:
            scale = rows.vector([np.sqrt(w) for w in weights], np.dtype(dtype.char.lower()))
        self.stream.open(rows, scale)
        self._layout, self._kind = layout, (library, dtype)

    def _weights(self, layout: Layout) -> list[np.ndarray] | None:
        if self.weights is None:
            return None
        weights = self.weights
        if isinstance(weights, str):
            if weights != "mesh":
                raise ValueError(f"POD: weights must be an array, a number, a dict or 'mesh', got {weights!r}")
            mesh = self._mesh
            if mesh is None or (mesh.weights is None and mesh.spacing is None):
                raise ValueError("POD: weights='mesh', but the mesh has neither weights nor spacing")
            weights = mesh.weights if mesh.weights is not None else float(np.prod(mesh.spacing or ()))
        arrays = []
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            w = np.asarray(to_host(weights[name] if isinstance(weights, dict) else weights), np.float64)
            try:
                w = np.broadcast_to(w, shape)
            except ValueError:
                raise ValueError(f"POD: weights of shape {w.shape} do not fit the field {name!r} of shape {shape}") from None
            if not (np.isfinite(w).all() and (w > 0).all()):
                raise ValueError(f"POD: the weights of the field {name!r} must be positive and finite")
            arrays.append(w)
        return arrays

    def _check(self, ctx: Context, arrays: tuple[Any, ...]) -> None:
        assert self._layout and self._kind
        for name, shape, array in zip(self._layout.names, self._layout.shapes, arrays, strict=True):
            check_shape("POD", ctx.step, name, array.shape, shape)
            library = library_of(array)
            if library != self._kind[0]:
                raise TypeError(f"POD: field {name!r} is a {library} array at step {ctx.step}, and was {self._kind[0]} before")
        kind = _storage(arrays)
        if kind.kind == "c" != self._kind[1].kind:
            raise TypeError(f"POD: a field is complex at step {ctx.step}, and was real before")

    # ----------------------------------------------------------------------------------------------------------- results

    def result(self) -> Decomposition:
        """The decomposition of all snapshots, or during the run of the complete blocks. Not during a run with MPI."""
        return self._result if self._result is not None else self.stream.result()

    @property
    def sigma(self) -> np.ndarray:
        return self._result.sigma if self._result is not None else self.stream.values[: self.stream.rank]

    @property
    def rank(self) -> int:
        """Number of modes; fewer than requested if the snapshots have a smaller rank."""
        return len(self.sigma)

    @property
    def bounds(self) -> np.ndarray:
        return self.stream.bounds(self.sigma)

    @property
    def bound(self) -> float:
        return float(self.bounds.max(initial=0.0))

    @property
    def weyl(self) -> float:
        return self.stream.weyl

    @property
    def energy(self) -> float:
        return self.stream.energy(self.sigma)

    @property
    def right(self) -> np.ndarray | None:
        return self.result().right

    @property
    def coefficients(self) -> np.ndarray | None:
        result = self.result()
        return None if result.right is None else result.right * result.sigma

    def modes(self, field: str | None = None) -> Any:
        """Modes of a field (the first by default), shape (K, *shape of the field), in the library of the field's arrays.

        They are orthonormal over all fields together, in the inner product of the weights.
        """
        modes = self._modes if self._modes is not None else self.stream.modes(self.result())
        return modes[self._index(field)]

    def mean(self, field: str | None = None) -> Any:
        """Mean of a field over the snapshots; only with ``centre``."""
        if not self.stream.centre:
            raise ValueError("POD: the mean is only computed with centre=True")
        return self.stream.means()[self._index(field)]

    def _index(self, field: str | None) -> int:
        names = self.fields or ()
        return names.index(choose_name("POD", field, names))

    def results(self) -> dict[str, Any]:
        """All results, for `Writer`."""
        results: dict[str, Any] = {"sigma": self.sigma, "bounds": self.bounds, "energy": self.energy, "weyl": self.weyl}
        results |= {"steps": np.array(self.steps), "times": np.array(self.times)}
        if self.coefficients is not None:
            results["coefficients"] = self.coefficients
        for name in self.fields or ():
            results[f"modes_{name}"] = to_host(self.modes(name))
            if self.stream.centre:
                results[f"mean_{name}"] = to_host(self.mean(name))
        return results

    def status(self) -> dict[str, Any]:
        return {
            "sigma": [float(x) for x in self.sigma],
            "energy": self.energy,
            "bound": self.bound,
            "snapshots": self.stream.count,
            "kept": self.stream.kept,
        }

    def sketch(self) -> list[Sketch]:
        return sketch_modes(self)

    def summary(self) -> str:
        sigma = ", ".join(f"{x:.6g}" for x in self.sigma[:4]) + (", ..." if len(self.sigma) > 4 else "")
        if not self.stream.count:
            return "no snapshots"
        left = 1.0 - self.energy
        # 100.000000% would not show how much is missing
        energy = f"{self.energy:.6%}" if left > 1e-6 else f"1 - {left:.1e}" if left > 1e-15 else "100%"
        text = f"{self.stream.count} snapshots, {self.rank} modes, sigma {sigma or 'none'}, energy {energy}"
        text += f", error of sigma at most {self.bound:.2g}"
        if self.stream.tol is not None and not self.stream.tolerance_met(self.sigma):
            text += f"; tol={self.stream.tol:g} NOT met with max_rank={self.stream.max_rank}"
        return text

    # ----------------------------------------------------------------------------------------------------------- restart

    def state(self) -> dict[str, Any]:
        shapes = None if self._layout is None else [list(s) for s in self._layout.shapes]
        device = None if self.stream.rows is None else device_of(self.stream.rows.data)
        return {
            "stream": self.stream.state(),
            "steps": np.array(self.steps, np.int64),
            "times": np.array(self.times),
            "pending": self._pending,
            "kind": None if self._kind is None else [self._kind[0], self._kind[1].str, device],
            "shapes": shapes,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.stream.check_settings(state["stream"])
        self.steps = [int(x) for x in state["steps"]]
        self.times = [float(x) for x in state["times"]]
        self._pending = list(state["pending"])
        self._result = self._modes = None
        if state["shapes"] is not None:
            library, dtype, device = state["kind"]
            self._open(library, empty_like_device(library, device), [tuple(s) for s in state["shapes"]], np.dtype(dtype))
        self.stream.restore(state["stream"])


def _storage(arrays: tuple[Any, ...]) -> np.dtype:
    """The dtype of the stored snapshots: the widest dtype of the fields, at least float32; float64 for integers."""
    kinds = [numpy_dtype(a) for a in arrays]
    widest = np.result_type(*(kind if kind.kind in "fc" else np.float64 for kind in kinds), np.float32)
    return widest if widest.char in "fdFD" else np.dtype(np.float64)
