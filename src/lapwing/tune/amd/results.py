"""Judge new kernels from the output of hipblaslt-bench: the default library's times, the new one's, and its errors.

The runs happen elsewhere (``compare.sh``); lapwing reads their output. Not run on AMD hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..gemm import Gemm
from ..validate import results
from ..validate.comparison import Comparison
from ..workdir import Target, Workdir
from .architectures import get
from .bench import Result, devices, read_results

# fields of a product, and the column of the output that has them; older versions do not print all of them
_COLUMNS = {f"{name}{x}": f"{name}{x}".replace("_", "") for name in ("ld", "stride_") for x in "abcd"}
_COLUMNS |= {"alpha": "alpha", "beta": "beta", "bias": "biasvector", "activation": "activationtype", "c_type": "ctype"}
_COLUMNS |= {"scale_a": "scalea", "scale_b": "scaleb"}
_ABOVE = 1.05  # times the peak: clocks may be a little higher than the data sheet says


@dataclass(frozen=True)
class Problem:
    """A line of an output without a usable result, and why."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass
class _Runs:
    """The results of one product in all outputs."""

    us: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)  # those that are named, each once
    solutions: list[int] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.us.append(result.us)
        self.errors += [result.error] if result.error is not None else []
        self.kernels += [result.kernel] if result.kernel and result.kernel not in self.kernels else []
        self.solutions += [result.solution] if result.solution is not None and result.solution not in self.solutions else []


@dataclass(frozen=True)
class Judged:
    """The comparison of every product to tune, their figures, and the lines that could not be used."""

    comparisons: tuple[Comparison, ...]
    metrics: results.Metrics
    problems: tuple[Problem, ...]
    solutions: dict[Gemm, int]  # of the kept products, as far as the output names them

    @property
    def kept(self) -> tuple[Comparison, ...]:
        return tuple(c for c in self.comparisons if c.kept)


def compare(
    workdir: str | Path,
    reference: Sequence[str | Path],
    tuned: Sequence[str | Path],
    verify: Sequence[str | Path] = (),
    *,
    threshold: float = 1.03,
    minimum_us: float = 0.3,
    worst_error: float = 0.03,
    unverified: bool = False,
    architecture: str | None = None,
    measured_shares: bool = False,
) -> Judged:
    """Compare the products of a workdir with both libraries, and write ``results/raw_results.csv`` and the others.

    A product is kept if another kernel runs, it is at least ``threshold`` times faster and saves ``minimum_us`` per call, its
    error is below ``worst_error``, and the gain can be believed: if products were run several times, every run of the new
    kernel is faster than every run of the old one, and no kernel is faster than the device.

    Parameters
    ----------
    workdir : path
        Contains ``configs``, which ``lapwing tune configure`` writes.
    reference, tuned, verify : paths
        Outputs of hipblaslt-bench. Results of one product in several of them are several runs, whose median counts.
    unverified : bool
        Keep also products whose error was not measured.
    architecture : str, optional
        With it, outputs of another GPU are refused, and times that the device cannot reach are not believed.
    measured_shares : bool
        The shares in the configurations come from measured times. Otherwise they are estimates, and the shares of the products
        that were run now are computed again from these runs.

    Raises
    ------
    ValueError
        If the outputs have no result for any product, or come from another GPU.
    """
    for path in (*reference, *tuned, *verify):
        found = devices(path)
        if architecture and found and get(architecture).family not in found:
            raise ValueError(
                f"amd compare: {path} was measured on {' and '.join(sorted(found))}, but {workdir} is for {architecture}\n"
                f"hint: run compare.sh on that GPU, or start again with --arch {min(found)}"
            )
    targets = Workdir(workdir).configs()
    problems: list[Problem] = []
    runs = [_runs(paths, targets, problems) for paths in (reference, tuned, verify)]
    if not any(runs[0].values()) or not any(runs[1].values()):
        empty = reference if not any(runs[0].values()) else tuned
        first = f"; the first problem is {problems[0]}" if problems else ""
        raise ValueError(
            f"amd compare: {', '.join(map(str, empty)) or 'no file'} has no result for the products of {workdir}{first}\n"
            "hint: name the outputs of hipblaslt-bench --yaml bench.yaml, which compare.sh runs"
        )
    targets = targets if measured_shares else _shares(targets, runs[0])
    comparisons, more, solutions = [], {}, {}
    for target in targets:
        old, new, check = (each.get(target.name, _Runs()) for each in runs)
        compared = _judged(target, old, new, check, threshold, minimum_us, worst_error, unverified, architecture)
        comparisons.append(compared)
        if compared.kept and len(new.solutions) == 1:
            solutions[target.gemm] = new.solutions[0]
        more[target.name] = {
            "kernel_reference": " ".join(old.kernels),
            "solution_index_reference": " ".join(map(str, old.solutions)),
            "solution_index_tuned": " ".join(map(str, new.solutions)),
            "runs_reference": len(old.us),
            "runs_tuned": len(new.us),
            "verified": bool(_errors(new, check)),
        }
    metrics = results.write(workdir, comparisons, more)
    return Judged(tuple(comparisons), metrics, tuple(problems), solutions)


def match(results: Iterable[Result], gemms: Iterable[Gemm]) -> tuple[list[tuple[Result, Gemm]], list[tuple[Result, str]]]:
    """Find the product of each result: the equal one, or the only one that differs just in columns the output does not have.

    Returns
    -------
    matched : list of (result, product)
    unmatched : list of (result, reason)
    """
    alike: dict[tuple[object, ...], list[Gemm]] = {}
    for gemm in gemms:
        alike.setdefault(_loose(gemm), []).append(gemm)
    matched, unmatched = [], []
    for result in results:
        near = alike.get(_loose(result.gemm), [])
        equal = [g for g in near if not _differ(g, result.gemm)]
        possible = equal or [g for g in near if not any(_COLUMNS[name] in result.columns for name in _differ(g, result.gemm))]
        if len(possible) == 1:
            matched.append((result, possible[0]))
        elif possible:
            names = sorted({name for g in possible for name in _differ(g, possible[0])})
            unmatched.append((result, f"{result.gemm} may be {len(possible)} products: the output has no {', '.join(names)}"))
        else:
            unmatched.append((result, f"{result.gemm} is not a product of this workdir"))
    return matched, unmatched


def _differ(one: Gemm, other: Gemm) -> list[str]:
    return [name for name in _COLUMNS if getattr(one, name) != getattr(other, name)]


def _loose(g: Gemm) -> tuple[object, ...]:
    return g.layout, g.m, g.n, g.k, g.batch, g.a_type, g.b_type, g.d_type, g.compute


def _runs(paths: Sequence[str | Path], targets: Sequence[Target], problems: list[Problem]) -> dict[str, _Runs]:
    names = {target.gemm: target.name for target in targets}
    runs: dict[str, _Runs] = {}
    for path in paths:
        measured, bad = read_results(path)
        problems += [Problem(str(path), line, reason) for line, reason in bad]
        matched, unmatched = match(measured, names)
        problems += [Problem(str(path), result.line, reason) for result, reason in unmatched]
        for result, gemm in matched:
            runs.setdefault(names[gemm], _Runs()).add(result)
    return runs


def _shares(targets: Sequence[Target], runs: dict[str, _Runs]) -> tuple[Target, ...]:
    """Shares from the runs. Together these products keep the estimated share, since the others were not run."""
    ran = {t.name: t.count * median(runs[t.name].us) for t in targets if t.name in runs}
    total, covered = sum(ran.values()), sum(t.percent for t in targets if t.name in runs)
    return tuple(replace(t, percent=covered * ran[t.name] / total) if t.name in ran else t for t in targets)


def _errors(new: _Runs, check: _Runs) -> list[float]:
    return new.errors + check.errors


def _judged(
    target: Target, old: _Runs, new: _Runs, check: _Runs, threshold: float, minimum_us: float, worst_error: float,
    unverified: bool, architecture: str | None,
) -> Comparison:  # fmt: skip
    before, after = (median(runs.us) if runs.us else math.nan for runs in (old, new))
    errors = _errors(new, check)
    config: dict[str, Any] = {}
    if new.kernels:
        config["kernel"] = " ".join(new.kernels)
    if len(new.solutions) == 1:
        config["solution_index"] = new.solutions[0]
    error = max(errors) if errors else math.nan
    several = len(old.us) > 1 and len(new.us) > 1
    low = min(old.us) / max(new.us) if several else math.nan
    high = max(old.us) / min(new.us) if several else math.nan
    ratio = before / after
    known = Comparison(
        target.name, target.gemm, target.count, target.percent, before, None, after, low, high, ratio, config, "hipblaslt",
        # relative to the limit, as in every table
        error / worst_error, False, "", ("norm",) if errors and error < worst_error else (),
    )  # fmt: skip
    if not old.us or not new.us:
        which = " and ".join(name for name, runs in (("default", old), ("new", new)) if not runs.us)
        return replace(known, ratio=1.0, compared=False, reason=f"there is no result of the {which} library")
    reason, doubtful = _why_not(target, old, new, check, error, threshold, minimum_us, worst_error, unverified, architecture)
    return replace(known, kept=not reason, reason=reason or "faster", doubtful=doubtful)


def _why_not(
    target: Target, old: _Runs, new: _Runs, check: _Runs, error: float, threshold: float, minimum_us: float,
    worst_error: float, unverified: bool, architecture: str | None,
) -> tuple[str, bool]:  # fmt: skip
    """Why a product is not kept ("" if it is), and whether its gain cannot be believed."""
    before, after = median(old.us), median(new.us)
    if math.isnan(error) and not unverified:
        return "it was not validated: run verify.yaml with the new library", False
    if math.isinf(error):
        return "its answer is wrong", False
    if error >= worst_error:
        return f"its error is {error:.3g}; {worst_error:g} is allowed", False
    if check.kernels and new.kernels and set(check.kernels) != set(new.kernels):
        return "another kernel was validated than was timed", False
    same = old.kernels == new.kernels if old.kernels and new.kernels else bool(new.solutions) and old.solutions == new.solutions
    if same:
        return "the same kernel runs in both libraries", False
    if before / after < threshold:
        return f"{before / after:.3f} times as fast; {threshold:g} is needed", False
    if before - after < minimum_us:
        return f"it saves {before - after:.2f} us per call; {minimum_us:g} are needed", False
    if len(new.kernels) > 1:
        return f"{len(new.kernels)} different kernels ran for it", True
    if min(old.us) <= max(new.us):
        return "the runs overlap: a run of the default was as fast", True
    peak = get(architecture).peak.get(_arithmetic(target.gemm)) if architecture else None
    if peak and target.gemm.flops / (after * 1e-6) > _ABOVE * peak:
        return f"impossible: {target.gemm.flops / after / 1e6:.0f} TFLOP/s is more than {architecture} can do", True
    return "", False


def _arithmetic(gemm: Gemm) -> str:
    return gemm.compute if gemm.a_type == "f32" and gemm.compute in ("tf32", "bf16", "f16") else gemm.a_type
