"""Analyse a simulation while it runs, on its device, without copying its fields."""

from .analysis import Analysis, CollectiveError, Context, StopRun, on_step
from .field import Field
from .hub import Hub
from .mesh import Mesh
from .pod import POD
from .store import CheckpointError

__all__ = ["POD", "Analysis", "CheckpointError", "CollectiveError", "Context", "Field", "Hub", "Mesh", "StopRun", "on_step"]
