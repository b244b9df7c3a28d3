"""A group of ranks, and how they agree before they work together.

A :class:`Communicator` has ``rank``, ``size``, ``allgather(object)``, ``broadcast(bytes, root)``, ``barrier()`` and
``split(color, key)``; all but the first two are collective. :func:`open_communicator` makes one from an mpi4py communicator
(:mod:`.mpi`) or a torch process group (:mod:`.torch`); :mod:`.jax` has the processes of ``jax.distributed``.

All of them give up after :func:`patience` seconds with :class:`MissingRanksError`, which names the missing ranks. That holds
for these calls and for the exchange of blocks. It does not hold inside the libraries that do the work: ScaLAPACK, ELPA,
cuSOLVERMp, NCCL and XLA wait without end for a rank that died in the middle of a routine; the launcher ends such runs.

:func:`agree` comes first in every operation: when shapes, dtypes or options differ, or one rank alone has an error, all ranks
raise the same error before any library is entered.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from .torch import TorchRanks

T = TypeVar("T")
# A rank may be late for good reasons, such as reading its part of the data. The launcher notices a dead rank within seconds.
_TIMEOUT: ContextVar[float] = ContextVar("lapwing_timeout", default=600.0)


class MissingRanksError(RuntimeError):
    """Ranks did not make a collective call in time.

    Attributes
    ----------
    missing : tuple of int
        These ranks. Empty if they are not known.
    """

    def __init__(self, operation: str, missing: Sequence[int], seconds: float) -> None:
        self.operation, self.missing, self.seconds = operation, tuple(missing), seconds
        super().__init__(
            f"{operation}: {ranks_in_words(missing)} {'is' if len(missing) == 1 else 'are'} missing after {seconds:g} s"
            "\nhint: every rank must make the same calls in the same order; look at what those ranks do, or wait longer with"
            " lapwing.distributed.patience(seconds)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation, self.missing, self.seconds)


class RanksDisagreeError(ValueError):
    """The ranks made calls that differ; all of them raise it.

    Attributes
    ----------
    what : str
        The first thing that differs: "dtype", "shape", "operation", ...
    values : dict
        Each value, and the ranks that have it.
    """

    def __init__(self, operation: str, what: str, values: dict[Any, tuple[int, ...]]) -> None:
        self.operation, self.what, self.values = operation, what, values
        listed = ", ".join(f"{_value(v)} on {ranks_in_words(ranks)}" for v, ranks in values.items())
        super().__init__(f"{operation}: the ranks do not agree on {what}: {listed}\nhint: every rank must make the same call")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation, self.what, self.values)


class Communicator(Protocol):
    """The calls that this library needs from a group of ranks."""

    rank: int
    size: int

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        """The (picklable) value of each rank, by rank. For small values."""

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """The bytes of ``root`` on every rank."""

    def barrier(self) -> None: ...

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks with the same color, ordered by key; None for those without."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """How long ranks wait for each other inside the block before they raise :class:`MissingRanksError` (default: 600 s).

    Examples
    --------
    >>> with patience(30):
    ...     pass
    """
    if not seconds > 0:
        raise ValueError(f"patience: {seconds!r} is not a positive number of seconds")
    token = _TIMEOUT.set(float(seconds))
    try:
        yield
    finally:
        _TIMEOUT.reset(token)


def timeout() -> float:
    """The seconds that ranks wait for each other now; see :func:`patience`."""
    return _TIMEOUT.get()


def agree(
    comm: Communicator, operation: str, facts: Mapping[str, Any], *, error: Exception | None = None, mine: Any = None
) -> list[Any]:
    """All ranks compare their calls. Collective: one exchange of small messages.

    Parameters
    ----------
    comm : Communicator
    operation : str
        Compared like the facts, and named in the errors.
    facts : mapping of str to hashable
        Values that must be the same on all ranks, the most telling first: shape, dtype, options.
    error : Exception, optional
        An error of this rank alone. All ranks then raise it, with a note that names the rank.
    mine : object, optional
        A value for the other ranks.

    Returns
    -------
    list
        ``mine`` of each rank.

    Raises
    ------
    RanksDisagreeError
        On all ranks, with the same message.
    MissingRanksError
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return [mine]
    calls = comm.allgather((operation, dict(facts), _portable(error), mine), operation)
    for rank, (_, _, their_error, _) in enumerate(calls):
        if their_error is not None:
            if rank == comm.rank and error is not None:
                raise error
            their_error.add_note(f"(found on rank {rank})")  # message and fields stay as they are
            raise their_error
    _compare(operation, "operation", [name for name, _, _, _ in calls])
    for what in facts:
        _compare(operation, what, [their_facts.get(what) for _, their_facts, _, _ in calls])
    return [value for _, _, _, value in calls]


def attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result of a step that this rank does alone, or its error for :func:`agree`: the other ranks must not wait."""
    try:
        return work(), None
    except Exception as error:
        return None, error


def _compare(operation: str, what: str, values: list[Any]) -> None:
    if any(value != values[0] for value in values[1:]):
        ranks: dict[Any, list[int]] = {}
        for rank, value in enumerate(values):
            ranks.setdefault(value if isinstance(value, Hashable) else repr(value), []).append(rank)
        # the same message on all ranks: it names the operation of rank 0
        name = operation if what != "operation" else str(values[0])
        raise RanksDisagreeError(name, what, {value: tuple(where) for value, where in ranks.items()})


def _portable(error: Exception | None) -> Exception | None:
    """The error, or one with the same message that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def ranks_in_words(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 2 and 3", "ranks 0 to 61 and 63"; the first few of many; "some ranks" for none.

    Examples
    --------
    >>> ranks_in_words([3]), ranks_in_words([0, 2, 3]), ranks_in_words([0, 1, 2, 3, 7])
    ('rank 3', 'ranks 0, 2 and 3', 'ranks 0 to 3 and 7')
    """
    if not ranks:
        return "some ranks"
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = []
    for first, last in runs:
        words += [f"{first} to {last}"] if last - first > 1 else [str(r) for r in range(first, last + 1)]
    if len(words) > 8:
        words = [*words[:7], f"{len(ranks)} in all"]
    if len(words) == 1:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {words[0]}"
    return f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _value(value: Any) -> str:
    return str(value) if isinstance(value, str | tuple) else repr(value)


_TORCH: dict[Any, TorchRanks] = {}  # by group, as engines keep their state with the communicator


def open_communicator(comm: Any = None) -> Communicator:
    """A Communicator for an mpi4py communicator or a torch process group; None stands for this process alone."""
    if comm is None:
        return Alone()
    if isinstance(comm, Alone) or {"StoreRanks", "MpiRanks"} & {kind.__name__ for kind in type(comm).__mro__}:
        return comm  # type: ignore[no-any-return]
    root = type(comm).__module__.partition(".")[0]
    if root == "mpi4py":
        from .mpi import of_mpi

        return of_mpi(comm)
    if root == "torch":
        if comm not in _TORCH:
            from .torch import TorchRanks

            _TORCH[comm] = TorchRanks(sys.modules["torch"].distributed, comm)
        return _TORCH[comm]
    raise TypeError(
        f"distributed: comm must be an mpi4py communicator, got {type(comm).__module__}.{type(comm).__qualname__}"
        "\nhint: from mpi4py import MPI; MPI.COMM_WORLD"
    )


class Alone:
    """One process."""

    rank = 0
    size = 1

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        return [value]

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        return data or b""

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass

    def split(self, color: int | None, key: int = 0) -> Alone | None:
        return None if color is None else self

    def __repr__(self) -> str:
        return "Alone()"
