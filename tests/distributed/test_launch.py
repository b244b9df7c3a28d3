"""lapwing launch: what it runs, the environment it gives, and what it refuses."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from distributed import harness
from lapwing.cli import launch
from lapwing.cli.launch import rank_environment
from lapwing.cli.rank import name_rank


def test_threads_are_the_cores_shared_out():
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for ranks, cores, share in ((2, 8, "4"), (3, 8, "2"), (16, 8, "1")):
        made = rank_environment({"PATH": "x"}, ranks, cores)
        assert [made[name] for name in names] == [share] * 3 and made["PATH"] == "x"
        assert ("MPIR_CVAR_POLLS_BEFORE_YIELD" in made) == (ranks > cores)
    assert [rank_environment({"OMP_NUM_THREADS": "3"}, 2, 8)[name] for name in names] == ["3"] * 3
    assert [rank_environment({"OMP_NUM_THREADS": "3"}, 2, 8, 5)[name] for name in names] == ["5"] * 3
    mine = {"MKL_NUM_THREADS": "7", "MPIR_CVAR_POLLS_BEFORE_YIELD": "9", "OMPI_MCA_hwloc_base_binding_policy": "core"}
    assert rank_environment(mine, 4, 2).items() >= mine.items()


def test_scripts_modules_and_programs(tmp_path):
    script = tmp_path / "who.py"
    script.write_text(
        "import os, sys\n"
        "if __name__ == '__main__':\n"
        "    from mpi4py import MPI\n"
        "    import helper\n"
        "    where = f'{MPI.COMM_WORLD.rank}/{MPI.COMM_WORLD.size}'\n"
        "    os.write(1, f'{where} {sys.argv[1:]} {os.environ[\"OMP_NUM_THREADS\"]}\\n'.encode())\n"
    )
    (tmp_path / "helper.py").write_text("")
    for form in ([script], ["-m", "who"]):
        done = harness.launch("-n", 2, *form, "--n", "5", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["0/2 ['--n', '5'] 1", "1/2 ['--n', '5'] 1"]
    done = harness.launch("-n", 2, "--threads", 3, "--", "sh", "-c", "echo $MKL_NUM_THREADS; sleep 0.3; exit 4")
    assert done.returncode == 4 and done.stdout.split() == ["3", "3"] and "exit code 4" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "0", "x.py"], "-n 0 is not a positive number"),
        (["-n", "2"], "nothing to run"),
        (["-n", "2", "nowhere.py"], "there is no file nowhere.py"),
        (["-n", "2", "-m"], "-m needs the name of a module"),
        (["-n", "2", "--"], "no program follows --"),
        (["-n", "2", "--threads", "0", "x.py"], "--threads 0"),
        (["--mpiexec", "no-such-program", "--", "true"], "no such program"),
    ],
)
def test_refusals(arguments, words, capsys):
    from lapwing.__main__ import main

    assert main(["launch", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_stopped_launches_leave_no_rank(tmp_path):
    mark = f"lapwing-test-{time.time_ns()}"
    program = f"import os, time; os.write(1, b'up\\n'); time.sleep(60)  # {mark}"
    harness.need_mpi()
    # a shell that puts the tests into the background has all of them ignore Ctrl-C
    heeding = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from lapwing.__main__ import main; sys.exit(main())"
    )
    line = [sys.executable, "-c", heeding, "launch", "-n", "2", "--", sys.executable, "-c", program]
    environment = harness.environment(2)
    # two at a time do not meet
    both = [
        subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for process in both:
            assert [process.stdout.readline().strip() for _ in range(2)] == ["up"] * 2
        for process, number in zip(both, (signal.SIGINT, signal.SIGTERM), strict=True):
            process.send_signal(number)
        for process in both:
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 130 and "stopped" in errors
    finally:
        for process in both:
            process.terminate()
    time.sleep(0.2)
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert mark not in left


@pytest.mark.parametrize(
    ("hydra", "status", "noted", "expected"),
    [
        (True, 9, True, (9, True)),  # killed: from Python nobody leaves without a word
        (True, 9, False, (9, False)),  # a program that may have ended so
        (True, 5, True, (None, True)),
        (True, 137, True, (None, True)),
        (False, 137, False, (9, True)),
        (False, 9, False, (None, True)),
        (False, 255, False, (None, True)),
        (True, -9, False, (9, True)),  # mpiexec itself
    ],
)
def test_signals_and_exit_codes(monkeypatch, hydra, status, noted, expected):
    monkeypatch.setattr(launch, "_is_hydra", lambda mpiexec: hydra)
    assert launch._signal_of(status, "mpiexec", noted) == expected


def test_ranks_have_the_names_that_torch_reads():
    mpich = {"PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    names = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "77"}
    for known in (mpich, {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}):
        made = dict(known)
        name_rank(made, 2, "77")
        assert made == known | names
    for mine in ({"RANK": "0"}, {"MASTER_ADDR": "there"}):
        made = mpich | mine
        name_rank(made, 2, "77")
        assert made.items() >= mine.items() and ("WORLD_SIZE" in made) == ("RANK" not in mine)
        assert ("MASTER_PORT" in made) == ("RANK" in mine)
    on_two_nodes = dict(mpich)
    name_rank(on_two_nodes, 4, "77")
    assert "MASTER_ADDR" not in on_two_nodes and on_two_nodes["WORLD_SIZE"] == "4"
    alone: dict[str, str] = {}
    name_rank(alone, 2, "77")
    assert not alone


def test_two_launches_have_two_ports():
    with launch._reserved_port() as one, launch._reserved_port() as two, socket.socket() as mine:
        port = one.getsockname()[1]
        assert port != two.getsockname()[1]
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch and gRPC do
        mine.bind(("", port))
        mine.listen()
