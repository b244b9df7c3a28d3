"""What a problem costs at least: floating-point operations by the usual count, and bytes read and written once."""

from __future__ import annotations

from ..core.problem import Problem

__all__ = ["bytes_moved", "flops"]


def flops(problem: Problem) -> float:
    """For eigenvalues that of the reduction to tridiagonal form and of what follows it for the vectors."""
    n, k = float(problem.n), float(problem.columns or 1)
    small, large = min(n, k), max(n, k)
    each = {
        "cholesky": n**3 / 3,
        "eigh": 4 / 3 * n**3 + 4 * n * n * problem.count,
        "eigvalsh": 4 / 3 * n**3,
        "triangular": n * n * k,
        "solve": (1 if problem.pos else 2) / 3 * n**3 + 2 * n * n * k,
        "inverse": (1 if problem.pos else 2) * n**3,
        "slogdet": (1 if problem.pos else 2) / 3 * n**3,
        "lu": 2 / 3 * n**3,
        "qr": 4 * large * small**2 - 4 / 3 * small**3,
        "svd": 6 * large * small**2 + 20 * small**3,
        "svdvals": 2 * large * small**2 + 2 * small**3,
    }[problem.operation]
    return problem.batch * each * (4 if problem.dtype.startswith("complex") else 1)


def bytes_moved(problem: Problem) -> int:
    n, k = problem.n, problem.columns or 1
    small = min(n, k)
    both = {
        "cholesky": 2 * n * n,
        "eigh": n * n + n * problem.count,
        "eigvalsh": n * n,
        "triangular": n * n + 2 * n * k,
        "solve": n * n + 2 * n * k,
        "inverse": 2 * n * n,
        "slogdet": n * n,
        "lu": 2 * n * n,
        "qr": 2 * n * k + small * small,
        "svd": 2 * n * k + small * small,
        "svdvals": n * k,
    }[problem.operation]
    return problem.batch * both * problem.itemsize
