"""TensileLite: a tuning file and a script for each product, for AMD's kernel tuner. Not run on AMD hardware.

A file has the space of a genetic search (TensileLite's backend Ductile, as in AMD's own workflow), or a small grid of which
TensileLite tries every point (any version of it).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ..gemm import Gemm
from . import yaml
from .architectures import ASSUMED, Architecture, get
from .names import LETTERS, SMALL, letters

STRATEGIES = ("genetic", "exhaustive")
_GRID = 24  # matrix instructions in a grid; their number multiplies with all other parameters
_GENETIC = 256  # matrix instructions for the genetic search, which begins with the better ones
_VALIDATED = 128  # elements that TensileLite compares with its own reference


def unsupported(gemm: Gemm, architecture: str = ASSUMED) -> str | None:
    """Why TensileLite cannot tune this product, in words; None when it can."""
    instructions = get(architecture).instructions
    if gemm.a_type in SMALL or gemm.b_type in SMALL or "block" in (gemm.scale_a, gemm.scale_b):
        return "TensileLite has no kernels with block scales; bench.sh measures those that hipBLASLt has"
    if gemm.a_type not in instructions:
        others = [name for name in ("gfx942", "gfx950") if gemm.a_type in get(name).instructions]
        hint = f"; --arch {others[0]} has one" if others else ""
        return f"{architecture} has no matrix instruction for {gemm.a_type}{hint}"
    if "C" in gemm.layout or 0 in (gemm.m, gemm.n, gemm.k):
        return "it is empty or has a conjugated operand"
    if {gemm.b_type, gemm.c_type, gemm.d_type} - set(LETTERS) or gemm.c_type != gemm.d_type:
        return f"the types of C and D, {gemm.c_type} and {gemm.d_type}, are not supported"
    if gemm.a_type != gemm.b_type and not {gemm.a_type, gemm.b_type} <= {"f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"}:
        return f"A of {gemm.a_type} and B of {gemm.b_type} cannot be combined"
    if gemm.scale_a != gemm.scale_b:
        return f"scales {gemm.scale_a} and {gemm.scale_b} are not supported"
    return None


def tuning(gemm: Gemm, *, architecture: str = ASSUMED, device: int = 0, strategy: str = "genetic") -> dict[str, Any]:
    """The tuning file as plain lists and dicts, in TensileLite's order."""
    reason = unsupported(gemm, architecture)
    if reason is not None:
        raise ValueError(f"tensile: {gemm}: {reason}\nhint: leave it out of the products to tune")
    if strategy not in STRATEGIES:
        raise ValueError(f"tensile: strategy is {strategy!r}\nhint: use {' or '.join(STRATEGIES)}")
    target = get(architecture)
    genetic = strategy == "genetic"
    tiles = _ranked(gemm, target)[: _GENETIC if genetic else _GRID]
    file: dict[str, Any] = {
        "GlobalParameters": {
            "MinimumRequiredVersion": "4.33.0",
            "KernelTime": True,
            "NumWarmups": 20,
            "EnqueuesPerSync": 20,
            "NumBenchmarks": 1,
            "SleepPercent": 50,
            # the genetic search validates its last generation, not each of its thousands of candidates
            "NumElementsToValidate": 0 if genetic else _VALIDATED,
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
        "BenchmarkProblems": [[problem(gemm), _benchmark(gemm, target, [tile for _, tile in tiles], genetic)]],
        "LibraryLogic": {
            "ScheduleName": target.schedule,
            "ArchitectureName": target.family,
            "DeviceNames": list(target.devices),
            "LibraryType": "Equality",
        },
    }
    if gemm.a_type == "i8":
        file["GlobalParameters"] |= dict.fromkeys(("DataInitTypeA", "DataInitTypeB", "DataInitTypeC"), 3)  # random integers
    if genetic:
        config: dict[str, Any] = {"soo": False, "n_elements_to_validate": _VALIDATED}
        if len(tiles) > 1:  # the first candidates are drawn with weights exp(-cost / 4)
            config["weights"] = [{"group_0": [round(cost / tiles[0][0], 4) for cost, _ in tiles]}]
        file["Backend"] = {"Name": "Ductile", "Config": config}
    return file


def problem(gemm: Gemm) -> dict[str, Any]:
    """The problem type: everything about a product except its sizes.

    Epilogues are on, as in hipBLASLt's own library, except for f64, where TensileLite has none.
    """
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
    }
    if gemm.a_type != "f64":
        fields |= {"UseBias": 1, "Activation": True, "ActivationType": "hipblaslt_all", "UseScaleAlphaVec": 1}
    if gemm.compute == "tf32":
        fields["F32XdlMathOp"] = "X"
    if gemm.scale_a != "none":
        fields["UseScaleAB"] = {"tensor": "Scalar", "row": "Vector"}[gemm.scale_a]
    return fields


def _benchmark(gemm: Gemm, target: Architecture, tiles: list[list[int]], genetic: bool) -> dict[str, Any]:
    deep = max(mi[2] for mi in target.instructions[gemm.a_type])
    # a search draws one of a group, so its instructions are one group; a grid takes each of a list
    instructions: dict[str, Any] = {"MatrixInstruction": tiles}
    if genetic:
        instructions = {"Groups": [[{"MatrixInstruction": tile} for tile in tiles]]}
    forks: dict[str, Any] = {
        **instructions,
        "DepthU": sorted({max(32, deep), max(64, 2 * deep), max(128, 2 * deep)}),
        "GlobalSplitU": _splits(gemm, target),
        "GlobalSplitUAlgorithm": ["MultipleBuffer"],
        "PrefetchGlobalRead": [1, 2] if genetic else [2],
        "PrefetchLocalRead": [0, 1, 3] if genetic else [1],
        "ScheduleIterAlg": [3],
        "SourceSwap": [True, False] if genetic else [True],
        "TransposeLDS": [-1],
        "LdsPadA": [-1],
        "LdsPadB": [-1],
        "WorkGroupMapping": [1, 2, 4, 6, 8, 16] if genetic else [1, 8],
        "StaggerU": [0, 4, 8, 16, 32] if genetic else [0, 4],
    }
    if genetic:
        forks |= {
            "WorkGroupMappingXCC": sorted({1, target.dies}),
            "1LDSBuffer": [0, 1],
            "NonTemporalA": [0, 4],
            "NonTemporalB": [0, 4],
            "StreamK": [0, 3],
        }
    final: list[dict[str, Any]] = [{"ProblemSizes": [{"Exact": sizes(gemm)}]}]
    if gemm.a_type != "f64":
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


def _ranked(gemm: Gemm, target: Architecture) -> list[tuple[float, list[int]]]:
    """Costs and tiles [M, N, K, B, block, tile M, tile N, waves M, waves N], those that use the device best first."""
    scored = []
    shapes = product(target.instructions[gemm.a_type], ((4, 1), (2, 2), (1, 4)), range(1, 9), range(1, 9))
    for mi, waves, tile_m, tile_n in shapes:
        rows, columns = mi[0] * tile_m * waves[0], mi[1] * tile_n * waves[1]
        registers = tile_m * tile_n * mi[0] * mi[1] // 64
        if rows <= 256 and columns <= 256 and rows * columns >= 256 and registers <= 256:
            cost = _cost(gemm, rows, columns, target.units)
            scored.append((cost, -rows * columns, [*mi, 1, tile_m, tile_n, *waves]))
    scored.sort(key=lambda row: row[:2])
    return [(cost, tile) for cost, _, tile in scored]


def _cost(gemm: Gemm, rows: int, columns: int, units: int) -> float:
    """A rough estimate to rank tiles: padded work in whole waves over the device, and the bytes that it reads."""
    tiles = -(-gemm.m // rows) * -(-gemm.n // columns) * gemm.batch
    waves = -(-tiles // units)
    return waves * rows * columns * (1 + 32 * (1 / rows + 1 / columns))


def _splits(gemm: Gemm, target: Architecture) -> list[int]:
    """Split K only if the tiles do not fill the device."""
    tiles = -(-gemm.m // 128) * -(-gemm.n // 128) * gemm.batch
    spare = target.units // max(tiles, 1)
    return [s for s in (1, 2, 4, 8, 16) if s == 1 or (s <= 2 * spare and gemm.k >= 256 * s)]


def script(name: str, gemm: Gemm, strategy: str = "genetic") -> str:
    """A script that runs TensileLite on ``<name>.yaml``; the variable TENSILE names the folder of its programs."""
    needs_ductile = (
        'if [ ! -d "$TENSILE/../ductile" ]; then\n'
        '  echo "this TensileLite has no genetic search (Ductile): update it, or write grids with" >&2\n'
        '  echo "lapwing tune run W --backend hipblaslt --strategy exhaustive" >&2\n'
        "  exit 2\n"
        "fi\n"
    )
    return (
        "#!/bin/sh\n"
        f"# {gemm}. Written by lapwing; not run on AMD hardware.\n"
        "# usage: TENSILE=/path/to/hipblaslt/tensilelite/Tensile/bin [DEVICE=0] " + shlex.quote(f"./{name}.sh") + "\n"
        "set -eu\n"
        ': "${TENSILE:?set TENSILE to the folder Tensile/bin of tensilelite}"\n'
        + (needs_ductile if strategy == "genetic" else "")
        + 'here=$(cd "$(dirname "$0")" && pwd)\n'
        f'HIP_VISIBLE_DEVICES="${{DEVICE:-0}}" "$TENSILE/Tensile" "$here/{name}.yaml" "$here/{name}"\n'
        f'echo "library logic: $here/{name}/3_LibraryLogic"\n'
    )


def script_of_all(names: list[str]) -> str:
    """A script that runs the scripts of all products, one after another on each device. A failure does not stop the others."""
    return (
        "#!/bin/sh\n"
        "# Searches kernels for all products. Written by lapwing; not run on AMD hardware.\n"
        "# usage: TENSILE=/path/to/hipblaslt/tensilelite/Tensile/bin [DEVICES=0,1,2,3] ./tune.sh\n"
        "set -eu\n"
        ': "${TENSILE:?set TENSILE to the folder Tensile/bin of tensilelite}"\n'
        "export TENSILE\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        "devices=$(echo \"${DEVICES:-0}\" | tr ',' ' ')\n"
        "number=$(echo $devices | wc -w)\n"
        'rm -f "$here/failed.txt"\n'
        "place=0\n"
        "for device in $devices; do\n"
        "  (\n"
        "    i=0\n"
        f"    for name in {' '.join(names)}; do\n"
        '      if [ $((i % number)) -eq "$place" ]; then\n'
        '        DEVICE="$device" "$here/$name.sh" >"$here/$name.log" 2>&1 || echo "$name" >>"$here/failed.txt"\n'
        '        echo "device $device: $name ended, see $here/$name.log"\n'
        "      fi\n"
        "      i=$((i + 1))\n"
        "    done\n"
        "  ) &\n"
        "  place=$((place + 1))\n"
        "done\n"
        "wait\n"
        'if [ -e "$here/failed.txt" ]; then\n'
        '  echo "these searches failed; their logs say why:" $(cat "$here/failed.txt") >&2\n'
        "  exit 1\n"
        "fi\n"
    )


def write(
    problems: Mapping[str, Gemm], folder: str | Path, *, architecture: str = ASSUMED, strategy: str = "genetic"
) -> list[Path]:
    """Write ``<name>.yaml`` and ``<name>.sh`` for each product, and ``tune.sh`` for all.

    ``left_out.txt`` lists the products that TensileLite cannot tune, each with the reason.
    """
    get(architecture)
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    paths, left_out, names = [], [], []
    for name, gemm in problems.items():
        if not name.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"tensile: {name!r} is not a valid configuration name\nhint: use letters, digits, _ and -")
        reason = unsupported(gemm, architecture)
        if reason is not None:
            left_out.append(f"{name} ({gemm}): {reason}\n")
            continue
        names.append(name)
        file = tuning(gemm, architecture=architecture, strategy=strategy)
        text = f"# {gemm}. Written by lapwing; not run on AMD hardware.\n" + yaml.write(file)
        for suffix, content in ((".yaml", text), (".sh", script(name, gemm, strategy))):
            path = to / (name + suffix)
            path.write_text(content)
            paths.append(path)
        paths[-1].chmod(0o755)
    if names:
        paths.append(to / "tune.sh")
        paths[-1].write_text(script_of_all(names))
        paths[-1].chmod(0o755)
    (to / "left_out.txt").unlink(missing_ok=True)  # of an earlier call, for another architecture
    if left_out:
        paths.append(to / "left_out.txt")
        paths[-1].write_text("".join(left_out))
    return paths
