"""Analyse a simulation while it runs, on its device, without copying its fields.

A solver in Python passes its fields to a `Hub` at every step; a solver in C, C++ or Fortran passes pointers through
``lapwing_insitu.h``. Use the ready-made analyses below, write classes derived from `Analysis`, or decorate functions with
`on_step`.

>>> import numpy as np
>>> from lapwing import insitu
>>> x = np.linspace(0, 2 * np.pi, 128, endpoint=False)
>>> pod, stats = insitu.POD("u", rank=4), insitu.Stats("u")
>>> with insitu.Hub([pod, stats], output=None, quiet=True) as hub:
...     for n in range(200):
...         u = np.sin(x - 0.02 * n) * np.exp(-0.01 * n)
...         if hub.step(n, 0.01 * n, u=u) == 2:
...             break
>>> pod.rank, stats.count("u")
(2, 200)
"""

from .analyses.dmd import DMD
from .analyses.plot import Plot
from .analyses.pod import POD
from .analyses.probe import Probe
from .analyses.progress import Progress
from .analyses.snapshots import Snapshots
from .analyses.spectrum import Spectrum
from .analyses.stats import Stats
from .analyses.steer import Stop
from .analyses.writer import Writer
from .analysis import Analysis, CollectiveError, Context, Sketch, StopRun, on_step
from .solver.checkpoint import CheckpointError
from .solver.field import Field
from .solver.hub import Hub
from .solver.mesh import Mesh

__all__ = [
    "DMD",
    "POD",
    "Analysis",
    "CheckpointError",
    "CollectiveError",
    "Context",
    "Field",
    "Hub",
    "Mesh",
    "Plot",
    "Probe",
    "Progress",
    "Sketch",
    "Snapshots",
    "Spectrum",
    "Stats",
    "Stop",
    "StopRun",
    "Writer",
    "on_step",
]
