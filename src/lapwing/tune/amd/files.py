"""Folders of files for AMD's tools: write what to tune, and merge what came back. Not run on AMD hardware."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ..workdir import Workdir
from . import bench, override, tensile
from .equality import LogicError, Merged, merge_logic


def emit(workdir: Any, folder: str | Path | None = None, *, architecture: str = "gfx942") -> list[Path]:
    """Write the tuning files, scripts and benchmark files for every configuration of a workdir.

    Parameters
    ----------
    workdir : Workdir or path
        Contains ``configs/*.json``, which ``lapwing tune configure`` writes.
    folder : path, optional
        Default ``tunings`` in the workdir.
    architecture : {"gfx942", "gfx950"}

    Returns
    -------
    list of Path
        ``<name>.yaml`` and ``<name>.sh`` for each, ``bench.yaml``, ``bench.sh``, and ``left_out.txt`` if a product is left out.
    """
    root = Path(getattr(workdir, "path", workdir))
    problems = {target.name: target.gemm for target in sorted(Workdir(root).configs(), key=lambda target: target.name)}
    if not problems:
        raise FileNotFoundError(f"tune: {root} has no configurations\nhint: lapwing tune configure LOG --workdir {root}")
    to = Path(folder) if folder is not None else root / "tunings"
    return tensile.write(problems, to, architecture=architecture) + bench.write(list(problems.values()), to)


def override_from_results(results: str | Path, path: str | Path, *, worst_error: float = 0.03) -> override.Override:
    """Write the override file with the fastest solutions, from the output of ``hipblaslt-bench --algo_method all``.

    The output must include kernel names (``--print_kernel_info``).
    """
    measured, _ = bench.read_results(results)
    chosen = bench.best(measured, worst_error=worst_error)
    return override.write({gemm: r.solution for gemm, r in chosen.items() if r.solution is not None}, path)


def merge_folders(
    base: str | Path, new: str | Path, out: str | Path, *, force: bool = True, no_efficiency: bool = False
) -> dict[str, Merged | None]:
    """Merge a folder of library logic into another, as TensileMergeLibrary does. It needs PyYAML.

    Files with equal names are merged. A file that only the new folder has is copied (None in the result). ``out`` may be
    ``base``, whose name (``Equality``) must be the kind of the files. hipBLASLt must be built again with the result.
    """
    try:
        import yaml
    except ImportError:
        raise ImportError("equality: reading library logic needs PyYAML\nhint: pip install pyyaml") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    base, new, out = Path(base), Path(new), Path(out)
    names = sorted(p.name for p in new.glob("*.yaml"))
    if not names:
        raise FileNotFoundError(f"equality: {new} has no library logic")
    merged: dict[str, Merged | None] = {}
    for name in names:  # all are merged before any is written
        if not (base / name).exists():
            merged[name] = None
            continue
        old, fresh = (yaml.load((folder / name).read_text(), Loader=loader) for folder in (base, new))
        try:
            merged[name] = merge_logic(old, fresh, force=force, no_efficiency=no_efficiency, folder=base.resolve().name)
        except LogicError as error:
            raise LogicError(f"{error} ({name})") from None
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() != base.resolve():
        for path in base.glob("*.yaml"):
            if path.name not in merged:
                shutil.copyfile(path, out / path.name)
    for name, result in merged.items():
        if result is None:
            shutil.copyfile(new / name, out / name)
        else:
            (out / name).write_text(yaml.safe_dump(result.logic, default_flow_style=None, sort_keys=False))
    return merged
