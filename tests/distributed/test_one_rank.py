"""ShardedMatrix in one process: what explain, the log and the report say, and what is refused. No MPI is needed."""

import logging

import numpy as np
import pytest

import lapwing as lw
from lapwing.distributed import ShardedMatrix
from lapwing.distributed.backends import elpa
from lapwing.distributed.backends.choice import BACKENDS, _others, explained
from lapwing.distributed.backends.protocol import Array

N = 40
A = np.random.default_rng(0).standard_normal((N, N)) + 8 * np.eye(N)


def sharded(a=A):
    return ShardedMatrix.scatter(a, None)


def test_det(caplog):
    assert np.isclose(lw.det(sharded()), np.linalg.det(A), rtol=10 * N * np.finfo(float).eps)
    assert lw.det(sharded(1e300 * A)) == np.inf and lw.det(sharded(np.zeros((3, 3)))) == 0  # warnings are errors
    assert lw.explain(lw.det, sharded()) == lw.explain(lw.det, A)
    with pytest.raises(lw.NotPositiveDefiniteError, match=r"^det: "):
        lw.det(sharded(-A), assume="pos")
    with caplog.at_level(logging.INFO, "lapwing"):
        lw.det(sharded())
    assert all(line.startswith("det") for line in caplog.messages) and caplog.messages


@pytest.mark.parametrize("engine", ["auto", "xla"])
@pytest.mark.parametrize("assume", ["general", "pos"])
def test_det_is_planned_as_slogdet(engine, assume):
    plans = [lw.explain(op, lw.spec((900, 900), sharding=4), engine=engine, assume=assume) for op in (lw.det, lw.slogdet)]
    assert [plan.operation for plan in plans] == ["det", "slogdet"]
    assert (plans[0].memory, plans[0].seconds, plans[0].tile) == (plans[1].memory, plans[1].seconds, plans[1].tile)


def test_refinement_is_said_where_it_happens(caplog):
    with caplog.at_level(logging.INFO, "lapwing"):
        f = lw.factor(sharded(), assume="general", precision="mixed")
        x = f.solve(np.ones(N))
    assert f.report["precision"] == "mixed" and f.report["fallback"] is False and f.report["steps"] > 0
    assert not any("full precision" in line for line in caplog.messages)
    assert np.allclose(A @ x, 1, rtol=0, atol=10 * N * np.finfo(float).eps * np.abs(x).max() * N)


def test_refinement_of_gathered_matrices_is_planned():
    described = lw.spec((N, N), sharding=2)
    request = lw.solve.request(described, precision="mixed")
    gathered = Array("dtensor", (N, N), "float64", "cpu", 2, None, "torch", False)
    assert "full precision" not in explained(request, gathered).note
    assert "full precision" in explained(request, Array("spec", (N, N), "float64", "cpu", 2)).note
    assert {b.name for b in BACKENDS if b.refines} == {"alone", "gathered"}


def test_hints_name_engines_that_are_installed(monkeypatch):
    array, request = Array("matrix", (N, N), "float64", "cpu", 4), lw.eigh.request(lw.spec((N, N)))
    backends = {backend.name: type(backend) for backend in BACKENDS}
    for name in ("cusolvermp", "elpa"):
        monkeypatch.setattr(backends[name], "missing", lambda self, device: "not installed")
    monkeypatch.setattr(backends["scalapack"], "missing", lambda self, device: "")
    assert _others(request, array) == "\nhint: use one of 'auto', 'scalapack'"
    described = Array("spec", (N, N), "float64", "cuda", 4)  # planned for another machine
    assert "'cusolvermp'" in _others(request, described)


def test_missing_libraries_raise_one_type(monkeypatch):
    monkeypatch.setattr(elpa, "missing", lambda: "elpa: libelpa.so.19 cannot be loaded\nhint: apt install libelpa19")
    with pytest.raises(RuntimeError, match=r"^eigh: elpa: libelpa") as caught:
        lw.eigh(sharded(), engine="elpa")
    assert not isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": "right"}, r'side="right" is not supported for sharded matrices\nhint: .*transpose'),
        ({"unit": True, "assume": "lower"}, r"unit=True is not supported for sharded matrices\nhint: .*ones"),
        ({"unit": True}, r'unit=True goes with assume="lower"'),
        ({"side": "middle"}, r"side='middle' is not known\nhint: use one of 'left', 'right'"),
    ],
)
def test_options_without_a_routine(options, words):
    with pytest.raises(ValueError, match=words):
        lw.solve(sharded(), np.ones(N), **options)


@pytest.mark.parametrize(("first", "second"), [("f8", "f4"), ("f4", "f8"), ("f4", "c8"), ("c8", "f8")])
def test_two_dtypes_are_promoted(first, second):
    a, b = A.astype(first), np.ones((N, 2), second)
    for op in (lw.solve, lw.lstsq):
        for right in (b, sharded(b)):
            x, expected = op(sharded(a), right), op(a, b)
            x, expected = (x, expected) if op is lw.solve else (x.x, expected.x)
            x = x.local if isinstance(x, ShardedMatrix) else x
            assert x.dtype == expected.dtype and np.array_equal(x, expected)
    assert lw.explain(lw.solve, lw.spec((N, N), a.dtype, sharding=2), b).operation == "solve"


def test_a_factor_keeps_its_dtype():
    f = lw.factor(sharded(), assume="general")
    assert f.solve(np.ones(N, "f4")).dtype == f.solve(sharded(np.ones((N, 1), "f4"))).dtype == np.float64
    with pytest.raises(TypeError, match=r"Factor\.solve: b has dtype complex64, which cannot be used with a of float64"):
        f.solve(np.ones(N, "c8"))
    with pytest.raises(TypeError, match="solve: b has dtype int64, which cannot be used with a of float64"):
        lw.solve(sharded(), np.ones(N, int))
