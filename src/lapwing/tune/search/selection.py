"""Measure each product as it runs untuned, compute its share of the time, and name the products that are worth tuning."""

from __future__ import annotations

import logging
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import cast

from ..backends import choose, family, get
from ..backends.base import Backend, Refused
from ..files import check_writable, read_json, write_csv
from ..gemm import Call, Gemm
from ..readers import Log
from ..workdir import Target, Workdir, lock_device
from .coverage import Coverage, Unmeasured, write_coverage

_SAMPLES = 7
_QUICK = 0.05  # seconds of a call, below which it is measured more than once
_AGAIN = 0.4  # part of the budget after which nothing is measured a second time
_DIFFER = 1.5  # two measurements that differ by more than this factor show that the machine is busy
# A large AMD GPU, on which nothing can be measured: these numbers only give the shares of products.
_OPERATIONS, _BYTES = 1e15, 4e12  # per second
_OURS = re.compile(r"[A-Z0-9]{3,12}_[NTC]{2}_\d+")  # the form of the names that we give
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
    times: Mapping[Gemm, float] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Target, ...]:
    """Choose the products that matter, and write one configuration for each.

    Every product is measured twice, the second time in the opposite order, and the shorter time counts: other programs can only
    make it longer. A second measurement is left out when it is slow or the budget is short.

    Parameters
    ----------
    log
        The products, as :func:`lapwing.tune.read` returns them.
    workdir
        Receives ``problems.csv`` (every product, its share, and why it was dropped), ``configs/<name>.json`` and
        ``coverage.json`` (the products that could not be measured, which no share includes). A product that was configured
        there before keeps its name.
    backend
        A name, several names separated by commas (the first that supports the product measures it), or a Backend. "hipblaslt"
        measures nothing: the shares are then estimated from the operations and bytes of each product, or come from ``times``.
    keep_thr
        Products below this percentage of the total time are dropped.
    budget
        Seconds. The heaviest products are measured first; those for which no time is left are dropped.
    times
        Seconds of one call of each product, measured elsewhere. Only with the backend "hipblaslt".
    progress
        Called with a line of text for each product.

    Returns
    -------
    tuple of Target
        Largest share first.
    """
    if not 0 <= keep_thr <= 100:
        raise ValueError(f"configure: keep_thr is {keep_thr}\nhint: it is a percentage of the total time, 0.1 for example")
    if not log.calls:
        raise ValueError("configure: the log has no products\nhint: lapwing tune read LOG shows what was understood")
    if Path(workdir).exists() and not Path(workdir).is_dir():
        raise ValueError(f"configure: the workdir {workdir} is a file\nhint: name a folder; it is created if it does not exist")
    check_writable(Path(workdir), "configure")
    estimated = backend == "hipblaslt"
    names = ("hipblaslt",) if estimated else choose(backend) if isinstance(backend, str) else ()
    backends = tuple(map(get, names)) or (cast(Backend, backend),)
    begun = time.monotonic()
    until = None if budget is None else begun + budget
    # before anything is measured, the amount of work is the best guess of what is heavy
    order = sorted(log.calls, key=lambda call: -max(call.gemm.flops, 100 * call.gemm.bytes) * call.count)
    measured = []
    for number, call in enumerate(order, 1):
        if until is not None and time.monotonic() > until:
            measured.append(_Measured(call, None, "no time was left to measure it"))
            continue
        product = _estimate(call, backends[0], times) if estimated else _measure(call, backends, device, until)
        measured.append(product)
        if progress is not None:
            took = f"{product.seconds * 1e6:.1f} us x {call.count}" if product.seconds else product.reason
            progress(f"{number}/{len(order)} {call.gemm}: {took}")
    if not estimated:
        last = None if budget is None else begun + _AGAIN * budget
        measured = _measured_again(measured, backends, device, last)
    # two processes must not give one name to two products
    with Workdir(workdir).lock_problem("configure", None):
        kept = _write(measured, Path(workdir), keep_thr)
        coverage = _coverage(measured)
        write_coverage(Path(workdir), coverage)
    if not kept:
        reasons = sorted({product.reason for product in measured if product.reason})
        raise ValueError(
            f"configure: no product could be measured: {'; '.join(reasons)[:500]}\nhint: see {workdir}/problems.csv"
        )
    if coverage.unmeasured:
        _log.warning("configure: %s", coverage)
    return kept


def _measured_again(
    measured: Sequence[_Measured], backends: tuple[Backend, ...], device: int, until: float | None
) -> list[_Measured]:
    """Measure once more in the opposite order, and take the shorter times."""
    best, differ = list(measured), 0
    for place in reversed(range(len(best))):
        first = best[place].seconds
        if first is None or first >= _QUICK:
            continue
        if until is not None and time.monotonic() > until:
            break
        second = _measure(best[place].call, backends, device, until).seconds
        if second is not None:
            differ += max(first, second) > _DIFFER * min(first, second)
            best[place] = replace(best[place], seconds=min(first, second))
    if differ:
        _log.warning(
            "configure: ~%d of %d products took more than %g times as long when measured a second time: the machine is busy, "
            "and shares of the time are rough", differ, len(best), _DIFFER,
        )  # fmt: skip
    return best


def _coverage(measured: list[_Measured]) -> Coverage:
    missing = sorted((product for product in measured if not product.seconds), key=lambda product: -product.call.count)
    unmeasured = tuple(Unmeasured(str(f.call.gemm), f.call.gemm.key, f.call.count, f.reason) for f in missing)
    return Coverage(len(measured), sum(product.call.count for product in measured), unmeasured)


def _estimate(call: Call, backend: Backend, times: Mapping[Gemm, float] | None) -> _Measured:
    gemm, reason = call.gemm, backend.supports(call.gemm)
    if times is not None and not reason:
        seconds = times.get(gemm)
        return _Measured(call, seconds, "" if seconds else "it is missing from the measured times")
    return _Measured(call, None if reason else max(gemm.flops / _OPERATIONS, gemm.bytes / _BYTES), reason or "")


def _measure(call: Call, backends: tuple[Backend, ...], device: int, until: float | None) -> _Measured:
    """Seconds of one call of the default, by the first backend that supports the product."""
    reasons = []
    patience = None if until is None else max(0.0, until - time.monotonic())
    for backend in backends:
        reason = backend.supports(call.gemm)
        if reason is not None:
            reasons.append(f"{backend.name}: {reason}")
            continue
        try:
            with lock_device(device, family(backend), patience) as locked:
                if not locked:
                    raise Refused("runtime", "another process used the device until the time was over")
                with closing(backend.open(call.gemm, device, 0)) as bench:
                    kernel = bench.build(backend.default(call.gemm))
                    (times,) = bench.time([kernel], 1)
                    if times[0] < _QUICK:  # one sample of a slow product is enough
                        (times,) = bench.time([kernel], _SAMPLES)
            seconds = statistics.median(times)
            if seconds > 0:
                return _Measured(call, seconds)
            reasons.append(f"{backend.name}: measured a time of {seconds} s")
        except Refused as error:
            reasons.append(f"{backend.name}: {error.kind}: {error}")
        except (MemoryError, RuntimeError, OSError, ValueError, ArithmeticError) as error:  # too large for this device
            reasons.append(f"{backend.name}: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")
    _log.info("configure: %s is left out: %s", call.gemm, "; ".join(reasons))
    return _Measured(call, None, "; ".join(reasons))


def _write(measured: list[_Measured], workdir: Path, keep_thr: float) -> tuple[Target, ...]:
    total = sum(product.seconds * product.call.count for product in measured if product.seconds)
    shares = [100 * product.seconds * product.call.count / total if product.seconds else 0.0 for product in measured]
    names = _names(workdir / "configs")
    used = set(names.values())
    kept: list[Target] = []
    rows: list[list[object]] = []
    for percent, product in sorted(zip(shares, measured, strict=True), key=lambda pair: -pair[0]):
        gemm, reason = product.call.gemm, product.reason
        if not reason and percent < keep_thr:
            reason = f"less than {keep_thr:g} % of the time"
        name = "" if reason else names.get(gemm.key) or _free(gemm.kind, used)
        if product.seconds is not None and name:
            used.add(name)
            kept.append(Target(name, gemm, product.call.count, product.seconds, percent))
        us = "" if product.seconds is None else f"{product.seconds * 1e6:.4g}"
        share = "" if product.seconds is None else f"{percent:.4f}"  # unmeasured is not the same as no time
        rows.append([name, share, us, product.call.count, *gemm.to_dict().values(), gemm.key, reason])
    for target in kept:
        Workdir(workdir).add_config(target)
    current = {target.name for target in kept}
    for path in (workdir / "configs").glob("*.json"):
        # remove configurations of another log and damaged ones; other people's files stay
        if path.stem not in current and (path.stem in names.values() or _OURS.fullmatch(path.stem)):
            path.unlink(missing_ok=True)
    heading = ("name", "percent", "us", "count", *(field.name for field in fields(Gemm)), "key", "dropped")
    write_csv(workdir / "problems.csv", [heading, *rows])
    return tuple(kept)


def _names(configs: Path) -> dict[str, str]:
    """Names of products that were configured before, by key: the trials of a product stay with its name."""
    names = {}
    for path in configs.glob("*.json"):
        try:
            names[Gemm.from_dict(read_json(path)["gemm"]).key] = path.stem
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not one of our files
    return names


def _free(kind: str, used: set[str]) -> str:
    return next(name for number in range(len(used) + 1) if (name := f"{kind}_{number}") not in used)
