"""hipBLASLt on AMD GPUs: this backend writes files for AMD's tools, and runs nothing.

The files follow the formats that AMD's tools read; none was tried on AMD hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..amd import bench, tensile
from ..gemm import Gemm
from .base import Bench, Config, Refused, Space

_WHY = (
    "it writes files for AMD's tools and runs nothing\nhint: lapwing tune configure, then run, with --backend hipblaslt alone"
)


class HipBlasLt:
    """Writes a tuning file and a script for each product, and both for ``hipblaslt-bench``."""

    name = "hipblaslt"

    def missing(self) -> str | None:
        return _WHY

    def environment(self, device: int) -> dict[str, str]:
        return {"hipblaslt": "files only"}

    def devices(self) -> list[int]:
        return []

    def supports(self, gemm: Gemm) -> str | None:
        return tensile.unsupported(gemm)

    def default(self, gemm: Gemm) -> Config:
        return {"algo_method": "heuristic"}

    def space(self, gemm: Gemm, device: int) -> Space:
        return Space(parameters={}, listed=(self.default(gemm),))

    def precompile(self, gemm: Gemm, config: Config, device: int) -> None:
        """There is nothing to compile."""

    def open(self, gemm: Gemm, device: int, seed: int) -> Bench:
        raise Refused("constraints", _WHY)

    def callable(self, gemm: Gemm, config: Config, device: int) -> Callable[..., Any]:
        raise Refused("constraints", _WHY)

    def emit(self, problems: dict[str, Gemm], folder: str | Path, *, architecture: str = "gfx942") -> list[Path]:
        """Write all files for AMD's tools: ``<name>.yaml`` and ``<name>.sh`` for each product, ``bench.yaml``, ``bench.sh``.

        Parameters
        ----------
        problems : dict
            Products by name, for example "BBS_TN_0".
        folder : path
        architecture : {"gfx942", "gfx950"}

        Returns
        -------
        list of Path
            The files. Products that TensileLite cannot tune are left out, and listed in ``left_out.txt``.
        """
        paths = tensile.write(problems, folder, architecture=architecture)
        return paths + bench.write(list(problems.values()), folder)


BACKEND = HipBlasLt()
