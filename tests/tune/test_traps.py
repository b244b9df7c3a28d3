"""Products for which a library must not be used, calls that must not count twice, files that must not be deleted."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from lapwing.tune import Gemm
from lapwing.tune.backends.base import Refused
from lapwing.tune.backends.cpu import BACKEND, DEFAULT
from lapwing.tune.dispatch.installed import enable, use
from lapwing.tune.library.folder import Library
from lapwing.tune.readers import read
from lapwing.tune.search.selection import configure
from lapwing.tune.search.worker import Worker
from lapwing.tune.workdir import Trial, Workdir, lock_device
from tune.cases import FakeBackend, FakeComparison, fake_library, linear

F32 = {"a_type": "f32", "b_type": "f32", "c_type": "f32", "d_type": "f32"}


@pytest.fixture
def tuned(tmp_path):
    torch = pytest.importorskip("torch")
    backend = FakeBackend()
    gemms = [linear(8, 32, 64), linear(8, 32, 64, bias="f32"), linear(8, 1, 64), linear(1, 32, 64)]
    fake_library(tmp_path / "final", *map(FakeComparison, gemms), backend=backend)
    return torch, Library(tmp_path / "final", backends={"fake": backend}), backend


def test_torch_refuses_what_it_refuses_without_a_library(tuned):
    torch, library, backend = tuned
    x, w, bias = torch.randn(8, 64), torch.randn(32, 64), torch.randn(32)
    with use(library, compiled=False):
        for call in (
            lambda: torch.mm(x.view(2, 4, 64), w.t()),
            lambda: torch.bmm(x, w.t()),
            lambda: torch.addmm(bias, x.view(2, 4, 64), w.t()),
        ):
            with pytest.raises(RuntimeError):
                call()
        torch.nn.functional.linear(x[:1].expand(2, 4, 64), w)  # one row for all: not the packed product of this size
        assert not backend.calls
        # torch expands a bias of one element, where a kernel would read 32; the next call is not affected
        for short in (bias[:1], bias[:1].expand(32), bias.expand(8, 32)):
            torch.addmm(short, x, w.t())
        with pytest.raises(RuntimeError):
            torch.nn.functional.linear(x, w, torch.randn(64))
        assert not backend.calls
        torch.addmm(bias, x, w.t())
        for short in (bias[:1], bias[:1].expand(32), bias.expand(8, 32)):
            torch.addmm(short, x, w.t())
        assert len(backend.calls) == 1
        # readers call a single column as torch does, so it must be found; and a single row has no step to the next
        torch.nn.functional.linear(x, w[:1])
        torch.nn.functional.linear(torch.randn(1, 5, 64)[:, -1], w)
        assert len(backend.calls) == 3


@pytest.mark.parametrize("wanted", ["input", "weight"])
def test_what_a_derivative_does_not_need_may_change(tuned, wanted):
    torch, library, backend = tuned
    x, w = torch.randn(8, 64), torch.randn(32, 64)
    leaf, other = (x, w) if wanted == "input" else (w, x)
    leaf.requires_grad_()
    with use(library, compiled=False):
        inner = leaf * 1.0
        y = torch.nn.functional.linear(*((inner, w) if wanted == "input" else (x, inner)))
        assert backend.calls
        before = other.clone()
        inner.add_(1.0)
        y.sum().backward()
    ones = torch.ones(8, 32)
    expected = ones @ before if wanted == "input" else ones.t() @ before
    assert (leaf.grad - expected).abs().max() <= 10 * 32 * torch.finfo(torch.float32).eps * expected.abs().max()


def test_handles_removed_in_any_order_leave_nothing(tuned):
    torch, library, _ = tuned
    config = pytest.importorskip("torch._inductor.config")
    before, compiler = config.post_grad_custom_post_pass, torch.compile
    handles = [enable(torch.nn.Linear(64, 32), library) for _ in range(3)]
    for handle in handles:
        handle.remove()
    assert config.post_grad_custom_post_pass is before and torch.compile is compiler


def test_equal_products_have_one_key():
    assert Gemm(4, 4, 4, alpha=1, beta=-0.0).key == Gemm(4, 4, 4, alpha=1.0, beta=0).key


@pytest.mark.parametrize("two_files", [False, True])
def test_what_cublas_hands_on_counts_once(tmp_path, two_files):
    values = [("transa", "CUBLAS_OP_T(1)"), ("m", 32), ("n", 8), ("k", 64), ("lda", 64), ("ldb", 64), ("ldc", 32)]
    above = "I! cuBLAS (v13.1.0) function cublasStatus_t cublasSgemm_v2(...) called:\n"
    above += "".join(f"i!  {name}: type=int; val={value}\n" for name, value in values)
    parts = "".join(
        f"{x}desc=[type=R_32F rows={r} cols={c} ld={r}] "
        for x, r, c in zip("ABCD", (64, 64, 32, 32), (32, 8, 8, 8), strict=True)
    )
    below = f"[2026][cublasLt][7][Trace][cublasLtSSSMatmul] {parts}computeDesc=[computeType=COMPUTE_32F transa=OP_T] beta=1\n"
    texts = [3 * above, 2 * below] if two_files else [3 * above + 2 * below]
    log = read(*texts)
    # one of the three did not go through cuBLASLt
    assert sorted((call.count, call.gemm.beta) for call in log.calls) == [(1, 0.0), (2, 1.0)] and not log.problems


def test_scales_come_before_bias_and_activation():
    given = {"a_type": "f8e4m3", "b_type": "f8e4m3", "scale_a": "tensor", "scale_b": "row", "bias": "bf16"}
    bench = BACKEND.open(Gemm(64, 16, 96, "T", "N", activation="gelu", **given), 0, 0)
    assert max(bench.check(bench.build({**DEFAULT, "tile_m": 64, "tile_k": 128})).values()) <= 1


def test_a_fork_has_threads_of_its_own():
    f = BACKEND.callable(Gemm(256, 8, 64, "T", "N", **F32), {**DEFAULT, "threads": 2, "share": "tiles", "tile_m": 64}, 0)
    x, w = np.ones((8, 64), np.float32), np.ones((256, 64), np.float32)
    f(x, w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn about a fork with threads, which is tested here
        child = os.fork()
    if child == 0:
        right = False
        try:
            signal.alarm(20)  # it would wait for ever
            right = f(x, w)[0, 0] == 64
        finally:
            os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_half_precision_runs_as_it_was_validated():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 1024), (1024, 64)))
    types = {f"{t}_type": "f16" for t in "abcd"}
    f = BACKEND.callable(Gemm(64, 16, 1024, **types), {**DEFAULT, "tile_k": 128}, 0)
    expected = x.astype(np.float64) @ w.astype(np.float64)
    y = f(x, w)
    assert y.dtype == np.float16
    assert np.abs(y - expected).max() <= 2.0**-11 * np.abs(expected).max() * 1.01


def test_configure_deletes_only_its_own_files(tmp_path):
    (tmp_path / "configs").mkdir()
    mine, torn = tmp_path / "configs" / "production.json", tmp_path / "configs" / "BBS_TN_7.json"
    mine.write_text('{"port": 80}')
    torn.write_text('{"schema": 1, "na')
    configure(read("64x8x32 f32 NN"), tmp_path, backend="cpu")
    assert mine.read_text() == '{"port": 80}' and not torn.exists()


@pytest.mark.parametrize(
    "wrong", [{"took": "x"}, {"backend": ["cpu"]}, {"device": "0"}, {"times": None}, {"errors": 3}, {"environment": [1]}]
)
def test_a_hostile_trial_is_passed_over(tmp_path, wrong):
    folder = Workdir(tmp_path)
    good = Trial("cpu", 0, "key", dict(DEFAULT), 1e-6)
    folder.add_trial("A", good)
    with folder.trials("A").open("a") as file:
        file.write(json.dumps(json.loads(good.to_json()) | wrong) + "\n")
    assert folder.read_trials("A") == [good]


def test_the_environment_knows_how_many_threads_blas_takes():
    from lapwing.tune.backends.processors import blas_threads, control

    before = BACKEND.environment(0)
    if (blas := control()) is None:
        pytest.skip("this BLAS does not tell")
    with blas_threads(1):  # a kernel's own setting is not the user's
        assert BACKEND.environment(0) == before
    had = blas[0]()
    try:
        blas[1](had + 1)
        assert BACKEND.environment(0) != before
    finally:
        blas[1](had)


@pytest.mark.parametrize(
    "wrong", [{"tile_m": -4}, {"tile_k": -4}, {"split_k": 10**12}, {"split_k": 0}, {"pack": "z"}, {"tile_n": "a"}]
)
def test_a_damaged_configuration_is_refused(wrong):
    with pytest.raises(Refused, match=next(iter(wrong))):
        BACKEND.callable(Gemm(32, 16, 64, **F32), {**DEFAULT, **wrong}, 0)


def test_two_processes_do_not_name_products_at_once(tmp_path):
    # their clocks may order the products differently: one name for two products, and one product lost
    done = threading.Thread(target=lambda: configure(read("64x8x32 f32 NN"), tmp_path, backend="cpu"))
    with Workdir(tmp_path).lock_problem("configure", None):
        done.start()
        done.join(1.0)
        assert done.is_alive() and not Workdir(tmp_path).configs()
    done.join(30)
    assert len(Workdir(tmp_path).configs()) == 1


def test_the_limit_of_a_candidate_is_for_all_its_phases():
    class Told(Worker):
        def __init__(self):
            super().__init__(0, "cpu")
            self.limits, self.answers = [], iter([{"phase": "waiting"}, {"phase": "timing"}] * 2 + [{"time": 1.0}])

        def _start(self):
            return SimpleNamespace(stdin=io.BytesIO())

        def _read(self, timeout):
            self.limits.append(timeout)
            time.sleep(0.02)
            return next(self.answers)

    worker = Told()
    worker.try_one({}, 5, 1.0)
    first, waiting, timing, _, again = worker.limits
    assert first == 1.0 and waiting is None and timing <= 0.985 and again <= timing - 0.015


def test_a_lock_has_a_name_that_fits():
    with lock_device(0, "replay:" + "x" * 400, 0.0) as mine, lock_device(0, "replay:" + "x" * 401, 0.0) as other:
        assert mine and other
