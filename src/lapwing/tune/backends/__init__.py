"""One file for each library that can compute a product. ``get(name)`` opens one, ``usable()`` says which can run here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from .base import Backend

__all__ = ["FROZEN", "GPU", "NAMES", "VENDOR", "choose", "family", "get", "get_own", "usable"]

GPU = ("cublaslt", "triton")  # the vendor's comes first: its default is what runs untuned
FROZEN = ("triton_frozen",)  # correct only while nothing writes the weights, so never used unless asked for
VENDOR = ("cublaslt", "hipblaslt")
NAMES = (*GPU, *FROZEN, "hipblaslt", "cpu")


@cache
def get(name: str) -> Backend:
    """Open a backend by name.

    Parameters
    ----------
    name : str
        "cpu", "cublaslt", "triton", "triton_frozen", "hipblaslt"; "replay:FILE" for a recorded space; or
        "package.module:object" for a backend of your own.

    Examples
    --------
    >>> from lapwing.tune.backends import get
    >>> get("cpu").name
    'cpu'
    """
    if name in NAMES:
        return get_own(name)
    first, colon, rest = name.partition(":")
    if first == "replay" and rest:
        from .replay import Replay

        return Replay(rest)
    if colon and first and rest:
        try:
            return cast(Backend, getattr(import_module(first), rest))
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"tune: backend {name!r} could not be opened: {error}"
                "\nhint: write package.module:object, with the package installed"
            ) from error
    raise ValueError(
        f"tune: unknown backend {name!r}\nhint: use one of auto, {', '.join(NAMES)}, replay:FILE, or package.module:object"
    )


@cache
def get_own(name: str) -> Backend:
    """One of lapwing's own backends. KeyError for any other name: a library's file must not name code to be loaded."""
    if name not in NAMES:
        raise KeyError(f"unknown backend {name!r}; pass one of your own as backends={{{name!r}: ...}}")
    if name in FROZEN:
        return cast(Backend, import_module(f"{__name__}.triton").FROZEN)
    return cast(Backend, import_module(f"{__name__}.{name}").BACKEND)


def family(backend: Backend) -> str:
    """The name under which a backend locks its device: the GPU backends share theirs."""
    return "gpu" if backend.name in (*GPU, *FROZEN) else backend.name


def usable() -> dict[str, str | None]:
    """Each of our backends with None, or with the reason why it cannot be used here."""
    return {name: _missing(name) for name in NAMES}


def _missing(name: str) -> str | None:
    try:
        return get(name).missing()
    except (ImportError, AttributeError) as error:
        return str(error)


def choose(names: str) -> tuple[str, ...]:
    """Split a list such as "cublaslt,triton" into names. ValueError says why a backend cannot be used.

    "auto" stands for the usable GPU backends, or for "cpu" when there are none. "auto,triton_frozen" also searches kernels
    for weights that do not change.
    """
    asked = [n.strip() for n in names.split(",") if n.strip()]
    if "auto" in asked:
        from .cuda import FOR_ROCM

        reasons = {n: _missing(n) for n in GPU}
        if FOR_ROCM in reasons.values():
            raise ValueError(f"tune: {FOR_ROCM}")
        automatic = [n for n, reason in reasons.items() if reason is None] or ["cpu"]
        asked = [m for n in asked for m in (automatic if n == "auto" else [n])]
    chosen = tuple(dict.fromkeys(asked))
    if not chosen:
        raise ValueError("tune: no backend is named\nhint: use auto, or names separated by commas")
    for name in chosen:
        if (reason := _missing(name)) is not None:
            raise ValueError(f"tune: backend {name} cannot be used here: {reason}")
    # the vendor's comes first: the others are compared with the default of the first
    return tuple(sorted(chosen, key=lambda n: n not in VENDOR))
