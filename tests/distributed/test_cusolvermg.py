"""cuSOLVERMg without a GPU: a stand-in library computes on the same block-cyclic columns, on up to eight places."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lapwing as lw
from lapwing.distributed import Axis, DeviceMatrix, Layout
from lapwing.distributed.backends.cusolvermg.grid import _shared

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++")
NAMES = (
    "libcusolverMg.so.12", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcusparse.so.12",
    "libnvJitLink.so.13",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One file under the names of all libraries."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("mg")
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", folder / NAMES[0], HERE / "mock_mg.cc"], check=True)
    for name in NAMES[1:]:
        (folder / name).symlink_to(NAMES[0])
    return folder


@pytest.mark.parametrize("library", ["torch", "cupy", "jax", pytest.param("jax-all", marks=pytest.mark.slow)])
def test_answers(folder, library):
    """All operations, both triangles, layouts and failures; see mg_child.py."""
    if library != "cupy":
        pytest.importorskip(library.partition("-")[0])
    environment = os.environ | {
        "LAPWING_CUDA_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(lw.__file__).parents[1]), str(HERE.parent)]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "error", HERE / "mg_child.py", library]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
    if library == "torch":
        assert "cusolvermg" in done.stdout and "modelled" in done.stdout


def test_runs_of_two_axes():
    """Tiles against blocks: each index is copied once, from where it is to where it belongs."""
    for own, other in ((Axis.cyclic(23, 4, 3), Axis.even(23, 2)), (Axis.even(23, 4), Axis.cyclic(23, 5, 2))):
        covered = []
        for part in range(own.parts):
            for first, to, here, there, length in _shared(own, part, other):
                index = np.arange(first, first + length)
                assert (own.owner(index) == part).all() and (own.local(index) == here + np.arange(length)).all()
                assert (other.owner(index) == to).all() and (other.local(index) == there + np.arange(length)).all()
                covered += index.tolist()
        assert sorted(covered) == list(range(23))


def test_matrices_over_devices():
    torch = pytest.importorskip("torch")
    a = torch.arange(20.0).reshape(5, 4)
    for axis in (0, 1):
        held = DeviceMatrix.split(a, ["cpu"] * 3, axis=axis)
        assert held.shape == (5, 4) and len(held.blocks) == 3 and held.dtype == np.float32
        assert (held.gather() == a.numpy()).all() and held.astype("float64").dtype == np.float64
    held.blocks[0][:] = 0
    assert a[0, 1] == 1  # a copy
    for call in (lw.cholesky, lw.qr, lambda a: lw.explain(lw.eigh, a), lambda a: lw.inv(a, engine="cusolvermg")):
        with pytest.raises(ValueError, match="the blocks are on the host"):
            call(DeviceMatrix.split(torch.eye(3), ["cpu"]))
    for wrong, error, text in (
        (lambda: DeviceMatrix.from_blocks([]), ValueError, "no blocks"),
        (lambda: DeviceMatrix.from_blocks([np.eye(2)]), TypeError, "got numpy"),
        (lambda: DeviceMatrix.from_blocks([torch.eye(2), torch.eye(3)]), ValueError, "same number of columns"),
        (lambda: DeviceMatrix.from_blocks([torch.eye(2), torch.eye(2).double()]), TypeError, "one dtype"),
        (lambda: DeviceMatrix.from_blocks([torch.eye(2)], axis=2), ValueError, "axis=2"),
        (lambda: DeviceMatrix([torch.eye(2)], Layout.rows_of((3, 2), 1)), ValueError, "do not fit"),
        (lambda: DeviceMatrix.split(np.eye(2), [0]), TypeError, "torch tensor or a CuPy array"),
        (lambda: DeviceMatrix.split(torch.eye(2), ["cpu"], axis=2), ValueError, "split: axis=2"),
        (lambda: DeviceMatrix.split(torch.eye(2), "cpu"), TypeError, "a list of devices, got 'cpu'"),
        (lambda: DeviceMatrix.from_blocks([torch.eye(2, requires_grad=True)]), TypeError, "from_blocks: this tensor requires"),
    ):
        with pytest.raises(error, match=text):
            wrong()


def test_costs_are_modelled():
    plans = [lw.explain(lw.eigh, lw.spec((8192, 8192), "float64", "cuda", sharding=k), engine="cusolvermg") for k in (1, 2, 8)]
    for plan in plans:
        text = str(plan)
        assert plan.engine == "cusolvermg" and plan.host == 8192 * 8 and "host memory   64 KiB, modelled" in text
        assert "modelled      about" in text and plan.fits and plan.largest > 8192
    assert plans[0].memory / 2 == plans[1].memory == 4 * plans[2].memory
    # one H200: 1.54 s
    assert 1.2 < plans[0].seconds < 2
    with pytest.raises(NotImplementedError, match="cuSOLVERMg does not have this operation"):
        lw.explain(lw.qr, lw.spec((64, 64), "float64", "cuda", sharding=2), engine="cusolvermg")
    with pytest.raises(ValueError, match="takes no matrices on CPUs"):
        lw.explain(lw.eigh, lw.spec((64, 64), "float64", sharding=2), engine="cusolvermg")
