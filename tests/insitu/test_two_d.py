"""A run whose history does not fit in its memory: storing it fails, the stream passes, and its values are the true ones."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest

from insitu.harness import EXAMPLES, environment

SOLVER = EXAMPLES / "two_d" / "burgers_2d.py"
POINTS, SNAPSHOTS, MODES, MEMORY = 128, 300, 20, 60  # the history has 79 MB, the rows of the stream 21
# BLAS threads have buffers of their own, and their number is the machine's
ONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of memory is Linux's")


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    size = ["--points", POINTS, "--snapshots", SNAPSHOTS, "--modes", MODES]
    command = [sys.executable, SOLVER, *size, *arguments]
    return subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=120, env=environment(**ONE))


def solver():
    spec = importlib.util.spec_from_file_location("burgers_2d", SOLVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def history() -> np.ndarray:
    """All snapshots, outside of the limit."""
    made = np.empty((SNAPSHOTS, 2, POINTS, POINTS))
    for row, (_, u, v) in zip(made, solver().burgers(POINTS, SNAPSHOTS), strict=True):
        row[0], row[1] = u, v
    return made


def test_storing_does_not_fit():
    done = start("--memory", MEMORY, "--store")
    assert done.returncode == 1
    (kept,) = re.findall(rf"storing: MemoryError with (\d+) of {SNAPSHOTS} snapshots", done.stderr)
    assert 0 < int(kept) < SNAPSHOTS


def test_streaming_fits(tmp_path, history):
    done = start("--memory", MEMORY, "--output", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = np.array(re.findall(r"singular values (.*)", done.stdout)[0].split(), float)
    with np.load(tmp_path / "pod.npz") as file:
        found = {name: file[name] for name in file.files}
    assert np.allclose(printed, found["sigma"], rtol=1e-11, atol=0)
    # the inner product has the weight of a cell
    volume = (2 * np.pi / POINTS) ** 2
    flat = np.sqrt(volume) * history.reshape(SNAPSHOTS, -1)
    sigma = np.linalg.svd(flat, compute_uv=False)
    off = sigma[:MODES] - found["sigma"]
    # never above the true values and never further below than the bound; LAPACK itself is off by a few eps
    noise = 10 * np.finfo(float).eps * np.sqrt(flat.size) * sigma[0]
    assert (off >= -noise).all() and (off <= found["bounds"] + noise).all()
    assert found["bounds"].max() < 1e-6 * sigma[0]
    energy = (sigma[:MODES] ** 2).sum() / (sigma**2).sum()
    assert abs(found["energy"] - energy) <= 1e-10
    # and the modes give the snapshots back, up to what they do not hold
    modes = np.stack([found["modes_u"], found["modes_v"]], axis=1).reshape(MODES, -1)
    rest = flat - found["coefficients"] @ modes * np.sqrt(volume)
    assert np.linalg.norm(rest) <= 1.01 * np.sqrt((sigma[MODES:] ** 2).sum()) + SNAPSHOTS * noise
    (extra,) = re.findall(r"extra memory: (\d+) MB", done.stdout)
    assert int(extra) < MEMORY


def test_too_little_memory_is_a_failure():
    """The rows of the stream do not fit either: this must be said, and not look like a result."""
    done = start("--memory", 10)
    assert done.returncode == 1 and "MemoryError" in done.stderr and "singular values" not in done.stdout


def test_jax_gives_the_same_fields():
    jax = pytest.importorskip("jax")
    burgers, before = solver().burgers, jax.config.jax_enable_x64
    try:
        for (_, u, v), (_, x, y) in zip(burgers(32, 20), burgers(32, 20, True), strict=True):
            assert max(np.abs(u - x).max(), np.abs(v - y).max()) < 1e-12
    finally:
        jax.config.update("jax_enable_x64", before)
