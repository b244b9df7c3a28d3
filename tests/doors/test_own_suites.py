"""The libraries' own tests pass under lapwing.install as they do without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NUMPY_TESTS = Path(np.__file__).parent / "linalg" / "tests"


def run(door, least, path, *options, conftest="--noconftest"):
    """Failed tests, and how many calls lapwing accepted."""
    here = str(Path(__file__).parent)
    environment = os.environ | {"LAPWING_DOOR": door, "LAPWING_LEAST": str(least)}
    environment["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        conftest,
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-W",
        "ignore",
    ]
    command += ["-p", "installed"] if door else []
    done = subprocess.run([*command, *options, str(path)], capture_output=True, text=True, env=environment, cwd=here)
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-2000:] + done.stderr[-2000:]
    accepted = re.search(r"accepted by lapwing: (\d+)", done.stdout)
    return set(re.findall(r"(?:FAILED|ERROR) \S+?::(\S+)", done.stdout)), int(accepted[1]) if accepted else 0


@pytest.mark.skipif(not NUMPY_TESTS.exists(), reason="this NumPy has no tests")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["-k", "TestCholesky or TestQR or TestEighCases"], id="sample"),
        pytest.param([], id="whole", marks=pytest.mark.slow),
    ],
)
def test_numpy(options):
    expected, _ = run("", 1, NUMPY_TESTS / "test_linalg.py", *options)
    got, accepted = run("numpy", 1, NUMPY_TESTS / "test_linalg.py", *options)
    assert accepted and got == expected


@pytest.mark.parametrize(
    "path, options",
    [
        pytest.param("gaussian_process/tests/test_gpr.py", ["-k", "predict and not warns"], id="sample"),
        pytest.param("gaussian_process", [], id="gaussian_process", marks=pytest.mark.slow),
        pytest.param("decomposition", [], id="decomposition", marks=pytest.mark.slow),
        pytest.param("linear_model", [], id="linear_model", marks=pytest.mark.slow),
    ],
)
def test_scikit_learn(path, options):
    """Single matrices through SciPy's and NumPy's names: scikit-learn's estimators have no batches."""
    sklearn = pytest.importorskip("sklearn")
    tests = Path(sklearn.__file__).parent / path
    fixtures = f"--confcutdir={Path(sklearn.__file__).parent}"  # those of the whole package
    expected, _ = run("", 1, tests, *options, conftest=fixtures)
    got, accepted = run("numpy,scipy", 1, tests, *options, conftest=fixtures)
    assert accepted and got == expected


TORCH_OPERATORS = (
    "cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "lstsq", "lu", "lu_factor",
    "lu_factor_ex", "lu_solve", "matrix_rank", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd",
    "svdvals", "tensorinv", "tensorsolve",
)  # fmt: skip
TORCH_OTHERS = (
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "inverse",
    "logdet",
    "lu",
    "lu_solve",
    "lu_unpack",
    "pinverse",
    "svd",
)


def failures_of(op, first=None, compiled=False):
    """Checks that fail: values, vmap, first and second derivatives, forward mode, compilation; and the values themselves."""
    import torch

    failed, values = [], []
    samples = op.sample_inputs("cpu", torch.float64, requires_grad=True)
    for i, sample in enumerate(samples if first is None else [s for s in samples if s.input.dim() > 2][:first]):

        def call(*x, sample=sample):
            result = op.gradcheck_wrapper(op.get_op(), *x, **sample.kwargs)
            return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result

        arguments = (sample.input, *sample.args)
        plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
        checks = {
            "values": lambda: values.append((i, call(*plain))),  # noqa: B023
            "vmap": lambda: torch.func.vmap(lambda x: call(x, *plain[1:]))(torch.stack([plain[0]] * 2)),  # noqa: B023
        }
        if sample.input.numel():
            checks["first"] = lambda: torch.autograd.gradcheck(call, arguments, fast_mode=True, check_forward_ad=first is None)  # noqa: B023
            if first is None:
                checks["second"] = lambda: torch.autograd.gradgradcheck(call, arguments, fast_mode=True)  # noqa: B023
        if compiled and i < 3:
            checks["compiled"] = lambda: torch.compile(call, backend="aot_eager", dynamic=False)(*plain)  # noqa: B023
        for name, check in checks.items():
            try:
                check()
            except Exception:
                failed.append((i, name))
        torch._dynamo.reset() if compiled else None
    return failed, values


def torch_operators():
    from torch.testing._internal.common_methods_invocations import op_db

    names = {f"linalg.{name}" for name in TORCH_OPERATORS} | set(TORCH_OTHERS)
    return [op for op in op_db if op.name in names]


@pytest.fixture
def torch_everywhere(monkeypatch):
    import lapwing.doors.cells as cells
    from lapwing.doors.torch import OPERATIONS

    pytest.importorskip("expecttest")
    for operation in OPERATIONS:
        monkeypatch.setitem(cells.AHEAD, (operation, "cpu"), (cells.Cell(10**6, 1, 1.0),))


@pytest.mark.filterwarnings("ignore")
def test_some_samples_of_torch(torch_everywhere):
    names = {"linalg.solve", "linalg.det", "linalg.lu_factor", "linalg.lstsq", "linalg.eigh", "cholesky_solve"}
    compare_samples([op for op in torch_operators() if op.name in names], first=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_samples_of_torch(torch_everywhere):
    """torch's own samples of the operators that the door serves, and of those that are made of them."""
    compare_samples(torch_operators(), compiled=True)


def compare_samples(operators, **options):
    import torch

    import lapwing as lw

    accepted = 0
    for op in operators:
        state = torch.get_rng_state()
        expected, own = failures_of(op, **options)
        torch.set_rng_state(state)
        with lw.install("torch") as handle:
            got, ours = failures_of(op, **options)
        accepted += sum(calls["lapwing"] for calls in handle.report().values())
        assert got == expected, (op.name, op.variant_test_name)
        for (i, x), (j, y) in zip(own, ours, strict=True):
            assert i == j
            torch.testing.assert_close(y, x, rtol=1e-6, atol=1e-8, msg=lambda text: f"{op.name} {i}: {text}")  # noqa: B023
    assert accepted
