"""Use a tuned library: inside a ``with`` block, or in the linear layers of one model.

The whole process uses it, autograd's threads too. A product without an entry is computed by the framework's own function, with
its arguments unchanged.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core import products
from ..backends.base import Backend
from ..library.folder import Library
from .choice import Chooser, Operand, product_of
from .counts import Tally, tally

_MOST = 1 << 16  # shapes that are remembered
_log = logging.getLogger("lapwing")
_lock = threading.RLock()
_libraries: list[Library] = []
_patches: list[Any] = []  # one Patch while a library is in use


@contextlib.contextmanager
def use(
    library: str | Path | Library, *, compiled: bool = True, backends: Mapping[str, Backend] | None = None
) -> Iterator[Library]:
    """Let torch, and :func:`lapwing.matmul`, use a tuned library.

    It replaces ``torch.nn.functional.linear``, ``torch.mm``, ``matmul``, ``addmm``, ``bmm``, ``_scaled_mm`` and ``@``, and
    restores them on exit. In nested contexts the inner library comes first. :func:`lapwing.tune.report` counts what is used.

    Parameters
    ----------
    library : path or Library
        The folder that ``lapwing tune`` wrote.
    compiled : bool
        Also use it in code that ``torch.compile`` compiles inside the block: for products of fixed shape, with Inductor.

    Raises
    ------
    EnvironmentMismatch
        The library was made on another device or with other versions.

    Notes
    -----
    Derivatives are correct, and their products are looked up too. A function that was imported by name earlier
    (``from torch.nn.functional import linear``) is not replaced. Inside ``vmap``, forward mode, tracing and torch's modes, and
    for tensor subclasses, torch's own functions run.

    Examples
    --------
    >>> with lapwing.tune.use("final/"):  # doctest: +SKIP
    ...     y = model(x)
    """
    opened = library if isinstance(library, Library) else Library(library, backends=backends)
    _begin(opened, compiled)
    try:
        yield opened
    finally:
        _end(opened)


class Handle:
    """The changes of :func:`enable`; ``remove()`` undoes them."""

    def __init__(self, undo: list[Callable[[], None]], layers: int) -> None:
        self._undo = undo
        self.layers = layers  # number of changed layers

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def enable(
    model: Any,
    path: str | Path | Library = "final",
    *,
    compiled: bool = True,
    frozen: bool = False,
    backends: Mapping[str, Backend] | None = None,
) -> Handle:
    """Let the linear layers of one model use a tuned library.

    Parameters
    ----------
    model : torch.nn.Module
        Every ``torch.nn.Linear`` in it is changed, but no subclass with its own ``forward``.
    path : path or Library
        The folder that ``lapwing tune`` wrote.
    compiled : bool
        Also use it in code that ``torch.compile`` compiles until the handle is removed.
    frozen : bool
        Promise that no kernel writes a weight of these layers directly before the layer runs on the same stream. Then entries
        of the backend ``triton_frozen`` are used too, which start to read a weight before the previous kernel has ended.
        Without the promise they are not used, and :func:`use` never uses them. No weight may require a gradient. If torch
        has counted a change of a weight, the next call waits as usual.

    Returns
    -------
    Handle
        ``handle.remove()`` restores the layers. The handle is also a context manager.

    Raises
    ------
    EnvironmentMismatch
        The library was made on another device or with other versions.
    ValueError
        With ``frozen``, if a weight requires a gradient.
    """
    import torch

    from .dispatcher import Dispatcher
    from .patch import enable_layer

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"enable: expected a torch.nn.Module, got {type(model).__name__}")
    library = path if isinstance(path, Library) else Library(path, backends=backends)
    if frozen:
        learns = [n for n, x in model.named_modules() if isinstance(x, torch.nn.Linear) and x.weight.requires_grad]
        if learns:
            raise ValueError(
                f"enable: frozen=True, but the weight of {learns[0]!r} requires a gradient\nhint: model.requires_grad_(False)"
            )
    dispatcher = Dispatcher([library])
    ahead = Dispatcher([library], frozen=True) if frozen else None
    undo = [done for layer in model.modules() if (done := enable_layer(layer, dispatcher, ahead)) is not None]
    layers = len(undo)
    if not layers:
        _log.warning("enable: the model has no torch.nn.Linear; nothing was changed")
    elif library.entries and all(entry.backend == "cpu" for entry in library.entries.values()):
        _log.warning("enable: all entries of %s are for NumPy arrays on a CPU; torch's products stay as they are", library.path)
    if compiled:
        from .compiled import install

        undo.append(install(dispatcher, library.digest))
    return Handle(undo, layers)


def _begin(library: Library, compiled: bool) -> None:
    with _lock:
        _libraries.append(library)
        try:
            _refresh(compiled)
        except BaseException:
            _libraries.pop()
            raise


def _end(library: Library) -> None:
    with _lock:
        for i in reversed(range(len(_libraries))):  # threads may end in another order than they began
            if _libraries[i] is library:
                del _libraries[i]
                break
        _refresh(False)


def _refresh(compiled: bool) -> None:
    """Replace or restore functions for the libraries that are in use now."""
    if _libraries and not _patches and importlib.util.find_spec("torch") is not None:
        from .patch import Patch

        _patches.append(Patch())
    for patch in _patches:
        patch.set(_libraries, compiled)
    if not _libraries:
        _patches.clear()
    products.remove(_numpy.product)
    _numpy.set(_libraries)
    if _libraries:
        products.add(_numpy.product)


class _NumPy:
    """Products of NumPy arrays in lapwing.matmul. For tensors, torch's own functions are replaced instead."""

    names = {np.dtype("float64"): "f64", np.dtype("float32"): "f32", np.dtype("float16"): "f16"}  # noqa: RUF012

    def __init__(self) -> None:
        self.product = self._product  # one object, so that it can be removed again
        self.set([])

    def set(self, libraries: list[Library]) -> None:
        self.chooser = Chooser(libraries, numpy=True)
        self.found: dict[Any, Any] = {}

    def _product(self, a: Any, b: Any) -> Any:
        if (
            type(a) is not np.ndarray
            or type(b) is not np.ndarray
            or a.dtype != b.dtype
            or a.ndim != b.ndim
            or a.ndim not in (2, 3)
        ):
            return None
        key = (a.shape, b.shape, a.strides, b.strides, a.dtype)
        if key not in self.found:
            if len(self.found) >= _MOST:
                self.found.clear()
            self.found[key] = self._choose(a, b)
        call, counts = self.found[key]
        if call is None:
            counts.passed += 1
            return None
        try:
            product = call(a, b)
            counts.hits += product is not None
            return product
        except Exception as error:
            _log.warning("tune: a tuned product failed, and NumPy computes it from now on: %s", error)
            self.found[key] = None, counts
            counts.passed += 1
            return None

    def _choose(self, a: np.ndarray, b: np.ndarray) -> tuple[Callable[..., Any] | None, Tally]:
        name, size = self.names.get(a.dtype), a.dtype.itemsize
        gemm = None
        if name is not None and not any(s % size for s in (*a.strides, *b.strides)):
            left, right = (Operand(x.shape, tuple(s // size for s in x.strides), name) for x in (a, b))
            gemm = product_of(left, right)
        choice = self.chooser.choose(gemm, -1) if gemm is not None else None
        if choice is None or gemm is None:
            return None, tally(gemm if gemm is not None else f"{a.shape} @ {b.shape} {a.dtype}")

        def call(a: np.ndarray, b: np.ndarray) -> Any:
            x = a.swapaxes(-1, -2) if gemm.trans_b == "T" else a
            w = b.swapaxes(-1, -2) if gemm.trans_a == "T" else b
            product = choice.kernel(x, w)
            return product if type(product) is np.ndarray else None

        return call, choice.tally


_numpy = _NumPy()
