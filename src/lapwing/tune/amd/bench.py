"""hipblaslt-bench: its YAML, its command lines, and its results. Nothing here was run on AMD hardware."""

from __future__ import annotations

import csv
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..gemm import Call, Gemm
from ..readers.values import fold, product
from .names import R_TYPES, SMALL, compute_type

_SCALES = {"none": 0, "tensor": 1, "row": 2, "block": 3}
_SEARCHED = 1000  # solutions to try if "all" cannot be used
_INDEX = re.compile(r"\[\d+\]:\s*")  # "[0]:transA,transB,...": hipblaslt-bench numbers its results
_DETAIL = re.compile(r"--(Solution index|Solution name|kernel name):\s*(.*)")
_DEVICE = re.compile(r"^Device ID \d+ *:.*\b(gfx[0-9a-f]{3,5})\b", re.M)  # one line for each GPU that it sees
_FAILED = ("No Solution Found", "error", "Error", "not supported", "only allows", "do not support")


def unsupported(gemm: Gemm) -> str | None:
    """Why hipblaslt-bench cannot run this product, in words; None when it can."""
    types = {gemm.a_type, gemm.b_type, gemm.c_type, gemm.d_type}
    if bad := sorted(types - set(R_TYPES)):
        return f"hipblaslt-bench has no type {', '.join(bad)}"
    return None


def in_blocks(gemm: Gemm) -> bool:
    """Whether operands have block scales (MX). hipblaslt-bench cannot try all solutions of such a product."""
    return "block" in (gemm.scale_a, gemm.scale_b) or gemm.a_type in SMALL or gemm.b_type in SMALL


def problem(gemm: Gemm, *, iters: int = 100, cold_iters: int = 50, count: int = 1) -> dict[str, Any]:
    """One entry of the YAML file for ``hipblaslt-bench --yaml``, with the fields of hipBLASLt's own log."""
    g = gemm
    return {
        "function": "matmul",
        "M": g.m,
        "N": g.n,
        "K": g.k,
        **{f"ld{x}": getattr(g, f"ld{x}") for x in "abcd"},
        **{f"stride_{x}": getattr(g, f"stride_{x}") for x in "abcd"},
        "alpha": float(g.alpha),
        "beta": float(g.beta),
        "transA": g.trans_a,
        "transB": g.trans_b,
        "batch_count": g.batch,
        "scaleA": _SCALES[g.scale_a],
        "scaleB": _SCALES[g.scale_b],
        "scaleAlpha_vector": False,
        "gradient": False,
        "use_e": False,
        "bias_vector": bool(g.bias),
        "bias_source": "d",
        **{f"{x}_type": R_TYPES[getattr(g, f"{x}_type")] for x in "abcd"},
        "scale_type": "f64_r" if g.compute == "f64" else "f32_r",
        "bias_type": R_TYPES[g.bias] if g.bias else "f32_r",
        "compute_type": f"c_{compute_type(g)}",
        "activation_type": g.activation,
        "flush": False,
        "rotating": 512,
        "cold_iters": cold_iters,
        "iters": iters,
        "call_count": count,
    }


def command(
    gemm: Gemm, *, method: str = "heuristic", solution: int | None = None, iters: int = 100, cold_iters: int = 50
) -> str:
    """A command line; ``method`` "heuristic" is the default, "all" tries every solution, "index" one of them."""
    if method not in ("heuristic", "all", "index"):
        raise ValueError(f"hipblaslt-bench: method is {method!r}\nhint: use heuristic, all or index")
    if (method == "index") != (solution is not None):
        raise ValueError(
            "hipblaslt-bench: a solution needs method index, and method index needs a solution\nhint: give both or neither"
        )
    p = problem(gemm)
    words: list[Any] = ["hipblaslt-bench", "--api_method", "c", "-m", p["M"], "-n", p["N"], "-k", p["K"]]

    def add(*names: str) -> None:
        for name in names:
            words.extend((f"--{name}", p[name]))

    add("lda", "ldb", "ldc", "ldd", *(f"stride_{x}" for x in "abcd" if gemm.batch > 1))
    add("alpha", "beta", "transA", "transB", "batch_count", "scaleA", "scaleB")
    if gemm.bias:
        words += ["--bias_vector", "--bias_source", "d", "--bias_type", p["bias_type"]]
    add("a_type", "b_type", "c_type", "d_type", "scale_type")
    # with block scales, "all" is refused, but the heuristic may return many solutions
    asked = "heuristic" if method == "all" and in_blocks(gemm) else method
    words += ["--compute_type", compute_type(gemm), "--algo_method", asked]
    words += ["--solution_index", solution] if solution is not None else []
    words += ["--requested_solution", _SEARCHED if asked != method else -1] if method == "all" else []
    words += ["--initialization", _initial(gemm)] if in_blocks(gemm) else []
    words += ["--activation_type", gemm.activation, "-i", iters, "-j", cold_iters, "--rotating", 512]
    words += ["--flush", "--use_gpu_timer", "--print_kernel_info", "-v"]
    return shlex.join(map(str, words))


def _initial(gemm: Gemm) -> str:
    return "rand_int" if gemm.a_type == "i8" else "trig_float"


def yaml_lines(calls: Iterable[Call], *, verify: bool = False) -> str:
    """The YAML file for ``hipblaslt-bench --yaml``: a line for each product, with its count.

    With ``verify`` each product runs once and is compared with a product on the CPU, instead of being timed.
    """
    lines = []
    for call in calls:
        fields: dict[str, Any] = problem(call.gemm, count=call.count)
        fields |= {"initialization": _initial(call.gemm), "print_kernel_info": True}
        if verify:
            fields |= {"norm_check": 1, "norm_check_assert": 0, "allclose_check": 1, "iters": 1, "cold_iters": 0}
            del fields["rotating"], fields["flush"]
        else:
            fields |= {"use_gpu_timer": True, "flush": True}
        # spaces inside the braces and lower case, as in hipBLASLt's logs
        words = ", ".join(f"{k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in fields.items())
        lines.append(f"- {{ {words} }}\n")
    return "".join(lines)


def compare_script(family: str) -> str:
    """A script that times the default library and the new one, and validates the new one."""
    return f"""\
#!/bin/sh
# Times the default kernels and the new ones, and validates the new ones. Written by lapwing; not run on AMD hardware.
# usage: TENSILE=/path/to/hipblaslt/tensilelite/Tensile/bin [BENCH=hipblaslt-bench] [DEVICE=0] [RUNS=3] ./compare.sh
#   or:  OVERRIDE=/path/to/override.txt [BENCH=hipblaslt-bench] [DEVICE=0] [RUNS=3] ./compare.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bench="${{BENCH:-hipblaslt-bench}}"
run() {{ "$bench" --yaml "$here/$1.yaml" --device "${{DEVICE:-0}}" >>"$here/$2.out" 2>&1; }}
new() {{
  if [ -n "${{OVERRIDE:-}}" ]; then
    HIPBLASLT_TUNING_OVERRIDE_FILE="$OVERRIDE" run "$1" "$2"
  else
    HIPBLASLT_TENSILE_LIBPATH="$library" run "$1" "$2"
  fi
}}
if [ -z "${{OVERRIDE:-}}" ]; then
  : "${{TENSILE:?set TENSILE to the folder Tensile/bin of tensilelite, or OVERRIDE to an override file}}"
  logic="$here/../libs"
  [ -d "$logic" ] || {{ echo "$logic is missing: lapwing tune amd gather $(dirname "$here")" >&2; exit 2; }}
  "$TENSILE/TensileCreateLibrary" --code-object-version 5 --library-format msgpack --architecture {family} \\
    "$logic" "$here/../tensile" HIP
  library="$here/../tensile/library"
  [ ! -d "$library/{family}" ] || library="$library/{family}"
fi
rm -f "$here/reference.out" "$here/tuned.out" "$here/verify.out"
i=0
while [ "$i" -lt "${{RUNS:-3}}" ]; do # in turns, so that a change of the clock meets both
  run bench reference
  new bench tuned
  i=$((i + 1))
done
new verify verify
echo "results: $here/reference.out, tuned.out, verify.out"
"""


def write(calls: Sequence[Call | Gemm], folder: str | Path, *, family: str = "gfx942") -> list[Path]:
    """Write ``bench.yaml``, ``verify.yaml``, ``compare.sh`` and ``bench.sh``, which tries every solution of each product.

    Products that hipblaslt-bench does not support are comments in ``bench.sh``.
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    commands = ["#!/bin/sh", "# Written by lapwing; not run on AMD hardware.", "set -eu"]
    counted = [call if isinstance(call, Call) else Call(call) for call in calls]
    runnable = [call for call in counted if unsupported(call.gemm) is None]
    commands += [f"# left out: {call.gemm}: {unsupported(call.gemm)}" for call in counted if call not in runnable]
    commands += [command(call.gemm, method="all") for call in runnable]
    (to / "bench.yaml").write_text(yaml_lines(runnable))
    (to / "verify.yaml").write_text(yaml_lines(runnable, verify=True))
    (to / "compare.sh").write_text(compare_script(family))
    (to / "bench.sh").write_text("\n".join(commands) + "\n")
    for name in ("compare.sh", "bench.sh"):
        (to / name).chmod(0o755)
    return [to / name for name in ("bench.yaml", "verify.yaml", "compare.sh", "bench.sh")]


@dataclass(frozen=True)
class Result:
    """One result of hipblaslt-bench: a product, its time, and the solution that ran."""

    gemm: Gemm
    us: float
    solution: int | None
    error: float | None  # norm error of one matrix, if it was requested; infinite if the answer is wrong
    line: int
    kernel: str = ""
    file: str = ""
    columns: frozenset[str] = frozenset()  # of the output, with folded names


def read_results(path: str | Path) -> tuple[tuple[Result, ...], tuple[tuple[int, str], ...]]:
    """Read the output of a run from a file.

    A header and the line after it make a result, and lines with the solution may follow. All other lines are skipped, since the
    output is mixed with logs, except messages about failures.

    Returns
    -------
    results : tuple of Result
    problems : tuple of (line, reason)
        Results that could not be understood, and failures that hipblaslt-bench reported.
    """
    header: list[str] | None = None
    results: list[Result] = []
    problems: list[tuple[int, str]] = []
    fresh = False  # the line before had a result, or its solution
    repeated = False  # the best result, which is printed once more
    lines = Path(path).read_text(errors="replace").splitlines()
    for number, raw in enumerate(lines, 1):
        line = _INDEX.sub("", raw.strip(), count=1) if raw.lstrip().startswith("[") else raw.strip()
        line = line.removeprefix("function,").removeprefix("matmul,")
        if line.startswith("transA,"):
            header, fresh = [name.strip() for name in line.split(",")], False
            continue
        if fresh and (detail := _DETAIL.match(line)):
            results[-1] = _detailed(results[-1], detail[1], detail[2].strip())
            continue
        fresh = False
        if line.startswith("Winner"):
            repeated = True
        elif header is not None and line[:2] in ("N,", "T,", "C,"):
            if repeated:
                repeated = False
                continue
            try:
                # complex numbers are written as (1,0)
                cells = next(csv.reader([re.sub(r"\(([^()]*)\)", r'"\1"', line)]))
                if len(cells) < len(header):
                    raise ValueError(f"the line is cut off: it has {len(cells)} of {len(header)} values")
                results.append(_result(dict(zip(header, cells, strict=False)), number, str(path)))
                fresh = True
            except (KeyError, ValueError) as error:
                reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
                problems.append((number, reason))
        elif any(word in line for word in _FAILED) and "norm_error" not in line:
            problems.append((number, f"hipblaslt-bench says: {line[:120]}"))
    return tuple(results), tuple(problems)


def devices(path: str | Path) -> set[str]:
    """The architectures of the GPUs that an output names; none in the output of a version that does not print them."""
    return set(_DEVICE.findall(Path(path).read_text(errors="replace")))


def _result(row: dict[str, str], number: int, file: str) -> Result:
    values = {name: text.strip() for name, text in row.items()}
    gemm, _, _ = product({fold(name): text for name, text in values.items()})
    us = float(values["us"])
    if not math.isfinite(us) or us <= 0:
        raise ValueError(f"us is {values['us']}, so the run failed")
    # hipblaslt-bench writes "soulution_index", which may be corrected one day
    index = values.get("solution_index") or values.get("soulution_index")
    return Result(
        gemm,
        us,
        int(index) if index else None,
        _error(values, gemm.batch) if values.get("norm_error") else None,
        number,
        file=file,
        columns=frozenset(fold(name) for name in values),
    )


def _error(values: dict[str, str], batch: int) -> float:
    """The norm error of one matrix. "failed" in another column, and NaN, mean that the answer is wrong."""
    if "failed" in (values.get("atol"), values.get("rtol")):
        return math.inf
    error = float(values["norm_error"])
    return error / batch if math.isfinite(error) and error >= 0 else math.inf  # errors of a batch are added up


def _detailed(result: Result, name: str, text: str) -> Result:
    if name == "kernel name":
        return replace(result, kernel=text)
    if name == "Solution index" and result.solution is None and re.fullmatch(r"-?\d+", text):
        return replace(result, solution=int(text))
    return result


def best(results: Iterable[Result], *, worst_error: float = 0.03) -> dict[Gemm, Result]:
    """The fastest solution of each product whose error is small enough; the smaller number if two are equally fast."""
    chosen: dict[Gemm, Result] = {}
    for result in results:
        if result.solution is None or (result.error is not None and not result.error < worst_error):
            continue
        now = chosen.get(result.gemm)
        if now is None or (result.us, result.solution) < (now.us, now.solution or 0):
            chosen[result.gemm] = result
    return chosen
