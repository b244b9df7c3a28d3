"""hipblaslt-bench: its YAML, its command lines, and its results. Nothing here was run on AMD hardware."""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..gemm import Gemm
from ..readers.values import fold, product
from .names import R_TYPES, compute_type

_SCALES = {"none": 0, "tensor": 1, "row": 2}


def unsupported(gemm: Gemm) -> str | None:
    types = {gemm.a_type, gemm.b_type, gemm.c_type, gemm.d_type}
    if bad := sorted(types - set(R_TYPES)):
        return f"hipblaslt-bench has no type {', '.join(bad)}"
    if "block" in (gemm.scale_a, gemm.scale_b):
        return "block scales are not written"
    return None


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
        raise ValueError("hipblaslt-bench: a solution needs method index, and method index needs a solution")
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
    words += ["--compute_type", compute_type(gemm), "--algo_method", method]
    words += ["--solution_index", solution] if solution is not None else []
    words += ["--requested_solution", -1] if method == "all" else []
    words += ["--activation_type", gemm.activation, "-i", iters, "-j", cold_iters, "--rotating", 512]
    words += ["--flush", "--use_gpu_timer", "--print_kernel_info", "-v"]
    return shlex.join(map(str, words))


def write(gemms: Sequence[Gemm], folder: str | Path) -> list[Path]:
    """Write ``bench.yaml`` and ``bench.sh``. Products that hipblaslt-bench does not support are comments in the script."""
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    lines, commands = [], ["#!/bin/sh", "# Written by lapwing; not run on AMD hardware.", "set -eu"]
    for gemm in gemms:
        reason = unsupported(gemm)
        if reason is not None:
            commands.append(f"# left out: {gemm}: {reason}")
            continue
        # spaces inside the braces and lower case, as in hipBLASLt's logs
        fields = {k: str(v).lower() if isinstance(v, bool) else v for k, v in problem(gemm).items()}
        words = ", ".join(f"{k}: {v}" for k, v in fields.items())
        lines.append(f"- {{ {words} }}\n")
        commands.append(command(gemm, method="all"))
    (to / "bench.yaml").write_text("".join(lines))
    (to / "bench.sh").write_text("\n".join(commands) + "\n")
    (to / "bench.sh").chmod(0o755)
    return [to / "bench.yaml", to / "bench.sh"]


@dataclass(frozen=True)
class Result:
    """One result of hipblaslt-bench: a product, its time, and the number of the solution."""

    gemm: Gemm
    us: float
    solution: int | None
    error: float | None  # norm error, if it was requested
    line: int


def read_results(path: str | Path) -> tuple[tuple[Result, ...], tuple[tuple[int, str], ...]]:
    """Read the output of a run from a file.

    A header and the line after it make a result. All other lines are skipped, since the output is mixed with logs.

    Returns
    -------
    results : tuple of Result
    problems : tuple of (line, reason)
        Results that could not be understood.
    """
    header: list[str] | None = None
    results: list[Result] = []
    problems: list[tuple[int, str]] = []
    for number, raw in enumerate(Path(path).read_text(errors="replace").splitlines(), 1):
        line = raw.strip()
        if line.startswith("[") and "]:" in line[:8]:  # "[0]:transA,transB,...": some versions number their output
            line = line.partition("]:")[2]
        if line.startswith("transA,"):
            header = [name.strip() for name in line.split(",")]
            continue
        if header is None or line[:2] not in ("N,", "T,", "C,"):
            continue
        try:
            results.append(_result(dict(zip(header, next(csv.reader([line])), strict=False)), number))
        except (KeyError, ValueError) as error:
            problems.append((number, f"{type(error).__name__}: {error}"))
    return tuple(results), tuple(problems)


def _result(row: dict[str, str], number: int) -> Result:
    values = {name: text.strip() for name, text in row.items()}
    gemm, _, _ = product({fold(name): text for name, text in values.items()})
    us = float(values["us"])
    if not math.isfinite(us) or us <= 0:
        raise ValueError(f"us is {values['us']}")
    # hipblaslt-bench writes "soulution_index", which may be corrected one day
    index = values.get("solution_index") or values.get("soulution_index")
    error = values.get("norm_error")
    return Result(gemm, us, int(index) if index else None, float(error) if error else None, number)


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
