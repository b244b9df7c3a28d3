"""TensileLite: a tuning file and a script for each product, for AMD's kernel tuner. Not run on AMD hardware."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ..gemm import Gemm
from . import yaml
from .names import LETTERS, letters

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gfx942": {"units": 304, "devices": ["Device 0049", "Device 0050"]},
    "gfx950": {"units": 256, "devices": ["Device 75a0"]},
}
# matrix instructions by architecture and type: M, N, K, blocks
_INSTRUCTIONS: dict[str, dict[str, tuple[tuple[int, int, int, int], ...]]] = {
    architecture: {
        **{name: ((16, 16, k, 1), (32, 32, k // 2, 1)) for name, k in depths.items()},
        "f64": ((16, 16, 4, 1),),
    }
    for architecture, depths in {
        "gfx942": {"bf16": 16, "f16": 16, "f8e4m3fnuz": 32, "f8e5m2fnuz": 32, "i8": 32, "f32": 4},
        "gfx950": {"bf16": 32, "f16": 32, "f8e4m3": 128, "f8e5m2": 128, "i8": 64, "f32": 4},
    }.items()
}
_MOST = 24  # matrix instructions in one file; their number multiplies with all other parameters


def unsupported(gemm: Gemm, architecture: str = "gfx942") -> str | None:
    """Why TensileLite cannot tune this product, in words; None when it can."""
    if architecture not in ARCHITECTURES:
        return f"unknown architecture {architecture}; known are {', '.join(ARCHITECTURES)}"
    if gemm.a_type not in _INSTRUCTIONS[architecture]:
        return f"{architecture} has no matrix instruction for {gemm.a_type}"
    if "C" in gemm.layout or 0 in (gemm.m, gemm.n, gemm.k):
        return "it is empty or has a conjugated operand"
    if {gemm.b_type, gemm.c_type, gemm.d_type} - set(LETTERS) or gemm.c_type != gemm.d_type:
        return f"the types of C and D, {gemm.c_type} and {gemm.d_type}, are not supported"
    if gemm.a_type != gemm.b_type and not {gemm.a_type, gemm.b_type} <= {"f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"}:
        return f"A of {gemm.a_type} and B of {gemm.b_type} cannot be combined"
    if gemm.scale_a != gemm.scale_b or "block" in (gemm.scale_a, gemm.scale_b):
        return f"scales {gemm.scale_a} and {gemm.scale_b} are not supported"
    return None


def tuning(gemm: Gemm, *, architecture: str = "gfx942", device: int = 0) -> dict[str, Any]:
    """The tuning file as plain lists and dicts, in TensileLite's order."""
    reason = unsupported(gemm, architecture)
    if reason is not None:
        raise ValueError(f"tensile: {gemm}: {reason}")
    return {
        "GlobalParameters": {
            "MinimumRequiredVersion": "4.33.0",
            "KernelTime": True,
            "NumWarmups": 20,
            "EnqueuesPerSync": 20,
            "NumBenchmarks": 1,
            "SleepPercent": 50,
            "NumElementsToValidate": 128,
            "DataInitTypeA": 12,  # sines and cosines: zeros would run faster than real data
            "DataInitTypeB": 13,
            "DataInitTypeC": 12,
            "DataInitTypeAlpha": 1,
            "DataInitTypeBeta": 0,
            "RotatingBufferSize": 512,  # so that operands are not in the cache when they are used
            "CSVExportWinner": True,
            "CSVMergeSameProblemID": True,
            "MaxWorkspaceSize": 134217728,
            "Device": device,
        },
        "BenchmarkProblems": [[problem(gemm), _benchmark(gemm, architecture)]],
        "LibraryLogic": {
            "ScheduleName": architecture,
            "ArchitectureName": architecture,
            "DeviceNames": ARCHITECTURES[architecture]["devices"],
            "LibraryType": "Equality",
        },
    }


def problem(gemm: Gemm) -> dict[str, Any]:
    """The problem type: everything about a product except its sizes. Epilogues are on, as in hipBLASLt's own library."""
    fields: dict[str, Any] = {
        "OperationType": "GEMM",
        "DataType": letters(gemm),
        "DestDataType": LETTERS[gemm.d_type],
        "ComputeDataType": LETTERS["f32" if gemm.compute == "tf32" else gemm.compute],
        "HighPrecisionAccumulate": gemm.a_type not in ("f32", "f64"),
        "TransposeA": gemm.trans_a == "T",
        "TransposeB": gemm.trans_b == "T",
        "UseBeta": True,
        "Batched": True,
        "UseBias": 1,
        "Activation": True,
        "ActivationType": "hipblaslt_all",
        "UseScaleAlphaVec": 1,
    }
    if gemm.compute == "tf32":
        fields["F32XdlMathOp"] = "X"
    if gemm.scale_a != "none":
        fields["UseScaleAB"] = {"tensor": "Scalar", "row": "Vector"}[gemm.scale_a]
    return fields


def _benchmark(gemm: Gemm, architecture: str) -> dict[str, Any]:
    deep = max(mi[2] for mi in _INSTRUCTIONS[architecture][gemm.a_type])
    forks: dict[str, list[Any]] = {
        "MatrixInstruction": instructions(gemm, architecture),
        "DepthU": sorted({max(32, deep), max(64, 2 * deep), max(128, 2 * deep)}),
        "GlobalSplitU": _splits(gemm, architecture),
        "GlobalSplitUAlgorithm": ["MultipleBuffer"],
        "PrefetchGlobalRead": [2],
        "PrefetchLocalRead": [1],
        "ScheduleIterAlg": [3],
        "SourceSwap": [True],
        "TransposeLDS": [-1],
        "LdsPadA": [-1],
        "LdsPadB": [-1],
        "WorkGroupMapping": [1, 8],
        "StaggerU": [0, 4],
    }
    final: list[dict[str, Any]] = [{"ProblemSizes": [{"Exact": sizes(gemm)}]}]
    final.append({"BiasTypeArgs": [LETTERS[gemm.bias or gemm.d_type]]})
    return {
        "InitialSolutionParameters": None,
        "BenchmarkCommonParameters": [{"KernelLanguage": ["Assembly"]}],
        "ForkParameters": [{name: values} for name, values in forks.items()],
        "BenchmarkJoinParameters": None,
        "BenchmarkFinalParameters": final,
    }


def sizes(gemm: Gemm) -> list[int]:
    """[M, N, batch, K], followed by the leading dimensions of D, C, A and B if the product is not packed."""
    short = [gemm.m, gemm.n, gemm.batch, gemm.k]
    return short if gemm.packed else [*short, gemm.ldd, gemm.ldc, gemm.lda, gemm.ldb]


def instructions(gemm: Gemm, architecture: str) -> list[list[int]]:
    """Instructions with the tiles that use the device best: [M, N, K, B, block, tile M, tile N, waves M, waves N]."""
    units = ARCHITECTURES[architecture]["units"]
    scored = []
    shapes = product(_INSTRUCTIONS[architecture][gemm.a_type], ((4, 1), (2, 2), (1, 4)), range(1, 9), range(1, 9))
    for mi, waves, tile_m, tile_n in shapes:
        rows, columns = mi[0] * tile_m * waves[0], mi[1] * tile_n * waves[1]
        registers = tile_m * tile_n * mi[0] * mi[1] // 64
        if rows <= 256 and columns <= 256 and rows * columns >= 256 and registers <= 256:
            cost = _cost(gemm, rows, columns, units)
            scored.append((cost, -rows * columns, [*mi, 1, tile_m, tile_n, *waves]))
    scored.sort(key=lambda row: row[:2])
    return [row[2] for row in scored[:_MOST]]


def _cost(gemm: Gemm, rows: int, columns: int, units: int) -> float:
    """A rough estimate to rank tiles: padded work in whole waves over the device, and the bytes that it reads."""
    tiles = -(-gemm.m // rows) * -(-gemm.n // columns) * gemm.batch
    waves = -(-tiles // units)
    return waves * rows * columns * (1 + 32 * (1 / rows + 1 / columns))


def _splits(gemm: Gemm, architecture: str) -> list[int]:
    """Split K only if the tiles do not fill the device."""
    tiles = -(-gemm.m // 128) * -(-gemm.n // 128) * gemm.batch
    spare = ARCHITECTURES[architecture]["units"] // max(tiles, 1)
    return [s for s in (1, 2, 4, 8, 16) if s == 1 or (s <= 2 * spare and gemm.k >= 256 * s)]


def script(name: str, gemm: Gemm) -> str:
    """A script that runs TensileLite on ``<name>.yaml``; the variable TENSILE names the folder of its programs."""
    return (
        "#!/bin/sh\n"
        f"# {gemm}. Written by lapwing; not run on AMD hardware.\n"
        "# usage: TENSILE=/path/to/hipblaslt/tensilelite/Tensile/bin [DEVICE=0] " + shlex.quote(f"./{name}.sh") + "\n"
        "set -eu\n"
        ': "${TENSILE:?set TENSILE to the folder Tensile/bin of tensilelite}"\n'
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        f'HIP_VISIBLE_DEVICES="${{DEVICE:-0}}" "$TENSILE/Tensile" "$here/{name}.yaml" "$here/{name}"\n'
        f'echo "library logic: $here/{name}/3_LibraryLogic"\n'
    )


def write(problems: Mapping[str, Gemm], folder: str | Path, *, architecture: str = "gfx942") -> list[Path]:
    """Write ``<name>.yaml`` and ``<name>.sh`` for each product; ``left_out.txt`` lists those that TensileLite cannot tune."""
    if architecture not in ARCHITECTURES:
        raise ValueError(f"tensile: architecture is {architecture!r}\nhint: use one of {', '.join(ARCHITECTURES)}")
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    paths, left_out = [], []
    for name, gemm in problems.items():
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"tensile: {name!r} is not a valid configuration name\nhint: use letters, digits, _ and -")
        reason = unsupported(gemm, architecture)
        if reason is not None:
            left_out.append(f"{name} ({gemm}): {reason}\n")
            continue
        text = f"# {gemm}. Written by lapwing; not run on AMD hardware.\n" + yaml.write(tuning(gemm, architecture=architecture))
        for suffix, content in ((".yaml", text), (".sh", script(name, gemm))):
            path = to / (name + suffix)
            path.write_text(content)
            paths.append(path)
        paths[-1].chmod(0o755)
    if left_out:
        path = to / "left_out.txt"
        path.write_text("".join(left_out))
        paths.append(path)
    return paths
