"""Several ranks: the same answers as one, one all-reduce a block, and no hang when a rank fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from insitu.cases import EPS, burgers
from insitu.harness import MPI_ENVIRONMENT
from lapwing import insitu
from lapwing.insitu.solver.parallel import Alone, from_fortran, open_comm

_MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def mpi(ranks: int, code: str, tmp_path: Path, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if _MPIEXEC is None:
        pytest.skip("there is no mpiexec")
    script = tmp_path / "ranks.py"
    script.write_text(PREAMBLE + code)
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([str(Path(insitu.__file__).parents[2]), tests, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | MPI_ENVIRONMENT | {"PYTHONPATH": path, "OUT": str(tmp_path)}
    command = [_MPIEXEC, "-n", str(ranks), sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


RANKS = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size, out = comm.Get_rank(), comm.Get_size(), os.environ["OUT"]
"""
PREAMBLE = """
import json, os, sys
import numpy as np
from lapwing import insitu
from insitu.cases import burgers
{ranks}
history = burgers()[::4, 1:-1]
mine = np.array_split(np.arange(256), size)[rank]
mesh = {"global_shape": (256,), "offset": (int(mine[0]),), "spacing": (0.1,)}
def hub(analyses, **options):
    return insitu.Hub(analyses, comm=comm, **({"output": out, "quiet": True, "mesh": mesh} | options))
def save(**values):
    with open(f"{out}/{size}-{rank}.json", "w") as file:
        json.dump({k: np.asarray(v).tolist() for k, v in values.items()}, file)
""".replace("{ranks}", RANKS)


# the cases that end well run in one start of the ranks, each in a folder of its own
RUNS = {2: ["AGREE", "REDUCTIONS", "WARNS", "NAN", "STOPS", "RESTART", "BRIDGE", "LIVE", "PICTURES"], 4: ["AGREE", "FAILS"]}
RUN_ALL = """
import traceback
for name, code in json.load(open(f"{out}/cases.json")).items():
    os.environ["OUT"] = f"{out}/{name}"
    try:
        exec(compile(code, name, "exec"), {})
    except BaseException:
        traceback.print_exc()
        comm.Abort(1)
    open(f"{out}/{name}/done-{rank}", "w").close()
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Runs the cases of a number of ranks at the first call; returns the folder of a case that has ended well."""
    starts: dict[int, tuple[Path, subprocess.CompletedProcess[str]]] = {}

    def result(size: int, name: str) -> Path:
        if size not in starts:
            folder = tmp_path_factory.mktemp(f"ranks{size}")
            (folder / "cases.json").write_text(json.dumps({case: PREAMBLE + globals()[case] for case in RUNS[size]}))
            for case in RUNS[size]:
                (folder / case).mkdir()
            starts[size] = folder, mpi(size, RUN_ALL, folder, timeout=120, check=False)
        folder, done = starts[size]
        assert len(list((folder / name).glob("done-*"))) == size, done.stdout + done.stderr
        return folder / name

    return result


def saved(tmp_path: Path, size: int) -> list[dict]:
    return [json.loads((tmp_path / f"{size}-{rank}.json").read_text()) for rank in range(size)]


AGREE = """
pod = insitu.POD("u", rank=8, block=16)
centred = insitu.POD("u", rank=4, centre=True, weights="mesh")
grown = insitu.POD("u", rank=2, tol=1e-5, block=16)
stats, dmd = insitu.Stats("u"), insitu.DMD(pod)
probe = insitu.Probe("u", points=[10, 200, (12.8,)])
with hub([pod, centred, grown, stats, dmd, probe]) as h:
    for n, u in enumerate(history):
        assert h.step(n, 0.004 * n, u=u[mine]) == 0, h.last_error
assert h.errors == 0, h.last_error
save(sigma=pod.sigma, centred=centred.sigma, grown=grown.sigma, modes=pod.modes(), coefficients=pod.coefficients,
     bound=pod.bound, energy=pod.energy, overall=list(stats.overall().values()), probe=probe.values(),
     eigenvalues=np.sort(np.abs(dmd.eigenvalues)))
"""


def test_ranks_agree_with_one(together, tmp_path):
    history = burgers()[::4, 1:-1]
    (tmp_path / "alone").mkdir()
    alone = PREAMBLE.replace(RANKS, f"comm, rank, size, out = None, 0, 1, {str(tmp_path / 'alone')!r}")
    exec(alone + AGREE, {})
    results = {1: saved(tmp_path / "alone", 1)} | {size: saved(together(size, "AGREE"), size) for size in (2, 4)}
    s = np.linalg.svd(history, compute_uv=False)
    for size, ranks in results.items():
        for one in ranks:
            assert one["sigma"] == ranks[0]["sigma"]  # the same bits on every rank
            assert one["coefficients"] == ranks[0]["coefficients"]
            assert np.abs(np.array(one["sigma"]) - s[:8]).max() <= 1e-12 * s[0]
            assert np.abs(np.array(one["centred"]) - results[1][0]["centred"]).max() <= 1e-12 * s[0]
            assert np.abs(np.array(one["grown"]) - results[1][0]["grown"]).max() <= 1e-12 * s[0]
            assert one["overall"] == pytest.approx(results[1][0]["overall"], rel=1e-12)
            assert np.array_equal(one["probe"], np.stack([history[:, 10], history[:, 200], history[:, 128]], axis=1))
        modes = np.concatenate([np.array(r["modes"]) for r in ranks], axis=1)
        assert np.abs(modes @ modes.T - np.eye(8)).max() <= 100 * EPS, size
        rebuilt = np.array(ranks[0]["coefficients"]) @ modes
        assert np.abs(rebuilt - history).max() < 5e-3


REDUCTIONS = """
class Counting:
    def __init__(self, comm): self.comm, self.calls = comm, []
    def __getattr__(self, name):
        value = getattr(self.comm, name)
        if name[0].isupper() and name not in ("Get_rank", "Get_size", "Free", "Dup"):
            def counted(*a, **k):
                self.calls.append((name, a[0].size if a else 0))
                return value(*a, **k)
            return counted
        return value
from lapwing.insitu.solver.parallel import Ranks
counting = Counting(comm)
pod = insitu.POD("u", rank=5, block=20)
h = insitu.Hub([pod], comm=Ranks(counting), output=None, quiet=True)
for n, u in enumerate(history[:100]):
    h.step(n, 0.0, u=u[mine])
# every block: the flags of the ranks, and the matrix
assert [name for name, _ in counting.calls] == ["Allreduce"] * 10, counting.calls
flags, matrices = counting.calls[::2], counting.calls[1::2]
assert all(n == 2 for _, n in flags) and [n for _, n in matrices] == [20**2 + 2] + [30**2 + 2] * 4, counting.calls
h.finish()
assert {name for name, _ in counting.calls} == {"Allreduce"}
"""


def test_one_all_reduce_a_block_and_no_gather(together):
    together(2, "REDUCTIONS")


FAILS = """
class Failing(insitu.Analysis):
    fields = ("u",)
    def __init__(self): self.together = []
    def on_step(self, ctx, u):
        if ctx.rank == 1 and ctx.step == 3: raise ValueError("only here")
    def on_collective(self, ctx):
        self.together.append(ctx.step); ctx.comm.sum(np.ones(1))
failing, pod = Failing(), insitu.POD("u", rank=3, block=4)
with hub([failing, pod]) as h:
    status = [h.step(n, 0.0, u=u[mine]) for n, u in enumerate(history[:20])]
assert failing.together == [0, 1, 2], failing.together
assert status[2] == 0 and status[4] == 1
assert pod.stream.count == 20
save(errors=h.errors, status=status)
"""


def test_a_rank_that_fails_locally(together):
    """All ranks skip the collective part and switch the analysis off; the others, and the solver, go on."""
    folder = together(4, "FAILS")
    assert [r["errors"] for r in saved(folder, 4)] == [0, 1, 0, 0]
    assert "only here" in (folder / "insitu-rank1.log").read_text()
    assert "another rank" in (folder / "insitu-rank0.log").read_text()


WARNS = """
class Bad(insitu.POD):
    def on_step(self, ctx, *arrays):
        if ctx.rank == 0 and ctx.step == 5: raise ValueError("once")
        super().on_step(ctx, *arrays)
pod = Bad("u", rank=3, block=4)
with hub([pod], on_error="warn") as h:
    for n, u in enumerate(history[:20]): h.step(n, 0.0, u=u[mine])
assert pod.steps == [n for n in range(20) if n not in (4, 5, 6, 7)], pod.steps
assert np.allclose(pod.sigma, np.linalg.svd(history[pod.steps], compute_uv=False)[:3])
"""


def test_a_rank_that_fails_with_the_policy_warn(together):
    """The block is dropped on all ranks, so that they stay in step."""
    together(2, "WARNS")


NAN = """
pod = insitu.POD("u", rank=3, block=8)
with hub([pod], on_error="warn") as h:
    for n, u in enumerate(history[:32]):
        u = u[mine].copy()
        if n == 11 and rank == 1: u[0] = np.nan
        h.step(n, 0.0, u=u)
assert h.errors == 1 and "step 11" in h.last_error, h.last_error
assert ("'u'" in h.last_error) == (rank == 1)
assert 11 not in pod.steps and len(pod.steps) == 31
"""


def test_nan_on_one_rank(together):
    together(2, "NAN")


STOPS = """
stop = insitu.Stop("u", when=lambda ctx, u: ctx.rank == size - 1 and ctx.step == 7)
with hub([stop]) as h:
    for n, u in enumerate(history):
        if h.step(n, 0.0, u=u[mine]) == 2: break
assert n == 7, n
steady = insitu.Stop("u", when="steady", tol=1e-3)
with hub([steady]) as h:
    for n, u in enumerate(history):
        if h.step(n, 0.0, u=1 + u[mine] * np.exp(-n)) == 2: break
save(stopped=n)
class Fails(insitu.Analysis):
    def on_step(self, ctx):
        if ctx.rank == 0 and ctx.step == 2: raise ValueError
with hub([Fails()], on_error="stop") as h:
    for n in range(9):
        if h.step(n, 0.0) == 2: break
assert n == 2, n
"""


def test_all_ranks_stop_together(together):
    folder = together(2, "STOPS")
    assert len({r["stopped"] for r in saved(folder, 2)}) == 1


RESTART = """
def make(): return [insitu.POD("u", rank=4, block=8, centre=True), insitu.Stats("u"), insitu.Probe("u", points=[3, 250])]
whole = make()
with hub(whole) as h:
    for n, u in enumerate(history[:50]): h.step(n, 0.0, u=u[mine])
first = hub(make())
for n, u in enumerate(history[:29]): first.step(n, 0.0, u=u[mine])
first.checkpoint(f"{out}/c")
again = make()
with hub(again) as h:
    h.restore(f"{out}/c")
    for n, u in enumerate(history[29:50]): h.step(29 + n, 0.0, u=u[mine])
for a, b in zip(whole, again):
    a, b = a.results(), b.results()
    for name in a: assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes(), name
# one rank's part is of another step: nobody goes on
if rank == 1:
    second = insitu.Hub(make(), output=None, quiet=True)
    os.remove(f"{out}/c.rank1.npz")
comm.Barrier()
try:
    hub(make()).restore(f"{out}/c")
except insitu.CheckpointError as error:
    assert ("another rank" in str(error)) == (rank == 0), error
else:
    raise SystemExit("restored")
"""


def test_restart_of_ranks(together):
    together(2, "RESTART")


def test_an_error_in_the_collective_part_aborts(tmp_path):
    code = """
class Bad(insitu.Analysis):
    def on_step(self, ctx): pass
    def on_collective(self, ctx):
        if ctx.rank == 1: raise ValueError("half way")
        ctx.comm.sum(np.ones(1))
with hub([Bad()]) as h:
    h.step(0, 0.0)
print("not reached")
"""
    done = mpi(2, code, tmp_path, timeout=30, check=False)
    assert done.returncode != 0 and "half way" in done.stderr and "not reached" not in done.stdout


@pytest.mark.parametrize("way", ["kill", "raise"])
def test_a_dead_rank_does_not_hang_the_others(way, tmp_path):
    """The launcher notices; we add no waiting of our own."""
    ending = "os.kill(os.getpid(), 9)" if way == "kill" else "raise RuntimeError('solver failed')"
    code = f"""
pod = insitu.POD("u", rank=3, block=4)
sys.excepthook = lambda *a: (sys.__excepthook__(*a), comm.Abort(3))
with hub([pod]) as h:
    for n, u in enumerate(history):
        if rank == 1 and n == 10: {ending}
        h.step(n, 0.0, u=u[mine])
print("not reached")
"""
    begin = time.monotonic()
    done = mpi(2, code, tmp_path, timeout=40, check=False)
    assert done.returncode != 0 and "not reached" not in done.stdout and time.monotonic() - begin < 30


BRIDGE = """
if rank == 0:
    with open(f"{out}/script.py", "w") as file:
        file.write("from lapwing import insitu\\nimport os\\n"
                   "if os.environ.get('FAIL') == os.environ.get('PMI_RANK', '0'): import no_such_module\\n"
                   "analyses = [insitu.POD('u', rank=3, block=8)]\\n")
comm.Barrier()
from lapwing.insitu.solver import bridge
options = json.dumps({"output": out, "quiet": True})
session = bridge.start(f"{out}/script.py", options, comm.py2f())
assert session.error() == "" and session.hub.comm.size == size
for n, u in enumerate(history[:20]):
    part = u[mine].copy()
    session.field("u", part.ctypes.data, part.shape, None, "f", 64, 1, 0, 0, False)
    assert session.step(n, 0.0) == 0
pod = session.hub.analyses[0]
assert session.finalize() == 0
assert np.allclose(pod.sigma, np.linalg.svd(history[:20], compute_uv=False)[:3])
# a script that fails on one rank only: nobody starts
os.environ["FAIL"], os.environ["PMI_RANK"] = "1", str(rank)
session = bridge.start(f"{out}/script.py", options, comm.py2f())
assert not session.alive and session.step(0, 0.0) == -1
assert ("no_such_module" if rank == 1 else "another rank") in session.error(), session.error()
"""


def test_bridge_over_a_fortran_handle(together):
    together(2, "BRIDGE")


def test_alone():
    comm = open_comm(None)
    assert isinstance(comm, Alone) and (comm.rank, comm.size) == (0, 1)
    x = np.arange(3.0)
    assert comm.sum(x) is x and comm.maximum(x) is x and comm.minimum(x) is x
    assert isinstance(from_fortran(-1), Alone)
    with pytest.raises(TypeError, match="mpi4py communicator"):
        open_comm(3)


def test_a_communicator_without_mpi4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RuntimeError, match="pip install mpi4py"):
        from_fortran(0)


LIVE = """
import threading
h = hub([insitu.POD("u", rank=3, block=16)], live=True)
with h:
    for n, u in enumerate(history[:100]):
        h.step(n, 0.1 * n, u=u[mine])
    mine_too = [t.name for t in threading.enumerate() if "live" in t.name]
assert bool(mine_too) == (rank == 0), (rank, mine_too)
"""


def test_live_view_is_written_by_the_first_rank(together):
    folder = together(2, "LIVE")
    found = json.loads((folder / "status.json").read_text())
    assert (found["size"], found["rank"], found["state"], found["step"]) == (2, 0, "finished", 99)
    assert found["drawings"][0]["extent"] == [0.0, pytest.approx(12.7)], "the part of the first rank"


PICTURES = """
with hub([insitu.Plot("u")]) as h:
    for n, u in enumerate(history[:3]): h.step(n, 0.0, u=u[mine])
assert h.errors == 0, h.last_error
"""


def test_each_rank_draws_its_part(together):
    pytest.importorskip("matplotlib")
    folder = together(2, "PICTURES")
    assert {p.name for p in folder.glob("*.png")} == {"Field_evolution-rank0.png", "Field_evolution-rank1.png"}
