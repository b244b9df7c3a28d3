"""lapwing bench for eigenvalues: checks that fail when they should, peers, parts of a spectrum, records, pictures."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapwing.__main__ import main
from lapwing.bench import check as check_module
from lapwing.bench import check_eigh
from lapwing.bench.case import Case, Entry
from lapwing.bench.check import LIMIT
from lapwing.bench.check_eigh import check_pairs, check_values
from lapwing.bench.libraries import installed, open_library
from lapwing.bench.matrices import make_matrix
from lapwing.bench.measure import every_engine, measure, peer_entries
from lapwing.bench.operations import operation_of
from lapwing.bench.peers import peer_text
from lapwing.bench.plot import workspace_of
from lapwing.bench.record import Grid, grid_for, measure_record, record_of, rule_in_words
from lapwing.cli import record as record_command
from lapwing.core.native import native
from lapwing.core.problem import DTYPES
from lapwing.core.records import load_record, rules_of

needs_native = pytest.mark.skipif(native is None, reason="the native core was not built")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def case_of(n=20, batch=1, dtype="float64", part=None, matrix="random", operation="eigh", **more):
    return Case(n, batch, dtype, matrix=matrix, operation=operation, part=part, **more)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("matrix", ["random", "kernel", "laplacian", "wishart", "wishart_shift"])
@pytest.mark.parametrize("batch", [1, 3])
def test_matrices_are_hermitian(dtype, matrix, batch):
    case = case_of(33, batch, dtype, matrix=matrix)
    a = make_matrix(case)
    assert a.dtype == dtype and a.shape == case.shape and a.flags.c_contiguous
    np.testing.assert_array_equal(a, np.conj(np.swapaxes(a, -1, -2)))
    assert np.linalg.eigvalsh(a.astype("complex128")).min() > -1e-5
    assert batch == 1 or not np.array_equal(a[0], a[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("batch", "part"), [(1, None), (4, None), (1, (17, 3)), (1, (0, 3)), (4, (15, 5)), (1, (5, 6))])
def test_check_accepts_right_pairs(dtype, exact, batch, part, monkeypatch):
    if not exact:
        monkeypatch.setattr(check_module, "_EXACT_WORK", -1)
    a = make_matrix(case_of(20, batch, dtype))
    w, v = np.linalg.eigh(a)
    if part:
        cut = slice(part[0], sum(part))
        w, v = w[..., cut], v[..., cut]
    found = check_pairs(a, w, v, part=part)
    assert found.ok and found.orthogonality <= LIMIT and found.estimated is not exact
    assert check_values(a, w, part=part).ok


@pytest.mark.parametrize("exact", [True, False])
def test_check_refuses_wrong_pairs(exact, monkeypatch):
    if not exact:
        monkeypatch.setattr(check_module, "_EXACT_WORK", -1)
    a = make_matrix(case_of(20, 2, matrix="wishart"))
    w, v = np.linalg.eigh(a)
    moved = v.copy()
    moved[1, 3, 4] += 1e-8
    skewed = v.copy()
    skewed[0, :, 3] *= 1 + 1e-8
    assert not check_pairs(a, w + 1e-8, v).ok
    assert not check_pairs(a, w, moved).ok
    assert check_pairs(a, w, skewed).orthogonality > LIMIT
    assert not check_pairs(a, np.full_like(w, np.nan), np.full_like(v, np.nan)).ok
    assert not check_pairs(a, w.astype("float32"), v).ok
    assert "ascending" in str(check_pairs(a, w[:, ::-1].copy(), v[:, :, ::-1].copy()))
    for at, asked in ((slice(14, 18), (16, 4)), (slice(1, 5), (0, 4)), (slice(8, 12), (7, 4))):
        wrong = check_pairs(a, w[:, at], v[:, :, at], part=asked)
        assert not wrong.ok and "not the eigenvalues that were asked for" in str(wrong)
        assert not check_values(a, w[:, at], part=asked).ok


def test_check_of_values_of_a_large_matrix(monkeypatch):
    monkeypatch.setattr(check_eigh, "_ALL_VALUES", 4)
    a = make_matrix(case_of(20))
    w = np.linalg.eigvalsh(a)
    assert check_values(a, w).ok and not check_values(a, w * (1 + 1e-9)).ok
    for part in ((16, 4), (0, 4)):
        right = w[part[0] : sum(part)]
        assert check_values(a, right, part=part).ok
        assert not check_values(a, right + 1e-9, part=part).ok and not check_values(a, right - 1e-9, part=part).ok


def test_check_on_the_device():
    torch = pytest.importorskip("torch")
    library, case = open_library("torch"), case_of(40, part=(36, 4))
    a = torch.from_numpy(make_matrix(case))
    w, v = torch.linalg.eigh(a)
    operation = operation_of("eigh")
    assert operation.check_on_device(library, a, (w[36:], v[:, 36:]), case).ok
    assert not operation.check_on_device(library, a, (w[35:39], v[:, 35:39]), case).ok
    assert operation.check_on_device(library, a, (w, v), case_of(40)).ok
    assert not operation.check_on_device(library, a, (w, v + 1e-7), case_of(40)).ok


@pytest.mark.parametrize("operation", ["eigh", "eigvalsh"])
@pytest.mark.parametrize("name", ["numpy", "scipy", "torch", "tensorflow"])
@pytest.mark.parametrize(("upper", "part"), [(False, None), (True, None), (False, (17, 3)), (True, (0, 2))])
def test_libraries_give_the_same_pairs(operation, name, upper, part):
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    library, case = open_library(name), case_of(20, 1, "complex128", part, operation=operation, upper=upper)
    entries = [Entry("lapwing", "numpy" if name == "scipy" else name, "auto"), Entry(name, name)]
    row = measure(case, entries, repeat=1)
    if row.absent:  # of a random matrix LAPACK's vectors may be a little worse than is allowed; hardly of two
        row = measure(case, entries, repeat=1)
    assert not row.wrong and not row.absent and [t.name for t in row.peers] == [name]
    assert library.name in peer_text(name, case)


def test_lanczos_takes_part_where_it_can():
    pytest.importorskip("scipy")
    names = lambda case: [e.name for e in peer_entries("cpu", ("numpy", "scipy"), case)[0]]  # noqa: E731
    assert names(case_of(40)) == ["numpy", "scipy"]
    assert names(case_of(40, part=(36, 4))) == ["numpy", "scipy", "eigsh"]
    assert names(case_of(40, part=(0, 4), matrix="wishart_shift")) == ["numpy", "scipy", "eigsh", "eigsh_inverse"]
    assert names(case_of(40, 3, part=(36, 4))) == ["numpy", "scipy"]
    for part in ((36, 4), (0, 4)):
        case = case_of(40, part=part, matrix="wishart_shift")
        row = measure(case, [Entry("lapwing", "numpy", "auto"), *peer_entries("cpu", ("scipy",), case)[0]], repeat=1)
        assert not row.absent and {"scipy", "eigsh"} <= {t.name for t in row.peers}


def test_a_wrong_part_is_not_timed(monkeypatch):
    def shifted(library, case, engine, on_fail):
        return lambda a: tuple(x[..., -5:-1] for x in np.linalg.eigh(a))

    monkeypatch.setattr("lapwing.bench.measure.operation_of", lambda name: replace(operation_of(name), through=shifted))
    row = measure(case_of(20, part=(16, 4)), [Entry("lapwing", "numpy", "auto")], repeat=1)
    assert row.wrong == ("lapwing",) and not row.ours


def test_work_of_a_case():
    whole, part, values = case_of(100), case_of(100, part=(90, 10)), case_of(100, operation="eigvalsh")
    assert whole.flops == pytest.approx(16 / 3 * 1e6) and values.flops == pytest.approx(4 / 3 * 1e6)
    assert whole.bytes_moved == 2 * 80_000 and part.bytes_moved == 88_000 and values.bytes_moved == 80_000
    assert str(part) == "eigh float64 n=100 batch=1 eigenvalues 90:100"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("operation", ["eigh", "eigh_part"])
def test_grids(device, quick, operation):
    cases = grid_for(device, quick=quick, operation=operation).cases(device)
    assert 0 < len(cases) < 600
    assert all(c.operation == "eigh" and (c.part is None) == (operation == "eigh") for c in cases)
    assert all(c.problem.at_an_end for c in cases if c.part)


@needs_native
def test_record_of_a_small_grid(monkeypatch, tmp_path, capsys):
    grids = {
        "eigh": Grid((3, 16), (1, 8), ("float32",), seconds=0.1, operation="eigh"),
        "eigh_part": Grid((40, 80), (2, 4), ("float64",), seconds=0.1, operation="eigh_part"),
    }
    monkeypatch.setattr(record_command, "grid_for", lambda *_, operation, **__: grids[operation])
    output = tmp_path / "r.json"
    assert main(["bench", "eigh", "--record", "--repeat", "1", "--output", str(output)]) == 0
    whole, part = load_record(output), load_record(tmp_path / "r-part.json")
    assert whole.operation == "eigh" and part.operation == "eigh_part"
    assert {(m.n, m.batch) for m in part.measurements} == {(40, 2), (40, 4), (80, 2), (80, 4)}
    assert "values" in capsys.readouterr().out
    rows = measure_record(grids["eigh_part"], "cpu", "numpy", repeat=1)
    assert rule_in_words(rules_of(record_of(rows, "cpu", "eigh_part"))[0], "eigh_part")


@needs_native
def test_workspace_of_every_engine():
    case = case_of(64, part=(60, 4))
    found = workspace_of(case, 4096)
    assert found["lapack"] > 0 and "krylov" in found
    assert {e.name for e in every_engine("numpy", [case])} >= {"lapack", "krylov"}


@pytest.mark.parametrize("operation", ["eigh", "eigvalsh"])
def test_command(operation, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["bench", operation, "--sizes", "12,30", "--repeat", "1", "--subset", "-4:", "--matrix", "wishart"]
    arguments += ["--peers", "numpy,scipy", "--json", str(tmp_path / "o.json"), "--plot", str(tmp_path / "o.png")]
    assert main(arguments) == 0
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "o.json").read_text())
    assert [row["part"] for row in data["rows"]] == [[8, 4], [26, 4]]
    assert "eigsh" in data["peer_calls"] or not installed("scipy")
    assert f"{operation} -4: through numpy" in capsys.readouterr().out


def test_explain_with_a_subset(capsys):
    assert main(["explain", "eigh", "--shape", "3000x3000", "--subset", "-10:"]) == 0
    assert "10 of 3000 eigenvalues" in capsys.readouterr().out
    assert main(["explain", "cholesky", "--shape", "4x4", "--subset", ":2"]) == 2
    assert main(["explain", "eigh", "--shape", "4x4", "--subset", "3:3"]) == 2
    assert "selects none of 4" in capsys.readouterr().err


def test_stages_of_a_call():
    """Kernels in their order: products belong to the stage whose own kernel comes next."""
    by_stage = runpy.run_path(str(BENCHMARKS / "gpu.py"))["_by_stage"]
    kernels = [("tridiagonal_copy", 1), ("two_stage_panel", 2), ("gemm", 4), ("two_stage_band", 8), ("two_stage_chase", 16),
               ("divide_product", 32), ("two_stage_blocks", 64), ("two_stage_back", 128), ("gemm", 256),
               ("tridiagonal_give", 512)]  # fmt: skip
    assert by_stage([(name, 1e3 * ms) for name, ms in kernels]) == {
        "to a band": 15, "to tridiagonal form": 16, "spectrum": 32, "back to the band": 192, "back to the matrix": 768,
        "of which panels": 2,
    }  # fmt: skip
    values = [*kernels[:5], ("tridiagonal_values", 3)]
    assert by_stage([(name, 1e3 * ms) for name, ms in values]) == {
        "to a band": 15, "to tridiagonal form": 16, "spectrum": 3, "of which panels": 2,
    }  # fmt: skip


@pytest.mark.slow
def test_benchmark_of_two_stages(monkeypatch, tmp_path):
    """Without a GPU, so without that engine: the steps and the record."""
    pytest.importorskip("torch")
    output = tmp_path / "out.json"
    arguments = ["gpu.py", "--only", "two_stage", "--repeat", "1", "--output", str(output), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / "gpu.py"), run_name="__main__")
    assert ended.value.code == 0
    records = json.loads(output.read_text())["parts"]["two_stage"]["records"]
    assert [json.loads(Path(path).read_text())["operation"] for path in records] == ["eigh", "eigvalsh"]


@pytest.mark.parametrize("script", ["cpu.py", "gpu.py"])
@pytest.mark.parametrize("part", ["eigh", "solve"])
@pytest.mark.slow
def test_benchmark_scripts(script, part, monkeypatch, tmp_path, capsys):
    """Small: the steps, not the figures."""
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    output = tmp_path / "out.json"
    arguments = [script, "--only", part, "--quick", "--repeat", "1", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments + (["--device", "cpu"] if script == "gpu.py" else []))
    with pytest.raises(SystemExit):
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    data = json.loads(output.read_text())
    assert data["rows"] and (data.get("verdicts") or data["parts"][part]["verdicts"])
