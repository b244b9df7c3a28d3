"""Errors that say what happened, with fields that a program can read."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Self

import numpy as np


class ShapeError(np.linalg.LinAlgError, ValueError):
    """An array has the wrong shape. ``except ValueError`` and ``except numpy.linalg.LinAlgError`` both catch it."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the caller's line: the first one outside of lapwing and of JAX and torch, which may call lapwing."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("lapwing", "jax", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def which_matrix(batch_index: tuple[int, ...], batch_shape: tuple[int, ...]) -> str:
    """Name one matrix of a batch in words: "the matrix", "matrix 3 of 8", "matrix (1, 3) of 2 x 8"."""
    if not batch_shape:
        return "the matrix"
    if len(batch_shape) == 1:
        return f"matrix {batch_index[0]} of {batch_shape[0]}"
    return f"matrix {batch_index} of {' x '.join(map(str, batch_shape))}"


class _MatrixError(np.linalg.LinAlgError):
    """An operation failed for one matrix of a batch.

    Attributes
    ----------
    batch_index : tuple of int
        Which matrix of the batch, the first that failed; ``()`` for a single matrix.
    nonfinite : bool
        The part of it that was read holds NaN or Inf.
    failures : int
        How many matrices of the batch failed.
    """

    def __init__(
        self,
        operation: str,
        *,
        batch_index: tuple[int, ...] = (),
        batch_shape: tuple[int, ...] = (),
        nonfinite: bool = False,
        failures: int = 1,
        **fields: object,
    ) -> None:
        self.operation = operation
        self.batch_index = batch_index
        self.batch_shape = batch_shape
        self.nonfinite = nonfinite
        self.failures = failures
        self.__dict__.update(fields)
        who = f"{operation}: {which_matrix(batch_index, batch_shape)}"
        text = self._what(who)
        if failures > 1:
            text += f"; {failures} matrices failed"
        super().__init__(f"{text}\nhint: {'look for NaN or Inf in the input' if nonfinite else self._hint()}")

    def _what(self, who: str) -> str:
        raise NotImplementedError

    def _hint(self) -> str:
        raise NotImplementedError

    def changed(self, **changes: object) -> Self:
        """The same error with other fields, and the message for them."""
        fields: dict[str, Any] = self.__dict__ | changes
        return type(self)(fields.pop("operation"), **fields)

    def __reduce__(self) -> tuple[object, ...]:
        fields = {k: v for k, v in self.__dict__.items() if k != "operation"}
        return (_rebuild, (type(self), self.operation, fields))


class NotPositiveDefiniteError(_MatrixError):
    """A matrix is not positive definite.

    Attributes
    ----------
    batch_index : tuple of int
        Which matrix of the batch, the first that failed; ``()`` for a single matrix.
    minor : int
        Order of the first leading minor whose pivot is not finite and positive.
    nonfinite : bool
        The triangle that was read holds NaN or Inf.
    failures : int
        How many matrices of the batch failed.
    """

    minor = 0
    jitter: object = None  # what the call tried to add to the diagonal

    def _what(self, who: str) -> str:
        if self.nonfinite:
            return f"{who} holds NaN or Inf (leading minor of order {self.minor} is not finite and positive)"
        tried = "" if self.jitter is None else f", also with jitter={self.jitter!r}"
        return f"{who} is not positive definite{tried} (leading minor of order {self.minor})"

    def _hint(self) -> str:
        if self.jitter is not None:
            hint = "more than rounding is wrong with it: check how it was computed, or pass a larger number as jitter"
        elif self.operation in ("cholesky", "factor"):
            hint = 'add a small multiple of the identity (jitter="auto" does that, on one device)'
        elif self.operation == "inv_root":
            hint = "ridge=... adds a multiple of the identity"
        elif self.operation in ("solve", "inv", "slogdet", "det"):
            hint = 'add a small multiple of the identity; if it need not be positive definite, use assume="hermitian"'
        else:
            hint = "add a small multiple of the identity"
        return f'{hint}; on_fail="nan" keeps the rest of the batch' if self.batch_shape else hint


class SingularMatrixError(_MatrixError):
    """A matrix is singular: a pivot is exactly zero.

    Attributes
    ----------
    batch_index : tuple of int
        Which matrix of the batch, the first that failed; ``()`` for a single matrix.
    pivot : int
        Which pivot, counted from 1.
    nonfinite : bool
        The matrix holds NaN or Inf.
    failures : int
        How many matrices of the batch failed.
    """

    pivot = 0

    def _what(self, who: str) -> str:
        if self.nonfinite:
            return f"{who} holds NaN or Inf (pivot {self.pivot} is not finite)"
        return f"{who} is singular (pivot {self.pivot} is zero)"

    def _hint(self) -> str:
        if not self.batch_shape:
            return "lapwing.lstsq gives the least-squares solution"
        return 'lapwing.lstsq gives the least-squares solution; on_fail="nan" keeps the rest of the batch'


class ConvergenceError(_MatrixError):
    """An iteration did not converge.

    Attributes
    ----------
    batch_index : tuple of int
        Which matrix of the batch, the first that failed; ``()`` for a single matrix.
    nonfinite : bool
        The triangle that was read holds NaN or Inf.
    failures : int
        How many matrices of the batch failed.
    """

    operator = False  # whether the matrix was a lapwing.operator

    def _what(self, who: str) -> str:
        return f"{who} holds NaN or Inf" if self.nonfinite else f"{who}: the iteration did not converge"

    def _hint(self) -> str:
        if self.operator and self.operation.startswith("svd"):
            return "check that rmatvec multiplies by the adjoint of the matrix; else ask for fewer values"
        if self.operator:
            return "ask for fewer values, or for the other end of the spectrum; a cluster at the cut cannot be resolved"
        if self.operation in ("sqrtm", "logm"):
            return (
                "the matrix must not be singular, nor have an eigenvalue on or near the negative real axis;"
                ' assume="pos" is for Hermitian matrices'
            )
        return "try another engine, or scale the matrix"


class DefectiveMatrixError(_MatrixError):
    """A derivative of eigenvalues or eigenvectors was asked for, and the eigenvectors of a matrix do not span the space.

    Attributes
    ----------
    batch_index : tuple of int
        Which matrix of the batch, the first that failed; ``()`` for a single matrix.
    nonfinite : bool
        False.
    failures : int
        How many matrices of the batch failed.
    """

    def _what(self, who: str) -> str:
        return (
            f"{who} is defective to working precision: its computed eigenvectors do not span the space, and have no derivative"
        )

    def _hint(self) -> str:
        return "a small random matrix added to it makes its eigenvalues distinct; use float64 if this is float32"


def _rebuild(cls: type[_MatrixError], operation: str, fields: dict[str, Any]) -> _MatrixError:
    return cls(operation, **fields)
