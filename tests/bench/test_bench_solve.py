"""lapwing bench for systems, inverses and decompositions: checks that fail when they should, peers, pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lapwing.__main__ import main
from lapwing.bench import check as check_module
from lapwing.bench import matrices
from lapwing.bench.case import Case, Entry
from lapwing.bench.check_solve import check_solution
from lapwing.bench.libraries import installed, open_library
from lapwing.bench.matrices import make_input, make_matrix
from lapwing.bench.measure import measure, peer_entries
from lapwing.bench.operations import operation_of
from lapwing.bench.peers import peer_text, special_routines
from lapwing.core.problem import DTYPES

TALL = {"rows": 37}
CASES = {
    "solve": {"k": 2},
    "solve pos": {"assume": "pos", "upper": True},
    "inv": {},
    "inv pos": {"assume": "pos"},
    "qr": TALL,
    "svd": TALL,
    "lstsq": {**TALL, "k": 3},
}


def case_of(name, n=9, batch=1, dtype="float64", **more):
    return Case(n, batch, dtype, operation=name.split()[0], **{**CASES[name], **more})


def right(name, given):
    """By numpy."""
    a, b = given if isinstance(given, tuple) else (given, None)
    if name.startswith("solve"):
        return np.linalg.solve(a, b)
    if name.startswith("inv"):
        return np.linalg.inv(a)
    if name == "lstsq":
        return np.linalg.pinv(a) @ b
    return tuple(np.linalg.qr(a) if name == "qr" else np.linalg.svd(a, full_matrices=False))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [1, 3])
def test_matrices(name, dtype, batch):
    case = case_of(name, batch=batch, dtype=dtype)
    for condition in (None, 1e4):
        chosen = case_of(name, batch=batch, dtype=dtype, condition=condition)
        given = make_input(chosen, seed=1)
        a, b = given if isinstance(given, tuple) else (given, None)
        assert a.dtype == dtype and a.shape == case.shape == (*case.lead, case.height, 9) and a.flags.c_contiguous
        assert b is None or (b.dtype == dtype and b.shape == (*case.lead, case.height, case.k))
        assert batch == 1 or not np.array_equal(a[0], a[1])
        if case.assume == "pos":
            np.testing.assert_array_equal(a, np.conj(np.swapaxes(a, -1, -2)))
            assert np.linalg.eigvalsh(a).min() > 0
        if condition is not None:
            np.testing.assert_allclose(np.linalg.cond(a), condition, rtol=2e-2)
    assert case.input_bytes == case.batch * case.height * (9 + (case.k if b is not None else 0)) * a.itemsize


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("assume", ["pos", "general"])
def test_a_large_matrix_of_chosen_condition(dtype, assume, monkeypatch):
    """Made by rotations of some rows at a time; its order need not be a multiple of theirs."""
    monkeypatch.setattr(matrices, "_ORTHOGONAL", 50)
    a = make_matrix(Case(150, dtype=dtype, operation="solve", assume=assume, condition=1e3))
    np.testing.assert_allclose(np.linalg.svd(a, compute_uv=False), np.geomspace(1, 1e-3, 150), rtol=1e-10)
    assert np.count_nonzero(abs(a) > 1e-9) > 0.9 * a.size
    assert (assume == "pos") is bool((a == a.conj().T).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("batch", [1, 4])
def test_check_accepts_right_answers(name, dtype, exact, batch, monkeypatch):
    monkeypatch.setattr(check_module, "_EXACT_WORK", np.inf if exact else -1)
    monkeypatch.setattr(check_module, "_BLOCK", 700)  # two matrices at a time
    case = case_of(name, batch=batch, dtype=dtype)
    given = make_input(case, seed=1)
    found = check_solution(given, right(name, given), case)
    assert found.ok, found
    assert (found.orthogonality is not None) is (name in ("qr", "svd"))
    assert found.estimated is (not exact and case.operation not in ("solve", "lstsq"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("exact", [True, False])
def test_check_refuses_wrong_answers(name, exact, monkeypatch):
    monkeypatch.setattr(check_module, "_EXACT_WORK", np.inf if exact else -1)
    case = case_of(name, batch=2)
    given = make_input(case, seed=1)
    good = right(name, given)
    parts = good if isinstance(good, tuple) else (good,)
    for i, part in enumerate(parts):
        for wrong in (part * (1 + 1e-9), np.full_like(part, np.nan), part[:1], part.astype("complex64")):
            answer = (*parts[:i], wrong, *parts[i + 1 :])
            assert not check_solution(given, answer if len(answer) > 1 else wrong, case).ok
        moved = part.copy()
        moved[1].flat[3] += 1e-8  # one number of one matrix
        answer = (*parts[:i], moved, *parts[i + 1 :])
        assert not check_solution(given, answer if len(answer) > 1 else moved, case).ok


def test_check_looks_at_order_and_triangle():
    case = case_of("svd")
    a = make_input(case)
    u, s, vh = right("svd", a)
    assert "not descending" in str(check_solution(a, (u[:, ::-1], s[::-1].copy(), vh[::-1]), case))
    assert not check_solution(a, (-u, -s, vh), case).ok
    case = case_of("qr")
    assert not check_solution(a, (u, s[:, None] * vh), case).triangle_is_zero


@pytest.mark.parametrize("name", CASES)
def test_check_on_the_device(name):
    torch = pytest.importorskip("torch")
    case = case_of(name, 40, **({"rows": 80} if "rows" in CASES[name] else {}))
    given = make_input(case)
    place = lambda x: tuple(map(place, x)) if isinstance(x, tuple) else torch.from_numpy(np.ascontiguousarray(x))  # noqa: E731
    placed, found = place(given), place(right(name, given))
    check = operation_of(case.operation).check_on_device
    assert check(open_library("torch"), placed, found, case).ok
    last = found[-1] if isinstance(found, tuple) else found
    last += 1e-7
    assert not check(open_library("torch"), placed, found, case).ok


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "scipy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("batch", [1, 2])
def test_libraries_give_right_answers(name, library, batch):
    """Each of their calls; the batch is left out where a library does not take one."""
    if not installed(library):
        pytest.skip(f"{library} is not installed")
    case = case_of(name, batch=batch, dtype="float32")
    peers, _ = peer_entries("cpu", (library,), case)
    row = measure(case, [Entry("lapwing", library if library in ("torch", "jax") else "numpy", "auto"), *peers], repeat=1)
    assert not row.wrong and len(row.peers) + len(row.absent) == len(peers)
    assert row.peers or batch > 1, row.absent
    for timing in row.peers:
        text = peer_text(timing.name, case)
        assert library in text and (name.split()[0] in text or "cholesky" in text)


def test_routines_beside_the_usual_call():
    names = lambda name, **more: [n for n, _ in special_routines(case_of(name, **more))]  # noqa: E731
    assert names("solve") == ["lu_solve"] and names("solve pos") == ["cho_solve", "torch_solve", "jax_solve"]
    assert names("inv") == [] and names("inv pos") == ["torch_inv", "jax_inv"]
    assert names("svd") == [] and names("svd", device="cuda") == ["gesvd", "gesvdj", "gesvda"]


def test_work_of_a_case():
    assert case_of("solve", 100, k=1).flops == pytest.approx(2 / 3 * 1e6 + 2e4)
    assert case_of("inv pos", 100).flops == pytest.approx(1e6)
    assert case_of("svd", 10, rows=1000).bytes_moved == 8 * (2 * 10_000 + 100)
    assert str(case_of("solve pos", 100, precision="mixed", condition=1e5)) == (
        "solve pos mixed float64 n=100 batch=1 condition 1e+05"
    )
    assert str(case_of("lstsq")) == "lstsq float64 37 x 9 batch=1 k=3"


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (["solve", "--assume", "pos", "--precision", "mixed", "--rhs", "2", "--condition", "100"],
         "solve pos mixed k=2 condition 1e+02 through numpy"),
        (["solve", "--batch", "3"], "solve through numpy"),
        (["inv", "--assume", "pos", "--upper", "--matrix", "wishart_shift"], "inv pos through numpy"),
        (["svd", "--rows", "50"], "svd of 50 x n through numpy"),
        (["qr", "--rows", "50", "--batch", "2"], "qr of 50 x n through numpy"),
        (["lstsq", "--rows", "50", "--rhs", "2"], "lstsq of 50 x n k=2 through numpy"),
    ],
)  # fmt: skip
def test_command(arguments, title, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["bench", *arguments, "--sizes", "6,20", "--repeat", "1", "--peers", "numpy,scipy"]
    arguments += ["--json", str(tmp_path / "o.json"), "--plot", str(tmp_path / "o.png")]
    assert main(arguments) == 0
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "o.json").read_text())
    assert {"k", "rows", "assume", "precision", "condition", "operation", "n", "batch", "dtype"} <= set(data["rows"][0])
    assert all(check["ok"] for row in data["rows"] for check in row["checks"].values()) and data["peer_calls"]["numpy"]
    assert title in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cholesky", "--rows", "9"], "--rows is for qr and svd and svdvals and lstsq"),
        (["inv", "--rhs", "2"], "--rhs is for solve and lstsq"),
        (["inv", "--precision", "mixed"], "--precision is for solve"),
        (["qr", "--assume", "pos"], "--assume is for solve and inv and slogdet"),
        (
            ["eigh", "--condition", "9"],
            "--condition is for solve and inv and slogdet and lu and qr and svd and svdvals and lstsq",
        ),
        (["solve", "--rhs", "0"], "--rhs 0 is less than 1"),
        (["solve", "--condition", "nan"], "--condition nan is less than 1"),
        (["svd", "--matrix", "known"], "--matrix known: svd is measured with random"),
        (["solve", "--subset", ":2"], "--subset is for eigh and eigvalsh"),
        (["cholesky", "--subset", "-4:"], "--subset is for eigh and eigvalsh"),
        (["cholesky", "--matrix", "wishart"], "--matrix wishart: cholesky is measured with random, known"),
        (["solve", "--upper"], "--upper is for cholesky, eigenvalues and --assume pos"),
        (["svd", "--upper"], "--upper is for cholesky, eigenvalues and --assume pos"),
        (["solve", "--record"], "--record is for cholesky and eigh"),
        (["eigvalsh", "--record"], "eigvalsh uses the record of eigh"),
        (["cholesky", "--record", "--rhs", "2"], "--record measures its own grid; --rhs has no effect"),
        (["eigh", "--record", "--subset", "-4:"], "--record measures its own grid; --subset has no effect"),
        (["solve", "--precision", "mixed", "--dtype", "float32"], "--precision mixed is for float64 and complex128"),
        (["solve", "--matrix", "known", "--condition", "9"], "--matrix known has no effect"),
        (["svd", "--rows", "5", "--sizes", "4,6"], "--rows 5 is less than 6"),
        (["eigh", "--subset", "4"], "--subset '4' is not a slice"),
        (["eigh", "--subset", "a:b"], "--subset 'a:b' is not a slice"),
        (["eigh", "--subset", "1:9:2"], "--subset '1:9:2' is not a slice"),
        (["eigh", "--subset", "5:5"], "--subset 5:5 selects none of 4 eigenvalues"),
        (["eigh", "--engine", "krylov"], "engine='krylov' cannot take this call"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == ""
