"""Measure each product once as it is, see what share of the time it has, and name those that are worth tuning."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from .backends import FROZEN, GPU, choose, get
from .backends.base import Backend, Refused
from .coverage import Coverage, Unmeasured, write_coverage
from .gemm import Call, Gemm
from .readers import Log
from .readers.log import write_text
from .workdir import Problem, Workdir, check_writable, lock_device

__all__ = ["configure"]

_SAMPLES = 7
_QUICK = 0.05  # seconds of a call, below which it is measured more than once
# Of a large AMD GPU, where nothing can be measured: only the shares that follow from them are used.
_OPERATIONS, _BYTES = 1e15, 4e12  # a second
_OURS = re.compile(r"[A-Z0-9]{3,12}_[NTC]{2}_\d+")  # a name that we give
_log = logging.getLogger("lapwing")


@dataclass(frozen=True)
class _Measured:
    call: Call
    seconds: float | None
    reason: str = ""


def configure(
    log: Log,
    workdir: str | os.PathLike[str],
    *,
    backend: str | Backend = "auto",
    keep_thr: float = 0.1,
    device: int = 0,
    budget: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Problem, ...]:
    """Choose the products that matter, and write one configuration for each.

    Parameters
    ----------
    log
        What ``readers.read`` gave.
    workdir
        Gets ``problems.csv`` (every product, its share, and why it was dropped), ``configs/<name>.json`` and
        ``coverage.json`` (which products could not be measured: shares are of the time of the others). A product that was
        configured there before keeps its name.
    backend
        A name, several by commas (the first that can do the product measures it), or a Backend. "hipblaslt" measures nothing:
        the shares are then estimates, from the operations and the bytes of each product.
    keep_thr
        Products below this percentage of the total time are dropped.
    budget
        Seconds; products that could not be measured in time are dropped, and the heaviest are measured first.
    progress
        Called with a line of text for each product.

    Returns
    -------
    tuple of Problem
        Largest share first.
    """
    if not 0 <= keep_thr <= 100:
        raise ValueError(f"configure: keep_thr is {keep_thr}\nhint: it is a percentage of the total time, 0.1 for example")
    if not log.calls:
        raise ValueError("configure: the log has no products\nhint: lapwing tune read LOG shows what was understood")
    if Path(workdir).exists() and not Path(workdir).is_dir():
        raise ValueError(f"configure: the workdir {workdir} is a file\nhint: name a folder; it is made where there is none")
    check_writable(Path(workdir), "configure")
    estimated = backend == "hipblaslt"
    backends = (get("hipblaslt"),) if estimated else _backends(backend)
    until = None if budget is None else time.monotonic() + budget
    # without a measurement, work is the best guess of what is heavy
    order = sorted(log.calls, key=lambda call: -max(call.gemm.flops, 100 * call.gemm.bytes) * call.count)
    measured = []
    for number, call in enumerate(order, 1):
        if until is not None and time.monotonic() > until:
            measured.append(_Measured(call, None, "no time was left to measure it"))
            continue
        found = _estimate(call, backends[0]) if estimated else _measure(call, backends, device, until)
        measured.append(found)
        if progress is not None:
            took = f"{found.seconds * 1e6:.1f} us x {call.count}" if found.seconds else found.reason
            progress(f"{number}/{len(order)} {call.gemm}: {took}")
    # two processes would give one name to two products
    with Workdir(workdir).lock_problem("configure", None):
        kept = _write(measured, Path(workdir), keep_thr)
        coverage = _coverage(measured)
        write_coverage(Path(workdir), coverage)
    if not kept:
        reasons = sorted({found.reason for found in measured if found.reason})
        raise ValueError(
            f"configure: no product could be measured: {'; '.join(reasons)[:500]}\nhint: see {workdir}/problems.csv"
        )
    if coverage.unmeasured:
        _log.warning("configure: %s", coverage)
    return kept


def _coverage(measured: list[_Measured]) -> Coverage:
    missing = sorted((found for found in measured if not found.seconds), key=lambda found: -found.call.count)
    unmeasured = tuple(Unmeasured(str(f.call.gemm), f.call.gemm.key, f.call.count, f.reason) for f in missing)
    return Coverage(len(measured), sum(found.call.count for found in measured), unmeasured)


def _backends(backend: str | Backend) -> tuple[Backend, ...]:
    if not isinstance(backend, str):
        return (backend,)
    return tuple(get(name) for name in choose(backend))


def _estimate(call: Call, backend: Backend) -> _Measured:
    gemm, reason = call.gemm, backend.supports(call.gemm)
    return _Measured(call, None if reason else max(gemm.flops / _OPERATIONS, gemm.bytes / _BYTES), reason or "")


def _measure(call: Call, backends: tuple[Backend, ...], device: int, until: float | None) -> _Measured:
    """Seconds of one call of the default, by the first backend that can."""
    reasons = []
    patience = None if until is None else max(0.0, until - time.monotonic())
    for backend in backends:
        why = backend.supports(call.gemm)
        if why is not None:
            reasons.append(f"{backend.name}: {why}")
            continue
        try:
            with lock_device(device, "gpu" if backend.name in (*GPU, *FROZEN) else backend.name, patience) as mine:
                if not mine:
                    raise Refused("runtime", "another process kept the device for all of the time there was")
                bench = backend.open(call.gemm, device, 0)
                try:
                    kernel = bench.build(backend.default(call.gemm))
                    (times,) = bench.time([kernel], 1)
                    if times[0] < _QUICK:  # a slow product is known well enough
                        (times,) = bench.time([kernel], _SAMPLES)
                finally:
                    bench.close()
            seconds = statistics.median(times)
            if seconds > 0:
                return _Measured(call, seconds)
            reasons.append(f"{backend.name}: a time of {seconds} s")
        except Refused as error:
            reasons.append(f"{backend.name}: {error.kind}: {error}")
        except (MemoryError, RuntimeError, OSError, ValueError, ArithmeticError) as error:  # too large for this device
            reasons.append(f"{backend.name}: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")
    _log.info("configure: %s is left out, %s", call.gemm, "; ".join(reasons))
    return _Measured(call, None, "; ".join(reasons))


def _write(measured: list[_Measured], workdir: Path, keep_thr: float) -> tuple[Problem, ...]:
    total = sum(found.seconds * found.call.count for found in measured if found.seconds)
    shares = [100 * found.seconds * found.call.count / total if found.seconds else 0.0 for found in measured]
    names = _names(workdir / "configs")
    used = set(names.values())
    kept: list[Problem] = []
    rows: list[list[object]] = []
    for percent, found in sorted(zip(shares, measured, strict=True), key=lambda pair: -pair[0]):
        gemm, reason = found.call.gemm, found.reason
        if not reason and percent < keep_thr:
            reason = f"less than {keep_thr:g} % of the time"
        name = "" if reason else names.get(gemm.key) or _free(gemm.kind, used)
        if found.seconds is not None and name:
            used.add(name)
            kept.append(Problem(name, gemm, found.call.count, found.seconds, percent))
        us = "" if found.seconds is None else f"{found.seconds * 1e6:.4g}"
        values = gemm.to_dict()
        share = "" if found.seconds is None else f"{percent:.4f}"  # not measured is not nothing
        rows.append([name, share, us, found.call.count, *values.values(), gemm.key, reason])
    for config in kept:
        content = {"schema": 1, "name": config.name, "gemm": config.gemm.to_dict()}
        content |= {"count": config.count, "seconds": config.seconds, "percent": config.percent}
        write_text(workdir / "configs" / f"{config.name}.json", json.dumps(content, indent=1) + "\n")
    ours = {*names.values()} - {config.name for config in kept}
    for path in (workdir / "configs").glob("*.json"):
        # of another log, or torn; a file of somebody else in a folder of this name stays
        if path.stem in ours or (_OURS.fullmatch(path.stem) and path.stem not in {config.name for config in kept}):
            path.unlink(missing_ok=True)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    heading = ("name", "percent", "us", "count", *(field.name for field in fields(Gemm)), "key", "dropped")
    table.writerows([heading, *rows])
    write_text(workdir / "problems.csv", out.getvalue())
    return tuple(kept)


def _names(configs: Path) -> dict[str, str]:
    """Names given before, by product: what was already tried for a product stays with it."""
    names = {}
    for path in configs.glob("*.json"):
        try:
            names[Gemm.from_dict(json.loads(path.read_text())["gemm"]).key] = path.stem
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not ours
    return names


def _free(kind: str, used: set[str]) -> str:
    return next(name for number in range(len(used) + 1) if (name := f"{kind}_{number}") not in used)
