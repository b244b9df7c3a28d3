"""The results of a comparison as tables and figures: results/raw_results.csv, results/final_results.csv, results/metrics.json.

Columns and figures have the names that AMD's workflow uses. Two figures are weighted by the share of the time, and must not be
confused: how much less time the products take, sum w (1 - 1/r), and how many times faster that is, 1 / (1 - that sum).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..amd.names import R_TYPES
from ..files import write_csv, write_json
from ..search.coverage import Coverage, read_coverage

COLUMNS = (
    "name", "transA", "transB", "batch_count", "m", "n", "k", "lda", "ldb", "ldc", "ldd", "alpha", "beta",
    "a_type", "b_type", "c_type", "d_type", "compute_type", "scaleA", "scaleB", "activation_type", "bias_type",
    "us_reference", "us_vendor", "us_tuned", "ratio", "ratio_low", "ratio_high", "ratio_vendor", "uplift_pct", "us_saved",
    "error_tuned", "arith_intensity", "backend", "arithmetic", "kernel_tuned", "kernel_changed", "call_count", "pct_of_total",
    "weighted_us_saved", "weighted_uplift_contribution_pct", "kept", "compared", "doubtful", "reason",
)  # fmt: skip
_PERCENTILES = (25, 50, 75, 90, 99)


@dataclass(frozen=True)
class Uplift:
    """How much faster a set of products is, in percent."""

    n: int
    mean_uplift_pct: float | None = None
    geomean_uplift_pct: float | None = None
    median_uplift_pct: float | None = None
    min_uplift_pct: float | None = None
    max_uplift_pct: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Weighted:
    """Figures of the whole program: each product counts by its share of the time."""

    time_reduction_pct: float  # sum of w (1 - 1/r)
    speedup: float  # 1 / (1 - that sum)


@dataclass(frozen=True)
class Metrics:
    """The contents of ``metrics.json``."""

    attempted: int  # products that were compared
    kept: int
    coverage_pct: float  # share of the measured time that all products to tune have
    kept_coverage_pct: float  # share of the measured time that the kept products have
    all_products: Uplift  # against the default; products that were not kept count as 1
    kept_products: Uplift
    weighted: Weighted
    vendor_products: Uplift  # against the best vendor algorithm, for products that were compared with it
    weighted_vendor: Weighted | None
    # share of all calls of the log, measured or not; None when the workdir does not say
    coverage_calls_pct: float | None = None
    unmeasured: Coverage | None = None
    products: int = 0  # products to tune, compared or not
    doubtful: int = 0  # products whose gain cannot be believed

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"schema": 1, **asdict(self)}
        c = values.pop("unmeasured")
        if self.unmeasured is not None:
            values["unmeasured"] = {
                "products": len(self.unmeasured.unmeasured),
                "calls": self.unmeasured.unmeasured_calls,
                "calls_pct": self.unmeasured.unmeasured_pct,
                "calls_of_log": self.unmeasured.calls,
                "named": list(c["unmeasured"]),
            }
        return values

    def __str__(self) -> str:
        missing = self.unmeasured is not None and self.unmeasured.unmeasured
        of = "the time that was measured" if missing else "the time"
        rows = [f"{self.kept} of {self.products} products have a faster kernel ({self.kept_coverage_pct:.1f} % of {of})"]
        if self.attempted < self.products:
            rows.append(f"{self.products - self.attempted} of {self.products} products were not compared: no time was left")
        if self.doubtful:
            rows.append(f"~{self.doubtful} of {self.products} gains cannot be believed and were not kept: is the machine busy?")
        rows += [str(self.unmeasured)] if missing else []
        for which, uplift in (("all", self.all_products), ("the kept", self.kept_products)):
            if uplift.n:
                mean, geo = uplift.mean_uplift_pct or 0.0, uplift.geomean_uplift_pct or 0.0
                rows.append(f"uplift of {which} products: {mean:.2f} % on average, {geo:.2f} % as geometric mean")
        w = self.weighted
        rows.append(f"by calls: {w.time_reduction_pct:.2f} % less time in products, {w.speedup:.3f}x as fast")
        if self.weighted_vendor is not None:
            v = self.weighted_vendor
            rows.append(f"by calls, against the best vendor algorithm: {v.time_reduction_pct:.2f} % less, {v.speedup:.3f}x")
        return "\n".join(rows)


def write(workdir: Any, comparisons: Iterable[Any], more: Mapping[str, Mapping[str, Any]] | None = None) -> Metrics:
    """Write the three files of a comparison to ``results`` in a workdir.

    Parameters
    ----------
    workdir : Workdir or path
    comparisons : iterable of Comparison
    more : mapping, optional
        Further columns, by the name of a comparison and the name of the column.

    Returns
    -------
    Metrics
        Prints as a short summary.
    """
    ordered = sorted(comparisons, key=lambda c: (-c.percent, c.name))
    folder = results_folder(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / "raw_results.csv", ordered, more or {})
    _write_csv(folder / "final_results.csv", [c for c in ordered if c.kept], more or {})
    metrics = measure(ordered, read_coverage(folder.parent))
    write_json(folder / "metrics.json", metrics.to_dict())
    return metrics


def results_folder(workdir: Any) -> Path:
    return Path(getattr(workdir, "results", None) or Path(workdir) / "results")


def measure(comparisons: Sequence[Any], coverage: Coverage | None = None) -> Metrics:
    """Compute the figures of some comparisons; ``coverage`` describes the products that were not measured."""
    kept = [c for c in comparisons if c.kept]
    # the program runs the winner if it was kept, else the default
    ratios = [c.ratio if c.kept else 1.0 for c in comparisons]
    shares = [c.percent / 100 for c in comparisons]
    with_vendor = [c for c in comparisons if c.vendor_us is not None and math.isfinite(c.vendor_us) and c.vendor_us > 0]
    # products that were not kept run the default, which may be slower than the vendor's best
    against = [c.vendor_us / (c.tuned_us if c.kept else c.default_us) for c in with_vendor]
    return Metrics(
        attempted=sum(c.compared for c in comparisons),
        kept=len(kept),
        coverage_pct=100 * sum(shares),
        kept_coverage_pct=sum(c.percent for c in kept),
        all_products=_uplift(ratios),
        kept_products=_uplift([c.ratio for c in kept]),
        weighted=_weighted(shares, ratios),
        vendor_products=_uplift(against),
        weighted_vendor=_weighted(_vendor_shares(with_vendor), against) if with_vendor else None,
        coverage_calls_pct=100 * sum(c.count for c in comparisons) / coverage.calls if coverage and coverage.calls else None,
        unmeasured=coverage,
        products=len(comparisons),
        doubtful=sum(c.doubtful for c in comparisons),
    )


def _vendor_shares(comparisons: Sequence[Any]) -> list[float]:
    """Shares of the time if the program used the vendor's best algorithms."""
    times = [c.percent * c.vendor_us / c.default_us for c in comparisons]
    return [t / sum(times) if sum(times) else 0.0 for t in times]


def _uplift(ratios: Sequence[float]) -> Uplift:
    good = sorted(r for r in ratios if math.isfinite(r) and r > 0)
    if not good:
        return Uplift(0)
    uplifts = [100 * (r - 1) for r in good]
    geometric = 100 * math.expm1(sum(map(math.log, good)) / len(good))
    at = {f"p{p}": float(np.percentile(uplifts, p)) for p in _PERCENTILES}
    return Uplift(len(good), sum(uplifts) / len(good), geometric, at["p50"], uplifts[0], uplifts[-1], **at)


def _weighted(shares: Sequence[float], ratios: Sequence[float]) -> Weighted:
    reduction = sum(w * (1 - 1 / r) for w, r in zip(shares, ratios, strict=True))
    return Weighted(100 * reduction, 1 / (1 - reduction) if reduction < 1 else math.inf)


def _write_csv(path: Path, comparisons: Sequence[Any], more: Mapping[str, Mapping[str, Any]]) -> None:
    columns = [*COLUMNS, *next(iter(more.values()), ())]
    rows = (_row(c) | dict(more.get(c.name, {})) for c in comparisons)
    write_csv(path, [columns, *([row[name] for name in columns] for row in rows)])


def _row(c: Any) -> dict[str, Any]:
    g = c.gemm
    saved = c.default_us - c.tuned_us
    types = {f"{x}_type": R_TYPES.get(getattr(g, f"{x}_type"), getattr(g, f"{x}_type")) for x in "abcd"}
    return {
        "name": c.name,
        "transA": g.trans_a,
        "transB": g.trans_b,
        "batch_count": g.batch,
        **{name: getattr(g, name) for name in ("m", "n", "k", "lda", "ldb", "ldc", "ldd", "alpha", "beta")},
        **types,
        "compute_type": {"tf32": "xf32_r"}.get(g.compute) or R_TYPES.get(g.compute, g.compute),
        "scaleA": g.scale_a,
        "scaleB": g.scale_b,
        "activation_type": g.activation,
        "bias_type": R_TYPES.get(g.bias, g.bias) or "none",
        **{
            f"us_{name}": _short(us)
            for name, us in (("reference", c.default_us), ("vendor", c.vendor_us), ("tuned", c.tuned_us))
        },
        **{
            name: _short(x if c.compared else None)
            for name, x in (("ratio", c.ratio), ("ratio_low", c.low), ("ratio_high", c.high))
        },
        "ratio_vendor": _short(c.vendor_us / c.tuned_us if c.vendor_us is not None and c.tuned_us else None),
        "uplift_pct": _short(100 * (c.ratio - 1) if c.compared else None),
        "us_saved": _short(saved),
        "error_tuned": _short(c.error),
        "arith_intensity": _short(g.flops / g.bytes if g.bytes else None),
        "backend": c.backend,
        "arithmetic": c.arithmetic,
        "kernel_tuned": json.dumps(dict(c.config), sort_keys=True),
        "kernel_changed": c.kept,
        "call_count": c.count,
        "pct_of_total": _short(c.percent),
        "weighted_us_saved": _short(c.count * saved) if c.kept else "",  # a product that was not kept saves nothing
        "weighted_uplift_contribution_pct": _short(c.percent * (1 - 1 / c.ratio)) if c.kept else "",
        **{name: getattr(c, name) for name in ("kept", "compared", "doubtful", "reason")},
    }


def _short(x: float | None) -> str:
    return "" if x is None or not math.isfinite(x) else f"{x:.6g}"
