"""The command line of tune: what each step calls, with which arguments, and what it prints."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import lapwing.tune
from lapwing.__main__ import main
from lapwing.cli.tune_output import parse_budget
from lapwing.cli.usage import UsageError
from lapwing.tune.gemm import Gemm
from lapwing.tune.readers import read
from tune.cases import FakeComparison

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("90s", 90), ("1h", 3600), ("1h30m", 5400), ("45", 45), ("0.5h", 1800), ("1d", 86400)]
)
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "30x", "-3m", "1h-2m", "0s", "nan", "1e400s", "3 m"])
def test_budgets_that_are_none(text):
    with pytest.raises(UsageError, match="hint: for example 30m, 90s or 1h30m"):
        parse_budget(text)


def test_read_shows_products_and_bad_lines(tmp_path, capsys):
    log = tmp_path / "a.yaml"
    log.write_text((FIXTURES / "hipblaslt.yaml").read_text() + "- {function: matmul, M: nan, N: 1, K: 1}\n")
    assert main(["tune", "read", str(log), "8x4x2 f32 count=3", "-o", str(tmp_path / "out.csv")]) == 0
    out, errors = capsys.readouterr()
    assert "BBS_TN 16032x113x16384" in out and "SSS_NN 8x4x2" in out and f"table: {tmp_path / 'out.csv'}" in out
    assert f"{log}:3: m is 'nan', not a whole number" in errors and "3 products, 5 calls" in errors
    assert len(read(tmp_path / "out.csv").calls) == 3


def test_record_passes_the_exit_code_on(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "record", "--watch", "logs", "--", "sh", "-c", "echo own output; exit 7"]) == 7
    out, errors = capfd.readouterr()
    assert out == "own output\n" and "no matrix product was recorded" in errors and "0 products, 0 calls" in errors
    assert (tmp_path / "recorded.csv").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune"], "a command is missing"),
        (["tune", "record"], "no program was given\nhint: lapwing tune record -- python serve.py"),
        (["tune", "record", "--", "/no/such/program"], "/no/such/program cannot be started"),
        (["tune", "record", "-o", "/no/such/folder/a.csv", "--", "true"], "there is no folder /no/such/folder"),
        (["tune", "read", "/no/such/log"], "no product was found"),
        (["tune", "run", "/no/such/w"], "has no products to tune\nhint: lapwing tune configure LOG --workdir /no/such/w"),
        (["tune", "run", "w", "--budget", "soon"], "--budget 'soon' is not a time"),
        (["tune", "all", "1x2x3", "-w", "w", "--devices", "one"], "--devices 'one' is not a list of devices"),
        (["tune", "export", "/no/such/final", "--format", "vllm", "-o", "x"], "the folder /no/such/final does not exist"),
        (["tune", "merge", "/no/such/final", "-o", "x"], "the folder /no/such/final does not exist"),
        (["tune", "configure", "1x2x3", "--workdir", "w", "--keep-thr", "200"], "keep_thr is 200"),
    ],
)
def test_wrong_usage(words, said, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capfd.readouterr().err


@dataclass
class Problem:
    name: str = "BBS_TN_0"
    evaluations: int = 4
    known: int = 0
    invalid: int = 1
    best_seconds: float = 2e-6
    uplift: float = 1.5
    notes: tuple[str, ...] = ()


@dataclass
class Summary:
    problems: tuple[Problem, ...] = (Problem(),)
    seconds: float = 3.0
    reason: str = "budget"
    evaluations: int = 4


@dataclass
class Calls:
    made: list[tuple[str, tuple, dict]] = field(default_factory=list)

    def function(self, name, result):
        def call(*args, **kwargs):
            self.made.append((name, args, kwargs))
            return result(*args, **kwargs) if callable(result) else result

        return call


@pytest.fixture
def parts(monkeypatch):
    """Replace every function by one that only records its arguments."""
    calls = Calls()

    def configured(log, workdir, **options):
        (Path(workdir) / "configs").mkdir(parents=True)
        (Path(workdir) / "configs" / "BBS_TN_0.json").write_text("{}")
        options["progress"]("1/1 measured")
        gemm = log.calls[0].gemm
        return [types.SimpleNamespace(name="BBS_TN_0", gemm=gemm, count=1, seconds=3e-6, percent=100.0)]

    def searched(workdir, **options):
        options["progress"]("BBS_TN_0 device 0 cpu: 4 tried, best 2.00 us (1.500x)")
        return Summary()

    functions = {
        "configure": configured,
        "run": searched,
        "compare": ("comparison",),
        "validate.results.write": "mean 1.5x",
        "validate.pages.write": "W/report.html",
        "build": "W/final",
        "merge": ("[O] kept", "[X] refused"),
        "export": types.SimpleNamespace(path="out.csv", written=("a product",), left_out=()),
        "solvers.tune": (types.SimpleNamespace(rules=("a rule",), path="record.json"),),
    }
    for name, result in functions.items():
        monkeypatch.setattr(f"lapwing.tune.{name}", calls.function(name, result))
    return calls


def test_all_hands_over_what_it_is_told(monkeypatch, tmp_path, capsys):
    made = {}

    def steps(log, workdir, *, done, **options):
        made.update(options, log=log, workdir=workdir)
        done(Path("W/report.html"))
        done(Path("W/final"))
        return types.SimpleNamespace(comparisons=[FakeComparison(Gemm(8, 4, 2), backend="cpu")])

    monkeypatch.setattr(lapwing.tune, "all_steps", steps)
    words = ["tune", "all", str(FIXTURES / "hipblaslt.yaml"), "--workdir", str(tmp_path), "--backend", "cpu", "--budget", "10m"]
    assert main([*words, "--devices", "0,1", "--strategy", "anneal", "--seed", "5"]) == 0
    assert len(made["log"].calls) == 2 and made["workdir"] == tmp_path and made["keep_thr"] == 0.1 and made["backend"] == "cpu"
    assert (made["devices"], made["strategy"], made["seed"], made["budget"]) == ([0, 1], "anneal", 5, 600)
    out = capsys.readouterr().out
    assert "report: W/report.html" in out and "library: W/final" in out and "serves NumPy arrays" in out


def test_steps_call_their_parts(parts, tmp_path, capsys):
    w, final = tmp_path / "w", tmp_path / "final"
    final.mkdir()
    assert main(["tune", "configure", "8x4x2 bf16 TN", "--workdir", str(w), "--keep-thr", "0.5", "--budget", "1m"]) == 0
    assert main(["tune", "run", str(w), "--evaluations", "9"]) == 0
    assert main(["tune", "compare", str(w), "--minimum-us", "0.1"]) == 0
    assert main(["tune", "report", str(w)]) == 0
    assert main(["tune", "export", str(final), "--format", "tunableop", "-o", "out.csv"]) == 0
    assert main(["tune", "merge", str(final), str(final), "-o", "both", "--policy", "newest"]) == 0
    assert main(["tune", "solvers", "cholesky", "--budget", "10s", "--quick"]) == 0
    made = {name: (args, kwargs) for name, args, kwargs in parts.made}
    assert made["configure"][1]["keep_thr"] == 0.5 and made["configure"][1]["budget"] == 60
    assert made["run"][1]["evaluations"] == 9 and made["run"][1]["budget"] is None
    assert callable(made["compare"][1].pop("progress"))
    assert made["compare"][1] == {"threshold": 1.03, "minimum_us": 0.1, "devices": None}
    assert made["export"][0] == (final, "tunableop", Path("out.csv"))
    assert made["merge"] == (([final, final], Path("both")), {"policy": "newest"})
    assert made["solvers.tune"][0] == (["cholesky"],) and made["solvers.tune"][1]["budget"] == 10
    out = capsys.readouterr().out
    for text in (
        "trials: ",
        "results: ",
        "library: ",
        "report: ",
        "out.csv",
        "[X] refused",
        "a rule",
        "record: record.json",
    ):
        assert text in out, text


def test_files_for_amd_from_a_log(tmp_path, capsys):
    """Nothing can be measured, so shares are estimates; configure, run and all write the same files."""
    words = ["4096x16x14336 bf16 TN count=32", "6144x16x4096 bf16 TN"]
    steps, once = tmp_path / "steps", tmp_path / "once"
    assert main(["tune", "configure", *words, "--workdir", str(steps), "--backend", "hipblaslt"]) == 0
    assert "nothing was measured" in capsys.readouterr().out
    assert main(["tune", "run", str(steps), "--backend", "hipblaslt"]) == 0
    assert main(["tune", "all", *words, "--workdir", str(once), "--backend", "hipblaslt"]) == 0
    made = [sorted(path.name for path in (w / "tunings").iterdir()) for w in (steps, once)]
    assert made[0] == made[1] and {"BBS_TN_0.yaml", "BBS_TN_1.sh", "bench.yaml"} <= set(made[0])
    (tmp_path / "file").touch()
    assert main(["tune", "all", *words, "--workdir", str(tmp_path / "file"), "--backend", "cpu"]) == 2
    assert "file is a file" in capsys.readouterr().err
    assert main(["tune", "compare", str(steps)]) == 2
    assert "hint: lapwing tune run" in capsys.readouterr().err


def test_a_search_says_whose_budget_is_spent(capsys):
    from lapwing.cli.tune_output import print_searched

    summary = types.SimpleNamespace(problems=(), evaluations=0, seconds=1.0, reason="budget")
    print_searched(summary)
    print_searched(summary, share=True)
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "the budget is spent",
        "its share of the budget is spent",
    ]
