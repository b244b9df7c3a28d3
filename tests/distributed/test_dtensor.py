"""torch DTensors on 4 ranks with gloo: with MPI (ScaLAPACK does the work) and without (one rank does)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lapwing

pytest.importorskip("torch.distributed.tensor")
HERE = Path(__file__).parent
SIZE = 4


def environment():
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_", "MPI_"))}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(lapwing.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return own | threads | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}


def test_without_mpi(tmp_path):
    command = [sys.executable, HERE / "dtensor_checks.py", tmp_path, str(SIZE)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and done.stdout.count("done") == SIZE, done.stdout + done.stderr


@pytest.mark.slow
def test_with_mpi(tmp_path):
    pytest.importorskip("mpi4py")
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if mpiexec is None:
        pytest.skip("no mpiexec")
    probe = "from lapwing.distributed.backends.scalapack import library as s; print(s.missing())"
    asked = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True)
    if asked.returncode or asked.stdout.strip():
        pytest.skip(f"no ScaLAPACK: {asked.stdout or asked.stderr}")
    # the launcher tells torch who is who
    command = [sys.executable, "-m", "lapwing", "launch", "-n", str(SIZE), str(HERE / "dtensor_checks.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.count("done") == SIZE, done.stdout + done.stderr
