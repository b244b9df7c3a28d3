"""From log lines to a library in use: every step, on the CPU."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import lapwing as lw
import lapwing.tune
from lapwing.tune import Gemm
from lapwing.tune.backends import get
from lapwing.tune.backends.processors import OtherPrograms

LINE = (
    "- {{function: matmul, M: {m}, N: {n}, K: {k}, lda: {k}, ldb: {k}, ldc: {m}, ldd: {m}, stride_a: 0, stride_b: 0, "
    "stride_c: 0, stride_d: 0, alpha: 1.0, beta: 0.0, transA: T, transB: N, batch_count: 1, scaleA: 0, scaleB: 0, "
    "scaleAlpha_vector: false, gradient: false, use_e: false, bias_vector: {bias}, bias_source: d, a_type: {t}, b_type: {t}, "
    "c_type: {t}, d_type: {t}, scale_type: f32_r, bias_type: f32_r, compute_type: c_f32_r, activation_type: {act}, "
    "flush: false, rotating: 512, cold_iters: 0, iters: 0, call_count: {count}}}\n"
)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.slow
def test_the_lines_of_the_original(tmp_path):
    """Llama-3.1-405B's last layer: a gigabyte of weights, minutes."""
    log = tmp_path / "gemm.log"
    log.write_text(
        "".join(LINE.format(m=16032, n=n, k=16384, bias="false", act="none", t="bf16_r", count=1) for n in (109, 113))
    )
    tuned = lapwing.tune.all_steps(log, tmp_path / "w", backend="cpu", budget=150, evaluations=4)
    assert [c.name for c in tuned.comparisons] == ["BBS_TN_0", "BBS_TN_1"]
    assert all(c.ratio >= 1 for c in tuned.comparisons)


def test_from_a_log_to_a_library_in_use(tmp_path):
    # NumPy needs five temporaries, each larger than a cache, for the second product
    log = tmp_path / "gemm.log"
    log.write_text(
        LINE.format(m=1002, n=109, k=1024, bias="false", act="none", t="bf16_r", count=3)
        + "this line is no product\n"
        + LINE.format(m=1024, n=4096, k=16, bias="true", act="gelu", t="f32_r", count=40)
    )
    before = log.read_bytes()
    watch = OtherPrograms()
    for attempt in range(3):
        w, steps = tmp_path / f"w{attempt}", []
        tuned = lapwing.tune.all_steps(log, w, backend="cpu", budget=20, evaluations=7, done=steps.append)
        assert log.read_bytes() == before and len(steps) == 5
        assert {p.name for p in tuned.configured} == {"BBS_TN_0", "SSS_TN_0"}
        fused = next(c for c in tuned.comparisons if c.name == "SSS_TN_0")
        busy = watch.share() > 0.25
        if fused.kept or busy:
            break
    # on a busy machine nothing needs to be found, and what is doubtful must not be kept
    assert fused.kept or busy, fused
    assert not fused.kept or (fused.ratio >= 1.03 and fused.low > 1 and not fused.doubtful and fused.backend == "cpu"), fused
    assert all(c.ratio >= 1 and c.error <= 1 for c in tuned.comparisons if c.compared)

    tables = [(w / "results" / f"{name}_results.csv").read_text().splitlines() for name in ("raw", "final")]
    assert [len(list(csv.DictReader(lines))) for lines in tables] == [2, tuned.metrics.kept]
    assert json.loads((w / "results" / "metrics.json").read_text())["kept"] == tuned.metrics.kept
    assert "SSS_TN_0" in (w / "results" / "report.md").read_text() and tuned.report.stat().st_size > 1000

    # the kernel of the library gives the same result as NumPy
    if not fused.kept:  # the rest is tested with a kernel that is faster on an idle machine
        config = {**get("cpu").default(fused.gemm), "threads": 1, "tile_n": 128}
        lapwing.tune.build(w, [replace(fused, backend="cpu", config=config, kept=True, error=0.5, validated=("product",))])
    library = lapwing.tune.Library(tuned.library)
    entry = library.lookup(fused.gemm)
    assert entry is not None and "product" in entry.validated
    rng = np.random.default_rng(0)
    x, weights, bias = (rng.standard_normal(s).astype(np.float32) for s in ((4096, 16), (1024, 16), (1024,)))
    run = library.backend(entry.backend).callable(entry.gemm, entry.config, 0)
    expected = gelu((x @ weights.T + bias).astype(np.float64))
    assert np.abs(run(x, weights, bias=bias) - expected).max() < 10 * 16 * np.finfo(np.float32).eps * np.abs(expected).max()

    with lapwing.tune.use(tuned.library):
        plain = x @ weights.T
        assert np.abs(lw.matmul(x, weights.T) - plain).max() < 10 * 16 * np.finfo(np.float32).eps * np.abs(plain).max()
    assert lapwing.tune.Library(tuned.library).lookup(Gemm.row_major(4096, 1024, 16, right="T", dtype="f32")) is None  # no bias


def test_no_public_name_is_a_function_and_a_module():
    """``lapwing.tune.run`` must be one thing, whatever was imported before."""
    import importlib.util
    import inspect
    import pkgutil

    for found in [None, *pkgutil.walk_packages(lapwing.tune.__path__, "lapwing.tune.")]:
        name = "lapwing.tune" if found is None else found.name
        if found is not None and not found.ispkg:
            continue
        package = importlib.import_module(name)
        for public in getattr(package, "__all__", ()):
            assert not inspect.ismodule(getattr(package, public)), f"{name}.{public}"
            assert importlib.util.find_spec(f"{name}.{public}") is None, f"{name}.{public} is also a module"
