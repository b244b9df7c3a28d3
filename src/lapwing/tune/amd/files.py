"""Folders of files for AMD's tools: write tuning files, and gather, trim and merge the results. Not run on AMD hardware."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_atomic
from ..gemm import Call, Gemm
from ..workdir import Workdir
from . import bench, override, tensile
from .architectures import ASSUMED, family_of, get, of_folder, recall
from .equality import (
    LogicError,
    Merged,
    architecture_of,
    check_logic,
    kind_of,
    merge_logic,
    problem_of,
    sizes_of,
    trim_logic,
)
from .names import same_problem


def emit(
    workdir: Any, folder: str | Path | None = None, *, architecture: str = ASSUMED, strategy: str = "genetic"
) -> list[Path]:
    """Write the tuning files, scripts and benchmark files for every configuration of a workdir.

    Parameters
    ----------
    workdir : Workdir or path
        Contains ``configs/*.json``, which ``lapwing tune configure`` writes.
    folder : path, optional
        Default ``tunings`` in the workdir.
    architecture : str
        "gfx90a", "gfx942", "gfx950", or a part of one: "gfx942_80cu".
    strategy : {"genetic", "exhaustive"}
        The genetic search needs a TensileLite with the backend Ductile; the grid works with any.

    Returns
    -------
    list of Path
        ``<name>.yaml`` and ``<name>.sh`` for each product, ``tune.sh`` for all; ``bench.yaml``, ``verify.yaml``, ``compare.sh``
        and ``bench.sh`` for hipblaslt-bench; and ``left_out.txt`` if a product is left out.
    """
    root = Path(getattr(workdir, "path", workdir))
    targets = sorted(Workdir(root).configs(), key=lambda target: target.name)
    if not targets:
        raise FileNotFoundError(f"tune: {root} has no configurations\nhint: lapwing tune configure LOG --workdir {root}")
    to = Path(folder) if folder is not None else root / "tunings"
    problems = {target.name: target.gemm for target in targets}
    paths = tensile.write(problems, to, architecture=architecture, strategy=strategy)
    calls = [Call(target.gemm, target.count) for target in targets]
    return paths + bench.write(calls, to, family=get(architecture).family)


def override_from_results(results: str | Path, path: str | Path, *, worst_error: float = 0.03) -> override.Override:
    """Write the override file with the fastest solutions, from the output of ``hipblaslt-bench --algo_method all``.

    The output must include kernel names (``--print_kernel_info``).
    """
    measured, _ = bench.read_results(results)
    chosen = bench.best(measured, worst_error=worst_error)
    return override.write({gemm: r.solution for gemm, r in chosen.items() if r.solution is not None}, path)


@dataclass(frozen=True)
class Gathered:
    """Library logic that was gathered: the files, and for each product without a kernel the reason."""

    paths: tuple[Path, ...]
    kernels: int
    missing: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        rows = "".join(f"\nno kernel for {name}: {reason}" for name, reason in self.missing)
        return f"{self.kernels} kernels in {len(self.paths)} files{rows}"


def gather(workdir: str | Path, folder: str | Path | None = None, out: str | Path | None = None) -> Gathered:
    """Merge the results of the searches, ``tunings/*/3_LibraryLogic``, into one file for each problem type. Needs PyYAML.

    If a size is in several files, the more efficient kernel stays. Files of another run in ``out`` are removed.

    Parameters
    ----------
    workdir : path
    folder : path, optional
        Where the searches ran; default ``tunings`` in the workdir.
    out : path, optional
        Default ``libs`` in the workdir.
    """
    root = Path(workdir)
    searched, to = Path(folder or root / "tunings"), Path(out or root / "libs")
    logic: dict[str, Any] = {}
    choice = recall(root)
    for path in sorted(searched.glob("*/3_LibraryLogic/*.yaml")):
        fresh = load_logic(path)
        _check_gpu(fresh, path, family_of(choice.name) if choice else None, str(root))
        try:
            if path.name in logic:
                fresh = merge_logic(logic[path.name], fresh, force=False, folder=kind_of(fresh)).logic
            logic[path.name] = trim_logic(fresh)[0]
        except LogicError as error:
            raise _in_file(error, path) from None
    if not logic:
        raise FileNotFoundError(
            f"amd gather: {searched} has no library logic, */3_LibraryLogic/*.yaml\n"
            f"hint: run {searched / 'tune.sh'} on the GPU first; its logs say what failed"
        )
    missing = []
    for target in Workdir(root).configs():
        if _has(logic.values(), target.gemm):
            continue
        own = searched / target.name
        if not (searched / f"{target.name}.yaml").exists():
            missing.append((target.name, f"it was not searched; see {searched / 'left_out.txt'}"))
        elif list(own.glob("3_LibraryLogic/*.yaml")):
            missing.append((target.name, f"{own / '3_LibraryLogic'} does not have its size"))
        else:
            missing.append((target.name, f"its search did not end; see {own.with_suffix('.log')}"))
    to.mkdir(parents=True, exist_ok=True)
    clear_own(to)
    paths = tuple(save_logic(to / name, content) for name, content in sorted(logic.items()))
    note_own(to, paths)
    return Gathered(paths, sum(len(sizes_of(content)) for content in logic.values()), tuple(missing))


_OWN = ".lapwing-files"  # the names of the library logic that lapwing wrote into a folder


def clear_own(folder: Path) -> None:
    """Delete the library logic that an earlier call wrote into the folder, and refuse a folder that holds other files."""
    own = set((folder / _OWN).read_text().split("\n")) if (folder / _OWN).exists() else set()
    others = sorted(path.name for path in folder.glob("*.yaml") if path.name not in own)
    if others:
        raise ValueError(
            f"amd: {folder} holds library logic that lapwing did not write, such as {others[0]}\nhint: name a new folder"
        )
    for path in folder.glob("*.yaml"):
        path.unlink()


def note_own(folder: Path, paths: Iterable[Path]) -> None:
    """Note which files of the folder are lapwing's, for the next call."""
    names = sorted(path.name for path in paths)
    if names:
        (folder / _OWN).write_text("\n".join(names) + "\n")


def trim(
    source: str | Path, out: str | Path, kept: Iterable[Gemm] | None = None
) -> tuple[dict[Path, list[tuple[int, ...]]], list[Gemm]]:
    """Write library logic with only the sizes of some products, and the kernels that these use. It needs PyYAML.

    Parameters
    ----------
    source : path
        A file, or a folder of files.
    out : path
        A folder. Files in which no size stays are not written.
    kept : products, optional
        Default: all sizes stay, and only kernels that nobody uses are removed.

    Returns
    -------
    written : dict
        The sizes in each new file.
    missing : list of Gemm
        Products that are in no file.
    """
    files = logic_files(source)
    wanted = None if kept is None else list(kept)
    found: set[Gemm] = set()
    trimmed: dict[str, tuple[Any, list[tuple[int, ...]]]] = {}
    for path in files:
        logic = load_logic(path)
        sizes = None
        if wanted is not None:
            ours = [g for g in wanted if same_problem(problem_of(logic), g)]
            sizes = {(g.m, g.n, g.batch, g.k) for g in ours}
            here = set(sizes_of(logic))
            found |= {g for g in ours if (g.m, g.n, g.batch, g.k) in here}
        try:
            trimmed[path.name] = trim_logic(logic, sizes)
        except LogicError as error:
            raise _in_file(error, path) from None
    written = {save_logic(Path(out) / name, logic): sizes for name, (logic, sizes) in trimmed.items() if sizes}
    return written, [g for g in wanted or () if g not in found]


def merge_folders(
    base: str | Path, new: str | Path, out: str | Path, *, force: bool = True, no_efficiency: bool = False
) -> dict[str, Merged | None]:
    """Merge a folder of library logic into another, as TensileMergeLibrary does. It needs PyYAML.

    Files with equal names are merged. A file that only the new folder has is copied (None in the result). ``out`` may be
    ``base``, whose name (``Equality``) must be the kind of the files. hipBLASLt must be built again with the result.
    """
    base, new, out = Path(base), Path(new), Path(out)
    logic_files(base, empty=True)
    merged: dict[str, Merged | None] = {}
    for path in logic_files(new):  # all are merged before any is written
        name, fresh = path.name, load_logic(path)
        _check_gpu(fresh, path, of_folder(base), str(base))
        if not (base / name).exists():
            if kind_of(fresh) != base.resolve().name:
                raise LogicError(
                    f"equality: {path} is of kind {kind_of(fresh)!r}, but {base} is not a folder of that name\n"
                    "hint: merge into the folder of that kind"
                )
            merged[name] = None
            continue
        old = load_logic(base / name)
        try:
            merged[name] = merge_logic(old, fresh, force=force, no_efficiency=no_efficiency, folder=base.resolve().name)
        except LogicError as error:
            raise _in_file(error, Path(name)) from None
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() != base.resolve():
        for path in base.glob("*.yaml"):
            if path.name not in merged:
                shutil.copyfile(path, out / path.name)
    for name, result in merged.items():
        if result is None:
            shutil.copyfile(new / name, out / name)
        else:
            save_logic(out / name, result.logic)
    return merged


def logic_files(source: str | Path, *, empty: bool = False) -> list[Path]:
    """The files of a folder, or the file itself. FileNotFoundError without one, unless the folder may be empty."""
    path = Path(source)
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path] if path.is_file() else []
    if not files and not (empty and path.is_dir()):
        reason = "has no library logic, *.yaml" if path.is_dir() else "does not exist"
        raise FileNotFoundError(
            f"amd: {path} {reason}\nhint: lapwing tune amd gather W writes W/libs, compare W writes W/final"
        )
    return files


def load_logic(path: Path) -> Any:
    """Read library logic. LogicError names a file that is damaged."""
    yaml = _yaml()
    try:
        return check_logic(yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except LogicError as error:
        raise _in_file(error, path) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        raise LogicError(f"equality: {path} is not YAML{line}\nhint: was it cut off? Write it again with TensileLite") from None


def save_logic(path: Path, logic: Any) -> Path:
    yaml = _yaml()
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return write_atomic(path, yaml.dump(logic, Dumper=dumper, default_flow_style=None, sort_keys=False))


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError("amd: reading library logic needs PyYAML\nhint: pip install pyyaml") from None
    return yaml


def _check_gpu(logic: Any, path: Path, wanted: str | None, where: str) -> None:
    found = architecture_of(logic)
    if wanted and found and found != wanted:
        raise LogicError(f"equality: {path} is for {found}, but {where} is for {wanted}\nhint: name files of one architecture")


def _in_file(error: LogicError, path: Path) -> LogicError:
    text, newline, hint = str(error).partition("\n")
    return LogicError(f"{text} ({path}){newline}{hint}")


def _has(logic: Iterable[Any], gemm: Gemm) -> bool:
    size = (gemm.m, gemm.n, gemm.batch, gemm.k)
    return any(same_problem(problem_of(one), gemm) and size in sizes_of(one) for one in logic)
