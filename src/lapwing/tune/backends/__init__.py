"""One file per library that can do a product. ``get(name)`` opens one, ``usable()`` says which can run here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from .base import Backend

__all__ = ["FROZEN", "GPU", "NAMES", "VENDOR", "choose", "get", "usable"]

GPU = ("cublaslt", "triton")  # the vendor's first: its default is what runs untuned
FROZEN = ("triton_frozen",)  # right only for weights that nothing writes meanwhile: never used unasked
VENDOR = ("cublaslt", "hipblaslt")
NAMES = (*GPU, *FROZEN, "hipblaslt", "cpu")


@cache
def get(name: str) -> Backend:
    """The backend of a name.

    Parameters
    ----------
    name : str
        "cpu", "cublaslt", "triton", "triton_frozen", "hipblaslt"; "replay:FILE" for a recorded space; or
        "package.module:object" for one of your own.

    Examples
    --------
    >>> from lapwing.tune.backends import get
    >>> get("cpu").name
    'cpu'
    """
    if name in NAMES:
        return cast(Backend, import_module(f"{__name__}.{name}").BACKEND)
    first, colon, rest = name.partition(":")
    if first == "replay" and rest:
        from .replay import Replay

        return Replay(rest)
    if colon and first and rest:
        try:
            return cast(Backend, getattr(import_module(first), rest))
        except (ImportError, AttributeError) as error:
            raise ValueError(f"tune: backend {name!r} could not be opened: {error}") from error
    raise ValueError(
        f"tune: unknown backend {name!r}\nhint: use one of auto, {', '.join(NAMES)}, replay:FILE, or package.module:object"
    )


def usable() -> dict[str, str | None]:
    """For each of our backends None, or why it cannot be used here."""
    found: dict[str, str | None] = {}
    for name in NAMES:
        try:
            found[name] = get(name).missing()
        except (ImportError, AttributeError) as error:
            found[name] = str(error)
    return found


def choose(names: str) -> tuple[str, ...]:
    """The backends of "cublaslt,triton"; "auto" takes the usable ones for GPUs, else the CPU's. ValueError says why not.

    "auto,triton_frozen" also searches kernels for weights that do not change.
    """
    said = [n.strip() for n in names.split(",") if n.strip()]
    if "auto" in said:
        here = usable()
        automatic = [n for n in GPU if here[n] is None] or ["cpu"]
        said = [m for n in said for m in (automatic if n == "auto" else [n])]
    chosen = tuple(dict.fromkeys(said))
    if not chosen:
        raise ValueError("tune: no backend is named\nhint: auto, or names with commas between them")
    for name in chosen:
        try:
            reason = get(name).missing()
        except (ImportError, AttributeError) as error:  # as in usable(): a reason, not a traceback
            reason = str(error)
        if reason is not None:
            raise ValueError(f"tune: backend {name} cannot be used here: {reason}")
    # the vendor's first, since the first one's default is what the others are compared with
    return tuple(sorted(chosen, key=lambda n: n not in VENDOR))
