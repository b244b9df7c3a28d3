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
# NumPy computes these in double precision and compares seven digits of float32
FLOAT32 = {"TestDet::test_generalized_sq_cases", "TestNormSingle::test_axis", "TestEighCases::test_generalized_herm_cases"}


def run(door, least, path, *options):
    """Failed tests, and how many calls lapwing took."""
    here = str(Path(__file__).parent)
    environment = os.environ | {"LAPWING_DOOR": door, "LAPWING_LEAST": str(least)}
    environment["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore"]
    command += ["-p", "installed"] if door else []
    done = subprocess.run([*command, *options, str(path)], capture_output=True, text=True, env=environment, cwd=here)
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-2000:] + done.stderr[-2000:]
    taken = re.search(r"taken by lapwing: (\d+)", done.stdout)
    return set(re.findall(r"FAILED \S+?::(\S+)", done.stdout)), int(taken[1]) if taken else 0


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
    got, taken = run("numpy", 1, NUMPY_TESTS / "test_linalg.py", *options)
    assert taken and got - FLOAT32 == expected - FLOAT32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_samples_of_torch(monkeypatch):
    """torch's own samples of the operators that the door serves: values, first and second derivatives, forward mode, vmap."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    import lapwing as lw
    from lapwing.doors.ahead import AHEAD, Cells

    names = (
        "cholesky",
        "cholesky_ex",
        "eig",
        "eigvals",
        "eigh",
        "eigvalsh",
        "inv",
        "inv_ex",
        "pinv",
        "qr",
        "svd",
        "svdvals",
        "cond",
    )
    for row in list(AHEAD):
        monkeypatch.setitem(AHEAD, row, Cells(10**6, 1))

    def failures():
        failed = []
        for op in [o for o in op_db if o.name in {f"linalg.{name}" for name in names}]:
            for i, sample in enumerate(op.sample_inputs("cpu", torch.float64, requires_grad=True)):

                def call(*x, op=op, sample=sample):
                    result = op.gradcheck_wrapper(op.get_op(), *x, **sample.kwargs)
                    return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result

                arguments = (sample.input, *sample.args)
                checks = [lambda: torch.func.vmap(lambda x: call(x, *sample.args))(torch.stack([sample.input.detach()] * 2))]  # noqa: B023
                if sample.input.numel():
                    checks.append(lambda: torch.autograd.gradcheck(call, arguments, fast_mode=True, check_forward_ad=True))  # noqa: B023
                    checks.append(lambda: torch.autograd.gradgradcheck(call, arguments, fast_mode=True))  # noqa: B023
                for k, check in enumerate(checks):
                    try:
                        check()
                    except Exception:
                        failed.append((op.name, op.variant_test_name, i, k))
        return failed

    expected = failures()
    with lw.install("torch") as handle:
        got = failures()
    assert sum(calls["lapwing"] for calls in handle.report().values()) > 1000
    assert got == expected
