"""What is analysed while burgers runs: streaming POD, the two pictures, and the error against the exact solution.

Any script with ``analyses()`` can take its place: give its path to the solver, or set LAPWING_INSITU_SCRIPT.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from exact import burgers

from lapwing import insitu


class ExactError(insitu.Analysis):
    """Distance from the Cole-Hopf solution at a few steps. A step's field is the solution at its end."""

    fields = ("u",)
    collective = True  # the ranks add up their parts at the end

    def __init__(self, steps: tuple[int, ...] = (499, 999, 1499, 2000)) -> None:
        self.steps = steps
        self.rows: list[tuple[float, float, float, float]] = []

    def on_step(self, ctx: insitu.Context, u: Any) -> None:
        if ctx.step not in self.steps:
            return
        mesh = ctx.mesh
        first = mesh.offset[0] if mesh.offset else 0
        x = (first + np.arange(u.shape[0])) * mesh.spacing[0]
        exact = burgers(x, ctx.time)
        off = ctx.fields["u"].to_host() - exact
        self.rows.append((ctx.time, float(off @ off), float(exact @ exact), float(np.abs(off).max())))

    def on_finish(self, ctx: insitu.Context) -> None:
        rows = np.array(self.rows).reshape(-1, 4)
        times, sums, largest = rows[:, 0], ctx.comm.sum(rows[:, 1:3]), ctx.comm.maximum(rows[:, 3])
        if ctx.rank == 0:
            for time, (off, norm), most in zip(times, sums, largest, strict=True):
                print(f"t = {time:.3f}: error against the exact solution {np.sqrt(off / norm):.2e} (largest {most:.2e})")
            # the shock is thinner than the mesh: h / nu = 2.45, and central differences want less than 2

    def state(self) -> dict[str, Any]:
        return {"rows": np.array(self.rows).reshape(-1, 4)}

    def restore(self, state: dict[str, Any]) -> None:
        self.rows = [tuple(row) for row in state["rows"].tolist()]


def analyses() -> list[insitu.Analysis]:
    pod = insitu.POD("u", rank=10)
    return [pod, insitu.Plot(pod, every=400), ExactError()]
