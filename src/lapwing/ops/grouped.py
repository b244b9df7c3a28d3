"""One call for a list of matrices of unequal sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import frameworks
from ..core.errors import _MatrixError
from .cholesky import cholesky
from .det import det
from .solve import inv, slogdet, solve

# Operations for which [[A, 0], [0, I]] gives the result of A in its first rows and columns, exactly.
_PADDED = (cholesky, det, inv, slogdet, solve)
_PAD_TO = 128  # the largest order of the batched kernels; above it padding costs more than a launch


def grouped(op: Callable[..., Any], matrices: Any, /, *rest: Any, **options: Any) -> Any:
    """Apply an operation to many matrices of unequal sizes, in few launches.

    Matrices of one shape become one batch. For ``cholesky``, ``solve``, ``inv``, ``det`` and ``slogdet``, square matrices up to
    order 128 whose orders differ by at most an eighth become one batch too: they are padded by the identity, which changes no
    result.

    Parameters
    ----------
    op : callable
        A function of lapwing that takes batches: ``lw.eigh``, ``lw.inv_root``, ...
    matrices : list, tuple or dict of arrays, also nested
        Of one library; each is one matrix, or a batch of them.
    *rest
        Further arguments. A list, tuple or dict has one array for each matrix; anything else goes to every call as it is.
    **options
        Keywords of ``op``.

    Returns
    -------
    list, tuple or dict
        Like ``matrices``, with the result of ``op`` in the place of each matrix.

    Raises
    ------
    NotPositiveDefiniteError, SingularMatrixError, ConvergenceError
        As ``op`` does; the first number of ``.batch_index`` says which matrix of the list failed.
    ValueError, TypeError
        Wrong arguments.

    Examples
    --------
    >>> import numpy as np, lapwing as lw
    >>> blocks = [np.eye(2), 4 * np.eye(3), 9 * np.eye(2)]
    >>> [float(x[0, 0]) for x in lw.grouped(lw.cholesky, blocks)]
    [1.0, 2.0, 3.0]
    """
    arrays = _leaves(matrices)
    for array in arrays:
        if not hasattr(array, "shape") or len(array.shape) < 2:
            raise ValueError(f"grouped: expected matrices, got {type(array).__name__} of shape {getattr(array, 'shape', None)}")
    if not arrays:
        return matrices
    columns = [_leaves(x, matrices) if isinstance(x, (list, tuple, dict)) else None for x in rest]
    for i, column in enumerate(columns):
        if column is not None and len(column) != len(arrays):
            raise ValueError(f"grouped: argument {i + 2} has {len(column)} arrays for {len(arrays)} matrices")
    rows = [(a, *[c[i] for c in columns if c is not None]) for i, a in enumerate(arrays)]
    results: list[Any] = [None] * len(arrays)
    # padding adds rows to the right-hand sides, so each matrix needs its own, and they must be multiplied from the left
    may_pad = op in _PADDED and None not in columns and options.get("side", "left") == "left"
    for indices, order in _groups(op, rows, may_pad):
        group = [rows[i] for i in indices]
        try:
            values = _apply(op, group, order, columns, rest, options)
        except _MatrixError as error:
            raise _located(error, indices, len(arrays)) from error
        for i, value in zip(indices, values, strict=True):
            results[i] = value
    return _like(matrices, iter(results))


def _leaves(x: Any, like: Any = None) -> list[Any]:
    """The arrays in nested lists, tuples and dicts; a dict in the order of the keys of ``like``."""
    if isinstance(x, dict):
        keys = list(like if isinstance(like, dict) else x)
        if set(keys) != set(x):
            raise ValueError(f"grouped: the keys {list(x)} are not those of the matrices, {keys}")
        x, like = [x[key] for key in keys], [like[key] for key in keys] if isinstance(like, dict) else None
    if not isinstance(x, (list, tuple)):
        return [x]
    same = isinstance(like, (list, tuple)) and len(like) == len(x)
    return [leaf for y, z in zip(x, like if same else [None] * len(x), strict=True) for leaf in _leaves(y, z)]


def _like(x: Any, results: Any) -> Any:
    if isinstance(x, dict):
        return {key: _like(value, results) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        values = [_like(y, results) for y in x]
        return values if isinstance(x, list) else x._make(values) if hasattr(x, "_make") else tuple(values)
    return next(results)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and not isinstance(x, np.generic)


def _groups(op: Any, rows: list[tuple[Any, ...]], may_pad: bool) -> list[tuple[list[int], int]]:
    """For each call the indices of its matrices, and the order they are padded to, or 0."""
    by_kind: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        kinds = [(tuple(x.shape), str(x.dtype), str(getattr(x, "device", ""))) if _is_array(x) else x for x in row]
        # no batches of vectors
        alone = not (op is solve and may_pad) and any(len(getattr(x, "shape", (0, 0))) == 1 for x in row[1:])
        by_kind.setdefault(repr([kinds, i if alone else -1]), []).append(i)
    groups: list[tuple[list[int], int]] = []
    paddable: list[tuple[list[int], int]] = []
    for indices in by_kind.values():
        shape = rows[indices[0]][0].shape
        fits = may_pad and len(shape) == 2 and shape[0] == shape[1] and 0 < shape[0] <= _PAD_TO
        (paddable if fits else groups).append((indices, 0))
    near: dict[Any, list[tuple[int, list[int]]]] = {}
    for indices, _ in paddable:
        a, *others = rows[indices[0]]
        kind = (str(a.dtype), str(getattr(a, "device", "")), repr([(str(x.dtype), tuple(x.shape)[1:]) for x in others]))
        near.setdefault(kind, []).append((a.shape[0], indices))
    for sizes in near.values():
        sizes.sort(key=lambda pair: -pair[0])
        while sizes:
            order = sizes[0][0]
            joined = [indices for n, indices in sizes if 8 * n >= 7 * order]
            sizes = sizes[len(joined) :]
            groups.append(([i for indices in joined for i in indices], order if len(joined) > 1 else 0))
    return groups


def _apply(
    op: Any, group: list[tuple[Any, ...]], order: int, columns: list[Any], rest: tuple[Any, ...], options: Any
) -> list[Any]:
    """The result for each row of the group, from one call."""
    xp = frameworks.of(group[0][0], "grouped").Namespace
    sizes = [row[0].shape[-1] for row in group]
    # a batch of vectors is a batch of matrices with one column
    vectors = op is solve and len(group) > 1 and len(group[0]) > 1 and len(group[0][1].shape) == 1
    if vectors:
        group = [(a, b[:, None]) for a, b in group]
    stacked = []
    for k, values in enumerate(zip(*group, strict=True)):
        if len(values) == 1 or not _is_array(values[0]):  # numbers in one group are equal
            stacked.append(values[0])
        else:
            padded = [_padded(xp, x, order, square=k == 0) if order else x for x in values]
            stacked.append(xp.stack(padded))
    stacks = iter(stacked[1:])
    arguments = [next(stacks) if column is not None else x for column, x in zip(columns, rest, strict=True)]
    if len(group) == 1:
        return [op(stacked[0], *arguments, **options)]
    result = op(stacked[0], *arguments, **options)

    def result_of(x: Any, i: int) -> Any:
        if x.shape[:1] != (len(group),):  # the Q that mode="r" leaves out
            return x
        part = x[i]
        if order and len(part.shape):
            n = sizes[i]
            part = part[:n, :n] if op in (cholesky, inv) else part[:n]
        return part[:, 0] if vectors else part

    if not hasattr(result, "__getitem__"):
        raise TypeError(
            f"grouped: {op.__name__} gives a {type(result).__name__}, which is for one batch\nhint: call it for each shape"
        )
    if not isinstance(result, tuple):
        return [result_of(result, i) for i in range(len(group))]
    make = result._make if hasattr(result, "_make") else tuple
    return [make([result_of(x, i) for x in result]) for i in range(len(group))]


def _padded(xp: Any, x: Any, order: int, square: bool) -> Any:
    """[[x, 0], [0, I]] for a matrix, and x with rows of zeros for a right-hand side."""
    more = order - x.shape[0]
    if not more:
        return x
    bottom = xp.zeros_like(x[:more])
    if square:
        x, bottom = xp.beside(x, xp.zeros_like(x[:, :more])), xp.beside(bottom, xp.eye(x[:more, :more]))
    return xp.swap(xp.beside(xp.swap(x), xp.swap(bottom)))


def _located(error: Any, indices: list[int], count: int) -> Exception:
    """The same error with the index in the list in front of the index in the batch."""
    index = error.batch_index
    first, more = (indices[index[0]], index[1:]) if len(indices) > 1 else (indices[0], index)
    shape = error.batch_shape[1:] if len(indices) > 1 else error.batch_shape
    return error.changed(batch_index=(first, *more), batch_shape=(count, *shape))  # type: ignore[no-any-return]
