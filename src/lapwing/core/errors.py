"""Errors that say what happened, with fields that a program can read."""

from __future__ import annotations

import numpy as np

__all__ = ["ConvergenceError", "NotPositiveDefiniteError", "SingularMatrixError", "which_matrix"]


def which_matrix(batch_index: tuple[int, ...], batch_shape: tuple[int, ...]) -> str:
    """Name one matrix of a batch in words: "the matrix", "matrix 3 of 8", "matrix (1, 3) of 2 x 8"."""
    if not batch_shape:
        return "the matrix"
    if len(batch_shape) == 1:
        return f"matrix {batch_index[0]} of {batch_shape[0]}"
    return f"matrix {batch_index} of {' x '.join(map(str, batch_shape))}"


class NotPositiveDefiniteError(np.linalg.LinAlgError):
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

    def __init__(
        self,
        operation: str,
        *,
        batch_index: tuple[int, ...] = (),
        batch_shape: tuple[int, ...] = (),
        minor: int = 0,
        nonfinite: bool = False,
        failures: int = 1,
    ) -> None:
        self.operation = operation
        self.batch_index = batch_index
        self.batch_shape = batch_shape
        self.minor = minor
        self.nonfinite = nonfinite
        self.failures = failures
        super().__init__(self._message())

    def _message(self) -> str:
        who = which_matrix(self.batch_index, self.batch_shape)
        text = f"{self.operation}: {who} is not positive definite (leading minor of order {self.minor})"
        if self.nonfinite:
            text = f"{self.operation}: {who} holds NaN or Inf (leading minor of order {self.minor} is not finite and positive)"
        if self.failures > 1:
            text += f"; {self.failures} matrices failed"
        if self.nonfinite:
            return text + "\nhint: look for NaN or Inf in the input"
        if not self.batch_shape:
            return text + "\nhint: add a small multiple of the identity to it"
        return text + '\nhint: add a small multiple of the identity, or keep the rest of the batch with on_fail="nan"'

    def __reduce__(self) -> tuple[object, ...]:
        fields = {k: v for k, v in self.__dict__.items() if k != "operation"}
        return (_rebuild, (type(self), self.operation, fields))


class SingularMatrixError(np.linalg.LinAlgError):
    """A pivot is exactly zero."""


class ConvergenceError(np.linalg.LinAlgError):
    """An iteration did not converge."""


def _rebuild(cls: type[NotPositiveDefiniteError], operation: str, fields: dict[str, object]) -> NotPositiveDefiniteError:
    return cls(operation, **fields)  # type: ignore[arg-type]
