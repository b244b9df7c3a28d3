"""cuSOLVERMp and NCCL themselves, with one rank on one GPU: what tests/distributed/test_cusolvermp.py checks on stand-ins."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lapwing as lw
from distributed.sharded_gpu_checks import DTYPES, check_library, close, positive, random
from lapwing.distributed.backends.cusolvermp.library import missing
from lapwing.distributed.layout import Axis, Layout
from lapwing.distributed.matrix import ShardedMatrix
from lapwing.distributed.ranks.protocol import Alone

pytestmark = pytest.mark.gpu
HERE = Path(__file__).parent
MP = {"engine": "cusolvermp"}


@pytest.fixture(autouse=True)
def need_cusolvermp():
    reason = missing()
    if reason:
        pytest.skip(reason)


class Interface:
    """An array of a library that is not known: it says where its memory lies."""

    def __init__(self, x):
        import torch

        self.kept = torch.from_numpy(np.ascontiguousarray(x)).cuda()
        self.shape, self.dtype, self.ndim = x.shape, x.dtype, x.ndim
        self.__cuda_array_interface__ = self.kept.__cuda_array_interface__


class Capsule:
    """One that has DLPack only."""

    def __init__(self, x):
        import torch

        self.kept = torch.from_numpy(np.ascontiguousarray(x)).cuda()
        self.shape, self.dtype, self.ndim = x.shape, x.dtype, x.ndim

    def __dlpack_device__(self):
        return tuple(int(x) for x in self.kept.__dlpack_device__())

    def __dlpack__(self, *, stream=None):
        return self.kept.__dlpack__(stream=stream)


def on_host(x):
    x = getattr(x, "kept", x)
    return x.get() if hasattr(x, "get") else x.cpu().numpy() if hasattr(x, "cpu") else np.asarray(x)


def of_cupy(x):
    return pytest.importorskip("cupy").asarray(x)


def of_torch(x):
    import torch

    return torch.from_numpy(x).cuda()


PLAIN = "lapwing.distributed.backends.cusolvermp.memory.CudaArray"
KINDS = {of_cupy: "cupy.ndarray", of_torch: "torch.Tensor", Interface: PLAIN, Capsule: PLAIN, np.array: "numpy.ndarray"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sharded_matrices(kind, dtype, tmp_path):
    import torch

    results, n = KINDS[kind], 130
    device = torch.cuda.current_device()
    layout = Layout.cyclic((n, n), 32, (1, 1)) if dtype.startswith("c") else Layout(Axis.whole(n), Axis.whole(n))
    check_library(Alone(), kind, dtype, layout, MP, on_host, results, tmp_path)
    assert torch.cuda.current_device() == device


@pytest.mark.parametrize("kind", [of_cupy, of_torch])
def test_one_rank_is_served_by_the_ordinary_engines(kind):
    """Unless cuSOLVERMp is asked for; the results are where they would be on several."""
    n = 70
    a, b = positive("float64", n), random("float64", n)
    held = ShardedMatrix.from_local(kind(a), None)
    l, x, w, (sign, logabs), f = lw.cholesky(held), lw.solve(held, b), lw.eigvalsh(held), lw.slogdet(held), lw.factor(held)
    assert l.on_gpu and type(l.local) is type(held.local)
    assert all(isinstance(y, np.ndarray | np.generic) for y in (x, w, sign, logabs, f.solve(b), f.logdet()))
    assert f.report["engine"] != "cusolvermp"
    close(on_host(l.local), np.linalg.cholesky(a), n)
    for y in (x, f.solve(b), on_host(f.solve(kind(b)))):
        close(y, np.linalg.solve(a, b), 10 * n)
    close(np.array([logabs, f.logdet()]), np.full(2, np.linalg.slogdet(a)[1]), n)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_signs_of_determinants(dtype):
    """Rows that are exchanged, more than one tile and more than one digit of them."""
    import torch

    n = 1501
    a = random(dtype, n, n)
    for matrix in (a, a[::-1].copy()):
        f = lw.factor(ShardedMatrix.from_local(torch.from_numpy(matrix).cuda(), None), assume="general", **MP)
        sign, logabs = f.slogdet()
        expected = np.linalg.slogdet(matrix)
        close(np.array(sign), expected[0], 10 * n)
        close(np.array(logabs), expected[1], 10 * n)
        assert tuple(lw.slogdet(ShardedMatrix.from_local(torch.from_numpy(matrix).cuda(), None), **MP)) == (sign, logabs)


def test_memory_goes_with_the_factor_and_failures_are_named():
    import torch

    n = 2000
    a = ShardedMatrix.from_local(torch.from_numpy(positive("float64", n)).cuda(), None)
    lw.cholesky(a, **MP)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    f = lw.factor(a, **MP)
    assert torch.cuda.memory_allocated() - before >= 8 * n * n
    b = np.ones(n)
    close(a.local.cpu().numpy() @ f.solve(b), b, 100 * n)
    del f
    assert torch.cuda.memory_allocated() == before
    a.local[1203, 1203] = 1e-3
    with pytest.raises(lw.NotPositiveDefiniteError) as caught:
        lw.factor(a, **MP)
    assert caught.value.minor == 1204 and not caught.value.nonfinite
    with pytest.raises(lw.SingularMatrixError):
        lw.inv(ShardedMatrix.from_local(torch.ones(300, 300, device="cuda"), None), **MP)
    assert tuple(lw.slogdet(ShardedMatrix.from_local(torch.ones(300, 300, device="cuda"), None), **MP)) == (0, -np.inf)
    del caught
    import gc

    gc.collect()
    assert torch.cuda.memory_allocated() <= before


def test_work_of_other_streams_is_waited_for():
    import torch

    n, stream = 3000, torch.cuda.Stream()
    x = torch.randn(n, n, device="cuda", dtype=torch.float64)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        a = x
        for _ in range(6):  # some tens of milliseconds
            a = a @ x.mT / n
        a = x @ x.mT / n + torch.eye(n, device="cuda", dtype=torch.float64) + 0 * a
    l = lw.cholesky(ShardedMatrix.from_local(a, None), **MP).local
    residual = (l @ l.mT - a).abs().max().item()
    assert residual <= 10 * n * 2.3e-16 * a.abs().max().item()


def test_a_closed_session_is_made_anew():
    from lapwing.distributed.backends.cusolvermp import session as sessions

    a = ShardedMatrix.from_local(positive("float64", 60), None)
    for _ in range(2):
        close(lw.solve(a, np.ones(60), assume="pos", **MP), np.linalg.solve(a.local, np.ones(60)), 600)
        for session in list(sessions._ALONE.values()):
            session.close()
        sessions._ALONE.clear()


SCRIPT = """
import numpy as np
import lapwing as lw
from lapwing.distributed import ShardedMatrix
{start}
a = ShardedMatrix.from_local({block}, comm)
x = lw.solve(a, np.ones(50), assume="pos", engine="cusolvermp")
assert abs(np.asarray(x) - 0.25).max() < 1e-14
f = lw.factor(a, engine="cusolvermp")  # alive at the end
print("done", flush=True)
"""
STARTS = {
    "alone": ("comm = None", "4 * np.eye(50)"),
    "mpi": ("from mpi4py import MPI; comm = MPI.COMM_WORLD; import cupy", "cupy.asarray(4 * np.eye(50))"),
    "group": (
        "import torch.distributed as dist; dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
        "; comm = dist.group.WORLD",
        "4 * np.eye(50)",
    ),
    "torch": ("import torch; comm = None", "4 * torch.eye(50, dtype=torch.float64, device='cuda')"),
    "jax": ("import jax; jax.config.update('jax_enable_x64', True); comm = None", "4 * jax.numpy.eye(50)"),
}


@pytest.mark.parametrize("which", STARTS)
def test_scripts_end_well(which):
    """What is open when a script ends is closed in an order that the libraries take."""
    modules = {"mpi": "mpi4py", "torch": "torch", "group": "torch", "jax": "jax"}
    pytest.importorskip(modules.get(which, "numpy"))
    start, block = STARTS[which]
    code = SCRIPT.format(start=start, block=block)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(lw.__file__).parents[1]), *sys.path]),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr


def test_blocks_of_jax():
    """Memory of JAX's own allocator, on a real GPU; the checks are those of the stand-ins."""
    pytest.importorskip("jax")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import jax
if jax.default_backend() != "gpu":
    print("no GPU")
    sys.exit()
import mp_child
from lapwing.distributed.ranks.protocol import Alone
mp_child.check_jax(Alone())
print("done", flush=True)
"""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(lw.__file__).parents[1]), *sys.path]),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "MOCK_FOLDER": "",
    }
    done = subprocess.run([sys.executable, "-c", code, HERE], capture_output=True, text=True, timeout=200, env=environment)
    if done.stdout == "no GPU\n":
        pytest.skip("JAX has no GPU here")
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
