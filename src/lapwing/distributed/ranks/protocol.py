"""Ranks that talk: one small protocol over MPI, torch.distributed and jax.distributed, and how ranks agree before work.

A :class:`Communicator` has ``rank``, ``size``, ``allgather(object)``, ``broadcast(bytes, root)``, ``barrier()`` and
``split(color, key)``. All but the first two are collective. :func:`open_communicator` makes one of what the user has.
None of them waits for ever: after ``timeout`` seconds, :class:`MissingRanksError` names the ranks that did not come.

:func:`agree` is called by every operation first: shapes, dtypes or choices that differ, and an error that one rank found alone,
are raised by all ranks with the same words, before any library is entered.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

__all__ = [
    "Alone",
    "Communicator",
    "JaxRanks",
    "MissingRanksError",
    "RanksDisagreeError",
    "TorchRanks",
    "agree",
    "open_communicator",
    "patience",
    "ranks_in_words",
]

# How long a rank waits for the others before it says who is missing. A rank may be late for good reasons (reading its part of
# the data); one that died is noticed by the launcher within seconds.
_TIMEOUT: ContextVar[float] = ContextVar("lapwing_timeout", default=600.0)


class MissingRanksError(RuntimeError):
    """Ranks did not come to a collective call in time.

    Attributes
    ----------
    missing : tuple of int
        Which ranks.
    """

    def __init__(self, operation: str, missing: Sequence[int], seconds: float) -> None:
        self.operation, self.missing, self.seconds = operation, tuple(missing), seconds
        super().__init__(
            f"{operation}: {ranks_in_words(missing)} did not come within {seconds:g} s"
            "\nhint: every rank must make the same calls in the same order; see what those ranks do, or wait longer with"
            " lapwing.distributed.patience(seconds)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation, self.missing, self.seconds)


class RanksDisagreeError(ValueError):
    """The ranks did not ask for the same thing; all of them raise it.

    Attributes
    ----------
    what : str
        The first thing that differs: "dtype", "shape", "operation", ...
    values : dict
        Each value, and the ranks that have it.
    """

    def __init__(self, operation: str, what: str, values: dict[Any, tuple[int, ...]]) -> None:
        self.operation, self.what, self.values = operation, what, values
        told = ", ".join(f"{_value(v)} on {ranks_in_words(ranks)}" for v, ranks in values.items())
        super().__init__(f"{operation}: the ranks do not agree on {what}: {told}\nhint: every rank must make the same call")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operation, self.what, self.values)


class Communicator(Protocol):
    """What this library needs of a group of ranks."""

    rank: int
    size: int

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        """The (picklable) value of each rank, by rank. Small things only."""
        ...

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        """The bytes of ``root`` on every rank."""
        ...

    def barrier(self) -> None: ...

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks with the same color, ordered by key; None for those without."""
        ...


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


def agree(
    comm: Communicator, operation: str, facts: Mapping[str, Any], *, error: Exception | None = None, mine: Any = None
) -> list[Any]:
    """All ranks compare what they were asked; collective, one exchange of small messages.

    Parameters
    ----------
    comm : Communicator
    operation : str
        Named in the message. It is one of the facts.
    facts : mapping of str to hashable
        What must be the same on all ranks, the most telling first: shape, dtype, choices.
    error : Exception, optional
        What this rank found wrong alone: all ranks then raise it, with the rank named.
    mine : object, optional
        What the other ranks want to know of this one.

    Returns
    -------
    list
        ``mine`` of each rank.

    Raises
    ------
    RanksDisagreeError
        On all ranks, with the same words.
    MissingRanksError
        Ranks did not come.
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return [mine]
    told = comm.allgather((operation, dict(facts), _portable(error), mine), operation)
    for rank, (_, _, wrong, _) in enumerate(told):
        if wrong is not None:
            if rank == comm.rank and error is not None:
                raise error
            raise _as_seen_elsewhere(wrong, rank)
    _compare(operation, "operation", [name for name, _, _, _ in told])
    for what in facts:
        _compare(operation, what, [said.get(what) for _, said, _, _ in told])
    return [theirs for _, _, _, theirs in told]


def _compare(operation: str, what: str, values: list[Any]) -> None:
    if any(value != values[0] for value in values[1:]):
        ranks: dict[Any, list[int]] = {}
        for rank, value in enumerate(values):
            ranks.setdefault(value if isinstance(value, Hashable) else repr(value), []).append(rank)
        # the same words on all ranks: named after what rank 0 does
        raise RanksDisagreeError(operation if what != "operation" else str(values[0]), what, _tuples(ranks))


def _tuples(ranks: dict[Any, list[int]]) -> dict[Any, tuple[int, ...]]:
    return {value: tuple(where) for value, where in ranks.items()}


def _portable(error: Exception | None) -> Exception | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _as_seen_elsewhere(error: Exception, rank: int) -> Exception:
    """The same error, with the rank that found it as a note: its words and fields stay those of that rank."""
    error.add_note(f"(found on rank {rank})")
    return error


def ranks_in_words(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 2 and 3", "ranks 0 to 61 and 63", of many the first few.

    Examples
    --------
    >>> ranks_in_words([3]), ranks_in_words([0, 2, 3]), ranks_in_words([0, 1, 2, 3, 7])
    ('rank 3', 'ranks 0, 2 and 3', 'ranks 0 to 3 and 7')
    """
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


_TORCH: dict[Any, TorchRanks] = {}  # by group: engines keep what they made with the one of ours


def open_communicator(comm: Any = None) -> Communicator:
    """One of ours from an mpi4py communicator, a torch process group, None (one process alone), or one of ours."""
    if comm is None:
        return Alone()
    if isinstance(comm, Alone | TorchRanks | JaxRanks) or type(comm).__name__ == "MpiRanks":
        return comm  # type: ignore[no-any-return]
    root = type(comm).__module__.partition(".")[0]
    if root == "mpi4py":
        from .mpi import of_mpi

        return of_mpi(comm)
    if root == "torch":
        if comm not in _TORCH:
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


class TorchRanks:
    """The ranks of a torch process group (None: the default one), over its own CPU or GPU backend.

    ``dist`` is the module ``torch.distributed``, which this part of the library does not import. torch orders the ranks of a
    group by itself: the keys of :meth:`split` must ascend with the ranks.
    """

    def __init__(self, dist: Any, group: Any = None) -> None:
        self._dist, self.group = dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self.group)  # waits as long as the group's own timeout
        return values

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        box = [data]
        source = root if self.group is None else self._dist.get_global_rank(self.group, root)
        self._dist.broadcast_object_list(box, src=source, group=self.group)
        return box[0] or b""

    def barrier(self) -> None:
        self.allgather(None, "barrier")

    def split(self, color: int | None, key: int = 0) -> TorchRanks | None:
        mine = None
        told = self.allgather((color, key, self._dist.get_rank()), "split")
        # every rank makes every group, in the same order: torch wants it so
        for wanted in sorted({c for c, _, _ in told if c is not None}):
            ranks = [world for _, world in sorted((k, w) for c, k, w in told if c == wanted)]
            if ranks != sorted(ranks):
                raise ValueError(f"distributed: torch cannot make a group of the ranks {ranks} in this order")
            group = self._dist.new_group(ranks, use_local_synchronization=False)
            mine = TorchRanks(self._dist, group) if wanted == color else mine
        return mine


class JaxRanks:
    """The processes of ``jax.distributed``, over its key-value store.

    ``client`` is ``jax._src.distributed.global_state.client``, ``process`` is ``jax.process_index()``, ``processes`` are
    ``range(jax.process_count())`` or some of them; ``name`` keeps two users of the store apart. The n-th collective call of a
    communicator uses its n-th keys: all processes must make the same calls in the same order.
    """

    def __init__(self, client: Any, process: int, processes: Sequence[int], name: str = "lapwing") -> None:
        if client is None:
            raise RuntimeError("distributed: jax.distributed is not initialised\nhint: jax.distributed.initialize()")
        self._client, self._name, self._calls = client, name, 0
        self._processes = tuple(processes)
        self.rank, self.size = self._processes.index(process), len(self._processes)

    def allgather(self, value: Any, operation: str = "allgather") -> list[Any]:
        key, self._calls = f"{self._name}/{self._calls}", self._calls + 1
        self._client.key_value_set_bytes(f"{key}/{self.rank}", pickle.dumps(value))
        timeout = _TIMEOUT.get()
        deadline = time.monotonic() + timeout
        values, missing = [], []
        for rank in range(self.size):
            left = max(deadline - time.monotonic(), 0.05)
            try:
                values.append(pickle.loads(self._client.blocking_key_value_get_bytes(f"{key}/{rank}", int(left * 1000))))
            except Exception as error:
                if "DEADLINE" not in str(error).upper():
                    raise
                missing.append(rank)
        if missing:
            raise MissingRanksError(operation, missing, timeout)
        # of the call before everybody has read everything, for everybody has come to this one
        if self._calls > 1:
            self._client.key_value_delete(f"{self._name}/{self._calls - 2}/{self.rank}")
        return values

    def broadcast(self, data: bytes | None, root: int = 0) -> bytes:
        return self.allgather(data if self.rank == root else None, "broadcast")[root]  # type: ignore[no-any-return]

    def barrier(self) -> None:
        self.allgather(None, "barrier")

    def split(self, color: int | None, key: int = 0) -> JaxRanks | None:
        told = self.allgather((color, key, self._processes[self.rank]), "split")
        if color is None:
            return None
        chosen = [world for _, world in sorted((k, w) for c, k, w in told if c == color)]
        return JaxRanks(self._client, self._processes[self.rank], chosen, f"{self._name}/{self._calls}.{color}")
