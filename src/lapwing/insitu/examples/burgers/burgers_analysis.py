"""The analyses of burgers: streaming POD, two pictures, and the error against the exact solution.

Any script with ``analyses()`` can replace it: pass its path to the solver, or set LAPWING_INSITU_SCRIPT.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from exact import burgers

from lapwing import insitu


class Report(insitu.Analysis):
    """Prints the singular values, and the error against the exact solution at a few steps."""

    fields = ("u",)
    collective = True  # the ranks add their parts,
    collective_every = 1 << 30  # but only at the end

    def __init__(self, pod: insitu.POD, steps: tuple[int, ...] = (499, 999, 1499, 2000)) -> None:
        self.pod = pod
        self.steps = steps
        self.rows: list[tuple[float, ...]] = []

    def on_step(self, ctx: insitu.Context, u: Any) -> None:
        if ctx.step not in self.steps:
            return
        first = ctx.mesh.offset[0] if ctx.mesh.offset else 0
        x = (first + np.arange(u.shape[0])) * ctx.mesh.spacing[0]
        exact = burgers(x, ctx.time)
        off = ctx.fields["u"].to_host() - exact
        self.rows.append((ctx.time, float(off @ off), float(exact @ exact), float(np.abs(off).max())))

    def on_finish(self, ctx: insitu.Context) -> None:
        rows = np.array(self.rows).reshape(-1, 4)
        sums, largest = ctx.comm.sum(rows[:, 1:3]), ctx.comm.maximum(rows[:, 3])
        if ctx.rank == 0:
            print("singular values", *(f"{value:.9g}" for value in self.pod.sigma))
            # at the end the mesh does not resolve the shock: central differences need h / nu < 2, and here it is 2.45
            for time, (off, norm), most in zip(rows[:, 0], sums, largest, strict=True):
                print(f"t = {time:.3f}: off the exact solution by {np.sqrt(off / norm):.1e}, at most {most:.1e}", flush=True)

    def state(self) -> dict[str, Any]:
        return {"rows": np.array(self.rows).reshape(-1, 4)}

    def restore(self, state: dict[str, Any]) -> None:
        self.rows = [tuple(row) for row in state["rows"].tolist()]


def analyses() -> list[insitu.Analysis]:
    pod = insitu.POD("u", rank=10)
    # Field_evolution.png: a line for every 400th step. SVD_Eigenvectors.png: the first three modes.
    return [pod, insitu.Plot("u", every=400), insitu.Plot(pod), Report(pod)]
