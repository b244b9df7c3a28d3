"""hipBLASLt on AMD GPUs: this backend writes files for AMD's tools, and runs nothing.

The files follow the formats that AMD's tools read; none was tried on AMD hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..amd import bench, tensile
from ..amd.architectures import ASSUMED, get
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
        # products that TensileLite cannot tune are measured too; left_out.txt says which these are on an architecture
        return bench.unsupported(gemm)

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

    def emit(
        self, problems: dict[str, Gemm], folder: str | Path, *, architecture: str = ASSUMED, strategy: str = "genetic"
    ) -> list[Path]:
        """Write all files for AMD's tools, as :func:`lapwing.tune.amd.files.emit` does for a workdir.

        Parameters
        ----------
        problems : dict
            Products by name, for example "BBS_TN_0".
        folder : path
        architecture : str
            "gfx90a", "gfx942", "gfx950", or a part of one: "gfx942_80cu".
        strategy : {"genetic", "exhaustive"}

        Returns
        -------
        list of Path
            The files. Products that TensileLite cannot tune are left out, and listed in ``left_out.txt``.
        """
        paths = tensile.write(problems, folder, architecture=architecture, strategy=strategy)
        return paths + bench.write(list(problems.values()), folder, family=get(architecture).family)


BACKEND = HipBlasLt()
