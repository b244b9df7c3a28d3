"""Write files: fields during the run, results of other analyses at its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import Analysis, Context, as_names
from ..solver.arrays import to_host


class Writer(Analysis):
    """Writes fields at steps that are due, and the results of analyses at the end.

    npz: ``fields-000100.npz`` for each step, with the fields, ``step`` and ``time``. HDF5 (needs h5py): one file ``fields.h5``
    with a group ``000100`` for each step. Results: ``pod.npz``, ``stats.npz``, ..., named after the analysis. With several
    ranks each rank writes its own files, ``...-rank1``, with the offset of its part in the whole field if the mesh has it.

    Parameters
    ----------
    *what : str or Analysis
        Names of fields, and analyses of the same hub that are listed before this one.
    every : int
    format : {"npz", "hdf5"}
        Format of all files.
    name : str
        Start of the names of the field files.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from lapwing import insitu
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stats = insitu.Stats("u")
    ...     with insitu.Hub([stats, insitu.Writer("u", stats, every=2)], output=folder, quiet=True) as hub:
    ...         for n in range(3):
    ...             status = hub.step(n, 0.1 * n, u=np.full(4, float(n)))
    ...     with np.load(f"{folder}/fields-000002.npz") as file:
    ...         print(file["u"], int(file["step"]))
    ...     with np.load(f"{folder}/stats.npz") as file:
    ...         print(file["mean_u"])
    [2. 2. 2. 2.] 2
    [1. 1. 1. 1.]
    """

    def __init__(self, *what: str | Analysis, every: int = 1, format: str = "npz", name: str = "fields") -> None:
        if format not in ("npz", "hdf5"):
            raise ValueError(f"Writer: format must be 'npz' or 'hdf5', got {format!r}")
        if format == "hdf5":
            _h5py()
        names = [w for w in what if isinstance(w, str)]
        self.sources = [w for w in what if not isinstance(w, str)]
        for source in self.sources:
            if not hasattr(source, "results"):
                raise TypeError(f"Writer: {type(source).__name__} has no results to write")
        self.fields = as_names(names)
        self.every, self.format, self.prefix = every, format, name
        self.files: list[str] = []

    def on_step(self, ctx: Context, *arrays: Any) -> None:
        if not self.fields:
            return
        data: dict[str, Any] = {name: to_host(a) for name, a in zip(self.fields, arrays, strict=True)}
        data |= {"step": ctx.step, "time": ctx.time}
        if ctx.mesh is not None and ctx.mesh.offset is not None:
            data["offset"] = np.array(ctx.mesh.offset)
            if ctx.mesh.global_shape is not None:
                data["global_shape"] = np.array(ctx.mesh.global_shape)
        if self.format == "npz":
            self._npz(ctx.output / f"{self.prefix}-{ctx.step:06d}{_rank(ctx)}.npz", data)
        else:
            self._hdf5(ctx.output / f"{self.prefix}{_rank(ctx)}.h5", f"{ctx.step:06d}", data)

    def on_finish(self, ctx: Context) -> None:
        counts: dict[str, int] = {}
        for source in self.sources:
            name = (source.name or type(source).__name__).lower()
            counts[name] = counts.get(name, 0) + 1
            if counts[name] > 1:
                name = f"{name}-{counts[name]}"
            data = source.results()  # type: ignore[attr-defined]
            if self.format == "npz":
                self._npz(ctx.output / f"{name}{_rank(ctx)}.npz", data)
            else:
                self._hdf5(ctx.output / f"{name}{_rank(ctx)}.h5", "results", data)

    def _npz(self, path: Path, data: dict[str, Any]) -> None:
        partial = path.with_name(f"{path.name}.partial")
        try:
            with open(partial, "wb") as file:
                np.savez(file, **data)
            os.replace(partial, path)  # a reader never sees half a file
        finally:
            partial.unlink(missing_ok=True)
        self._wrote(path)

    def _hdf5(self, path: Path, group: str, data: dict[str, Any]) -> None:
        # opened for each step, so that a killed run leaves a complete file
        with _h5py().File(path, "a") as file:
            if group in file:
                del file[group]
            entries = file.create_group(group)
            for name, value in data.items():
                if np.ndim(value):
                    entries.create_dataset(name, data=value)
                else:
                    entries.attrs[name] = value
        self._wrote(path)

    def _wrote(self, path: Path) -> None:
        if not self.files or self.files[-1] != path.name:
            self.files.append(path.name)

    def summary(self) -> str:
        return f"{len(self.files)} file{'' if len(self.files) == 1 else 's'}"


def _rank(ctx: Context) -> str:
    return f"-rank{ctx.rank}" if ctx.size > 1 else ""


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ImportError("Writer: format='hdf5' needs h5py\nhint: pip install h5py") from None
    return h5py
