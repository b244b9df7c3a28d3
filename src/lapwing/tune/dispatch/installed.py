"""Use a tuned library: for everything in a ``with``, or for the linear layers of one model.

It is in use in the whole process, as the functions it replaces are: autograd's threads see it too. What fits no entry goes to
the framework's own function, with the arguments as they came.
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

__all__ = ["Handle", "enable", "use"]

_MOST = 1 << 16  # shapes remembered
_log = logging.getLogger("lapwing")
_lock = threading.RLock()
_libraries: list[Library] = []
_patches: list[Any] = []  # one Patch while something is in use


@contextlib.contextmanager
def use(
    library: str | Path | Library, *, compiled: bool = True, backends: Mapping[str, Backend] | None = None
) -> Iterator[Library]:
    """Let torch, and :func:`lapwing.matmul`, use a tuned library.

    Replaces ``torch.nn.functional.linear``, ``torch.mm``, ``matmul``, ``addmm``, ``bmm``, ``_scaled_mm`` and ``@``, and puts
    them back on exit. Where contexts are nested, the inner library is asked first.

    Parameters
    ----------
    library : path or Library
        The folder that ``lapwing tune`` wrote.
    compiled : bool
        Also what ``torch.compile`` compiles inside, by Inductor: products of fixed shape that the library has.

    Raises
    ------
    EnvironmentMismatch
        It was made on another device or with other versions.

    Notes
    -----
    Derivatives are right, and their products are looked up too. A function that was imported by name before
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
    """What :func:`enable` changed; ``remove()`` puts it back, once."""

    def __init__(self, undo: list[Callable[[], None]], layers: int) -> None:
        self._undo = undo
        self.layers = layers  # how many were changed

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
        Every ``torch.nn.Linear`` in it is changed; a subclass with a ``forward`` of its own is left alone.
    path : path or Library
        The folder that ``lapwing tune`` wrote.
    compiled : bool
        Also what ``torch.compile`` compiles until the handle is removed.
    frozen : bool
        A promise: no kernel writes a weight of these layers and is followed by the layer on the same stream. Entries of the
        backend ``triton_frozen`` are then used too, which begin to read a weight before the kernel in front has ended; without
        the promise they are left out, and :func:`use` never takes them. No weight may ask for a derivative. Where torch counts
        a change of a weight, the next call waits as usual.

    Returns
    -------
    Handle
        ``handle.remove()`` puts the layers back. It works as a context manager too.

    Raises
    ------
    EnvironmentMismatch
        The library was made on another device or with other versions.
    ValueError
        With ``frozen``, where a weight asks for a derivative.
    """
    import torch

    from .dispatcher import Dispatcher
    from .layers import enable_layer

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"enable: expected a torch.nn.Module, got {type(model).__name__}")
    library = path if isinstance(path, Library) else Library(path, backends=backends)
    if frozen:
        learns = [n for n, x in model.named_modules() if isinstance(x, torch.nn.Linear) and x.weight.requires_grad]
        if learns:
            raise ValueError(
                f"enable: frozen=True, but the weight of {learns[0]!r} asks for a derivative\nhint: model.requires_grad_(False)"
            )
    dispatcher = Dispatcher([library])
    ahead = Dispatcher([library], frozen=True) if frozen else None
    undo = [done for layer in model.modules() if (done := enable_layer(layer, dispatcher, ahead)) is not None]
    layers = len(undo)
    if not layers:
        _log.warning("enable: the model has no torch.nn.Linear; nothing was changed")
    elif library.entries and all(entry.backend == "cpu" for entry in library.entries.values()):
        _log.warning("enable: all entries of %s are for NumPy's products on a CPU; torch's stay as they are", library.path)
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
        for i in reversed(range(len(_libraries))):  # another thread may end in another order
            if _libraries[i] is library:
                del _libraries[i]
                break
        _refresh(False)


def _refresh(compiled: bool) -> None:
    """The functions as they must be for the libraries in use now."""
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
    """NumPy arrays in lapwing.matmul. torch's tensors find their way through torch's own functions."""

    names = {np.dtype("float64"): "f64", np.dtype("float32"): "f32", np.dtype("float16"): "f16"}  # noqa: RUF012

    def __init__(self) -> None:
        self.product = self._product  # one object, so that it can be taken away again
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
        call = self.found[key]
        if call is None:
            return None
        try:
            return call(a, b)
        except Exception as error:
            _log.warning("tune: a tuned product failed, NumPy's own is used from now on: %s", error)
            self.found[key] = None
            return None

    def _choose(self, a: np.ndarray, b: np.ndarray) -> Any:
        name, size = self.names.get(a.dtype), a.dtype.itemsize
        if name is None or any(s % size for s in (*a.strides, *b.strides)):
            return None
        left, right = (Operand(x.shape, tuple(s // size for s in x.strides), name) for x in (a, b))
        gemm = product_of(left, right)
        kernel = self.chooser.choose(gemm, -1) if gemm is not None else None
        if kernel is None or gemm is None:
            return None

        def call(a: np.ndarray, b: np.ndarray) -> Any:
            x = a.swapaxes(-1, -2) if gemm.trans_b == "T" else a
            w = b.swapaxes(-1, -2) if gemm.trans_a == "T" else b
            made = kernel(x, w)
            return made if type(made) is np.ndarray else None

        return call


_numpy = _NumPy()
