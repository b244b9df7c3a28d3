"""What an engine is to the planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.plan import Capability, Support
from ..core.problem import Problem

__all__ = ["Engine"]


def _no_memory(problem: Problem) -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True)
class Engine:
    """One library, or one family of our kernels, that does the work.

    ``missing(device)`` is "" or why the engine cannot run there. ``largest(problem)`` is the largest n it takes, None for any.
    ``workspace(problem)`` gives device and host bytes.
    """

    name: str
    what: str
    capabilities: tuple[Capability, ...]
    missing: Callable[[str], str]
    largest: Callable[[Problem], int | None] = lambda problem: None
    workspace: Callable[[Problem], tuple[int, int]] = _no_memory
    library: Callable[[], str] = lambda: ""  # whose routines it calls, where that can differ
    refuses: Callable[[Problem], str] = lambda problem: ""  # why it has no way to do this one, whatever the machine

    def described(self) -> str:
        library = self.library()
        return f"{self.what} from {library}" if library else self.what

    def support(self, problem: Problem) -> Support:
        rows = [c for c in self.capabilities if c.operation == problem.operation and c.device == problem.device]
        if not rows:
            return Support(False, f"{self.name} has no {problem.operation} on {problem.device}")
        if problem.dtype not in rows[0].dtypes:
            return Support(False, f"{self.name} has no {problem.operation} for {problem.dtype} on {problem.device}")
        if reason := self.refuses(problem) or self.missing(problem.device):
            return Support(False, reason)
        largest = self.largest(problem)
        if largest is not None and problem.n > largest:
            return Support(False, f"{self.name} takes n up to {largest} for {problem.dtype}, not {problem.n}")
        return Support(True)
