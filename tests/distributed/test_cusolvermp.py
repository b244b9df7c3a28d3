"""cuSOLVERMp without a GPU: stand-in libraries check the arguments of every call, on one rank and on several processes."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import lapwing
from distributed import harness

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
NAMES = (
    "libcusolverMp.so.0", "libcudart.so.13", "libcublas.so.13", "libnccl.so.2",
    "libcublasLt.so.13", "libcusolver.so.12", "libcusparse.so.12", "libnvJitLink.so.13",
)  # fmt: skip


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Folders with the stand-ins, by version: one file under the names of all of them."""
    folders, running = {}, []
    for version in (800, 901):
        folder = folders[version] = tmp_path_factory.mktemp(f"mp{version}")
        command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-DVERSION={version}", "-shared", "-fPIC"]
        running.append(subprocess.Popen([*command, "-o", folder / NAMES[0], HERE / "mock_mp.cc"], stderr=subprocess.PIPE))
        for name in NAMES[1:]:
            (folder / name).symlink_to(NAMES[0])
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    return folders


def ranks(folder, tmp_path, size, *what, **settings):
    environment = os.environ | {
        "LAPWING_CUDA_PATH": str(folder),
        "MOCK_FOLDER": str(tmp_path),
        "PYTHONPATH": str(Path(lapwing.__file__).parents[1]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-W", "error", HERE / "mp_child.py"]
    started = [
        subprocess.Popen([*command, str(rank), str(size), *what], env=environment | settings, **pipes) for rank in range(size)
    ]
    return [(process.communicate(timeout=120)[0], process.returncode) for process in started]


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_answers(libraries, tmp_path, size):
    """All operations, dtypes, layouts (rows, columns, uneven, empty, 2-D) and sizes below, at and above the grid."""
    for text, code in ranks(libraries[901], tmp_path, size, "answers"):
        assert code == 0 and text == "done\n", text


@pytest.mark.parametrize("size", [1, 2])
def test_version_08(libraries, tmp_path, size):
    """Another letter for the vectors, no svd, and an NCCL that 0.9 could not use."""
    for text, code in ranks(libraries[800], tmp_path, size, "old", MOCK_NCCL="22809"):
        assert code == 0 and text == "done\n", text


@pytest.mark.parametrize("size", [1, 3])
def test_sharded_matrices(libraries, tmp_path, size):
    """Blocks of CuPy, of libraries that are not known, and of NumPy; the pivots lie with the columns this time."""
    for text, code in ranks(libraries[901], tmp_path, size, "sharded", MOCK_PIVOTS="columns"):
        assert code == 0 and text == "done\n", text


def test_sessions_close_with_their_communicators(libraries, tmp_path, monkeypatch):
    """Over MPI: with the user's communicator, with parts of it made for small matrices, and at the end of the script."""
    code = """
import atexit
import numpy as np
from mpi4py import MPI

def check(things):
    found = [runtime()._library.stand_in_open(kind.encode()) for kind in ("comm", "grid", "handle", "blas", "stream")]
    assert [bool(x) for x in found] == [things] * 5, found

atexit.register(lambda: (check(False), print("closed", flush=True)))  # comes after what is registered later
import lapwing as lw
from lapwing.distributed.ranks import mpi
from lapwing.distributed import ShardedMatrix
from lapwing.distributed.backends.cusolvermp.nccl import runtime

comm = MPI.COMM_WORLD.Dup()
for a in (4 * np.eye(20), 4 * np.eye(1)):  # the second one lies on one rank alone
    x = lw.solve(ShardedMatrix.scatter(a, comm), np.ones(len(a)), assume="pos", engine="cusolvermp")
    assert (x == 0.25).all()
check(True)
comm.Free()
check(False)
assert not mpi._open
f = lw.factor(ShardedMatrix.scatter(4 * np.eye(20), MPI.COMM_WORLD), engine="cusolvermp")
assert (f.solve(np.ones(20)) == 0.25).all()
check(True)
del f
"""
    monkeypatch.setenv("LAPWING_CUDA_PATH", str(libraries[901]))
    monkeypatch.setenv("MOCK_FOLDER", str(tmp_path))
    done = harness.ranks(2, "-c", code)
    assert done.returncode == 0 and done.stdout.count("closed") == 2, done.stdout + done.stderr


def test_one_rank_has_left(libraries, tmp_path):
    for text, code in ranks(libraries[901], tmp_path, 2, "missing"):
        assert code == 0 and text == "done\n", text


def test_one_rank_without_a_descriptor(libraries, tmp_path):
    for text, code in ranks(libraries[901], tmp_path, 2, "descriptor"):
        assert code == 0 and text == "done\n", text


def test_dtensors(libraries, tmp_path):
    """The public calls on DTensors reach the library: on 2 ranks, memory of torch's own allocator."""
    pytest.importorskip("torch.distributed.tensor")
    environment = os.environ | {
        "LAPWING_CUDA_PATH": str(libraries[901]),
        "MOCK_FOLDER": str(tmp_path),
        "PYTHONPATH": str(Path(lapwing.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, HERE / "dtensor_checks.py", tmp_path, "2", "cusolvermp"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stdout + done.stderr


def test_jax_blocks(libraries, tmp_path):
    pytest.importorskip("jax")
    for text, code in ranks(libraries[901], tmp_path, 2, "jax", JAX_PLATFORMS="cpu"):
        assert code == 0 and text == "done\n", text


def test_jax_processes(libraries, tmp_path):
    """The public calls on JAX arrays over two processes reach the library."""
    pytest.importorskip("jax")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    settings = {"LAPWING_CUDA_PATH": str(libraries[901]), "MOCK_FOLDER": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    environment = os.environ | settings | {"PYTHONPATH": str(Path(lapwing.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-W", "error", HERE / "jax_mpi_cases.py", str(port)]
    started = [subprocess.Popen([*command, str(rank), "2"], env=environment, **pipes) for rank in range(2)]
    try:
        told = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, text in zip(started, told, strict=True):
        assert process.returncode == 0 and "passed" in text, text


def test_one_rank_without_memory(libraries, tmp_path):
    for text, code in ranks(libraries[901], tmp_path, 3, "memory"):
        assert code == 0 and text == "done\n", text


def test_old_nccl_is_named_before_loading(libraries, tmp_path):
    [(text, code)] = ranks(libraries[901], tmp_path, 1, MOCK_NCCL="22809")
    assert code == 1 and "needs NCCL 2.29 or newer, and this process has 2.28.9\nhint:" in text


def test_nothing_installed():
    code = "from lapwing.distributed.backends.cusolvermp.library import missing; print(missing())"
    environment = os.environ | {"LAPWING_CUDA_PATH": "", "PYTHONPATH": str(Path(lapwing.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "\n" or "hint: pip install nvidia-" in done.stdout  # the machine may have them
