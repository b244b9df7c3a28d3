"""Checks of torch DTensors, on every rank of test_dtensor.py: dtensor_checks.py FOLDER [SIZE [ENGINE]], no SIZE under MPI."""

import logging
import os
import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
from raising import raises
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import lapwing as lw
from lapwing.distributed.fronts import dtensor_blocks as dtensor

torch.set_num_threads(1)
RANK, SIZE, MPI = 0, 1, None


def start():
    """Under MPI the ranks are there; else this process becomes four, and imports torch only once."""
    global RANK, SIZE, MPI
    if len(sys.argv) == 2:
        from mpi4py import MPI

        RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        main()
        return
    SIZE = int(sys.argv[2])
    children = []
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            RANK = rank
            main()
            return
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def positive(n, dtype=torch.float64):
    x = random(n, n, dtype=dtype)
    return x @ x.mH / n + torch.eye(n, dtype=dtype)


def close(found, expected, n, what):
    if isinstance(found, DTensor):
        found = found.full_tensor()
    error = (found - expected).abs().max().item() if found.numel() else 0.0
    eps = torch.finfo(expected.dtype).eps
    assert found.shape == expected.shape and found.dtype == expected.dtype, (what, found.shape, expected.shape)
    assert error <= 10 * max(n, 8) * eps * max(1.0, expected.abs().max().item()), (what, error)


def placed(x, placements, like=None):
    assert isinstance(x, DTensor) and tuple(x.placements) == tuple(placements), (x, placements)
    assert x.to_local().shape == distribute_tensor(torch.zeros(x.shape), x.device_mesh, placements).to_local().shape


def check_systems(mesh, placements, n, dtype):
    what = (placements, n, dtype)
    a, b = positive(n, dtype), random(n, 3, dtype=dtype, seed=1)
    da, db = (distribute_tensor(x, mesh, placements) for x in (a, b))
    kept = da.to_local().clone()
    x = lw.solve(da, db, assume="pos")
    placed(x, placements)
    close(x, torch.linalg.solve(a, b), n, what)
    assert torch.equal(da.to_local(), kept), "the input was changed"
    lower = lw.cholesky(da)
    placed(lower, placements)
    close(lower, torch.linalg.cholesky(a), n, what)
    close(lw.cholesky(da, upper=True), torch.linalg.cholesky(a).mH, n, what)
    inverse = lw.inv(da, assume="pos")
    placed(inverse, placements)
    close(inverse, torch.linalg.inv(a), n, what)
    sign, logdet = lw.slogdet(da, assume="pos")
    placed(logdet, [Replicate()] * mesh.ndim)
    close(logdet, torch.linalg.slogdet(a).logabsdet, n, what)
    assert sign.to_local() == 1
    value = lw.det(da, assume="pos")
    placed(value, [Replicate()] * mesh.ndim)
    close(value, torch.linalg.det(a), 10 * n, what)
    # right-hand sides that every rank has: a tensor, a replicated DTensor, a vector
    everywhere = lw.solve(da, b, assume="pos")
    assert not isinstance(everywhere, DTensor)
    close(everywhere, torch.linalg.solve(a, b), n, what)
    replicated = distribute_tensor(b, mesh, [Replicate()] * mesh.ndim)
    x = lw.solve(da, replicated, assume="pos")
    placed(x, replicated.placements)
    close(x, torch.linalg.solve(a, b), n, what)
    close(lw.solve(da, b[:, 0], assume="pos"), torch.linalg.solve(a, b[:, 0]), n, what)
    general = a + 0.3 * random(n, n, dtype=dtype, seed=2)
    close(lw.solve(distribute_tensor(general, mesh, placements), db), torch.linalg.solve(general, b), 20 * n, what)


def check_spectra(mesh, placements, n, dtype):
    what = (placements, n, dtype)
    a, tall = positive(n, dtype), random(2 * n, n, dtype=dtype, seed=3)
    da, dt = (distribute_tensor(x, mesh, placements) for x in (a, tall))
    w, v = lw.eigh(da)
    placed(w, [Replicate()] * mesh.ndim)
    placed(v, placements)
    close(w, torch.linalg.eigvalsh(a), n, what)
    full = v.full_tensor()
    close(a @ full, full * w.full_tensor(), 10 * n, what)
    close(lw.eigvalsh(da), w.full_tensor(), n, what)
    few = lw.eigh(da, subset=slice(-2, None))
    placed(few.eigenvectors, placements)
    close(few.eigenvalues, w.full_tensor()[-2:], n, what)
    full = few.eigenvectors.full_tensor()
    close(a @ full, full * few.eigenvalues.full_tensor(), 10 * n, what)
    q, r = lw.qr(dt)
    placed(q, placements)
    placed(r, placements)
    close(q.full_tensor() @ r.full_tensor(), tall, 10 * n, what)
    u, s, vh = lw.svd(dt)
    close((u.full_tensor() * s.full_tensor()) @ vh.full_tensor(), tall, 10 * n, what)
    x = lw.lstsq(dt, distribute_tensor(tall[:, :2].contiguous(), mesh, placements)).x
    placed(x, placements)
    close(x, torch.eye(n, 2, dtype=dtype), 10 * n, what)


def check_gradients(mesh, placements, n, assumed=("pos", "general")):
    for assume in assumed:
        a, b = positive(n), random(n, 2, seed=1)
        if assume == "general":
            a = a + 0.3 * random(n, n, seed=2)
        weight = random(n, 2, seed=4)
        one, sides = a.clone().requires_grad_(), b.clone().requires_grad_()
        ((lw.solve(one, sides, assume=assume) * weight).sum() + 3 * lw.slogdet(one, assume=assume).logabsdet).backward()
        da, db = (distribute_tensor(x, mesh, placements).requires_grad_() for x in (a, b))
        x = lw.solve(da, db, assume=assume)
        loss = (x * distribute_tensor(weight, mesh, placements)).sum() + 3 * lw.slogdet(da, assume=assume).logabsdet
        loss.full_tensor().backward()
        placed(da.grad, placements)
        close(da.grad, one.grad, 20 * n, ("gradient", placements, assume))
        close(db.grad, sides.grad, 20 * n, ("gradient", placements, assume))
    da = distribute_tensor(positive(n), mesh, placements).requires_grad_()
    raises(NotImplementedError, "derivatives in solve, det and slogdet", lambda: lw.cholesky(da))
    for dtype, assume in ((torch.float64, "general"), (torch.complex128, "general"), (torch.complex128, "pos")):
        a = positive(n, dtype) if assume == "pos" else random(n, n, dtype=dtype) / n**0.5
        one, da = a.clone().requires_grad_(), distribute_tensor(a, mesh, placements).requires_grad_()
        for x in (one, da):
            value = lw.det(x, assume=assume)
            ((2 - 1j) * (value.full_tensor() if isinstance(x, DTensor) else value)).real.backward()
        placed(da.grad, placements)
        close(da.grad, one.grad, 20 * n, ("gradient of det", dtype, assume))


def check_failures(mesh, placements, n):
    a = positive(n)
    a[4, 4] = -1
    error = raises(lw.NotPositiveDefiniteError, "minor of order 5", lambda: lw.cholesky(distribute_tensor(a, mesh, placements)))
    assert error.minor == 5 and not error.nonfinite
    a[4, 4], a[5, 2] = 9, float("inf")
    error = raises(lw.NotPositiveDefiniteError, "NaN or Inf", lambda: lw.cholesky(distribute_tensor(a, mesh, placements)))
    raises(lw.ConvergenceError, "NaN or Inf", lambda: lw.eigh(distribute_tensor(a, mesh, placements)))
    good = distribute_tensor(positive(n), mesh, placements)
    raises(ValueError, "b has 7", lambda: lw.solve(good, torch.ones(7, 2, dtype=torch.float64)))
    other = "pos" if RANK else "general"
    raises(ValueError, "do not agree", lambda: lw.inv(good, assume=other))


def check_factor(mesh, placements, n, dtype=torch.float64):
    a, b = positive(n, dtype), random(n, 2, dtype=dtype, seed=1)
    for assume, x in (("pos", a), ("general", a + random(n, n, dtype=dtype, seed=2))):
        f = lw.factor(distribute_tensor(x, mesh, placements), assume=assume)
        assert f.info == 0 and f.assume == assume and "kind" in f.report
        for sides in (distribute_tensor(b, mesh, placements), b, b[:, 0]):
            found = f.solve(sides)
            close(found, torch.linalg.solve(x, b if sides.ndim == 2 else b[:, 0]), 20 * n, "factor")
            assert not isinstance(sides, DTensor) or tuple(found.placements) == tuple(placements)
        inverse = f.inv()
        placed(inverse, placements)
        close(inverse, torch.linalg.inv(x), 20 * n, "factor")
        close(f.slogdet().logabsdet, torch.linalg.slogdet(x).logabsdet, n, "factor")
        if assume == "pos":
            close(f.l, torch.linalg.cholesky(x), n, "factor")
            close(f.logdet(), torch.linalg.slogdet(x).logabsdet, n, "factor")
    x, info = lw.solve_ex(distribute_tensor(a, mesh, placements), b, assume="pos")
    close(x, torch.linalg.solve(a, b), 20 * n, "solve_ex")
    lost, bad = lw.cholesky_ex(distribute_tensor(-a, mesh, placements))
    assert (info, bad) == (0, 1) and lost.full_tensor().isnan().all()
    raises(lw.NotPositiveDefiniteError, "minor of order 1", lambda: lw.factor(distribute_tensor(-a, mesh, placements)))
    raises(ValueError, "b has 7", lambda: f.solve(torch.ones(7, 2, dtype=dtype)))


def check_whole_matrices(mesh):
    """Replicated, a sharded batch: each rank its own."""
    a = torch.stack([positive(5) for _ in range(2 * SIZE)])
    batch = distribute_tensor(a, mesh, [Shard(0)])
    lower = lw.cholesky(batch)
    placed(lower, [Shard(0)])
    close(lower, torch.linalg.cholesky(a), 5, "batch")
    one = distribute_tensor(a[0], mesh, [Replicate()])
    close(lw.eigh(one).eigenvalues, torch.linalg.eigvalsh(a[0]), 5, "replicated")
    raises(ValueError, "shard the batch", lambda: lw.cholesky(distribute_tensor(a, mesh, [Shard(1)])))


def check_one_rank(mesh, placements):
    """Placements that cut the matrix over one rank: values are replicated, as on many ranks."""
    a, tall, b = positive(6), random(9, 6, seed=3), random(6, 2, seed=1)
    da, dt = distribute_tensor(a, mesh, placements), distribute_tensor(tall, mesh, placements)
    w, v = lw.eigh(da)
    f = lw.factor(da, assume="general")
    u, s, vh = lw.svd(dt)
    q, r = lw.qr(dt)
    values = [w, s, lw.det(da), *lw.slogdet(da), lw.eigvalsh(da), lw.cholesky_ex(da).info, lw.solve_ex(da, b).info]
    values += [lw.lstsq(dt, tall[:, :2]).rank, f.info, f.lu[1], *f.slogdet(), f.logdet(), f.rcond()]
    for x in values:
        placed(x, [Replicate()] * mesh.ndim)
    for x, shape in ((v, (6, 6)), (u, (9, 6)), (vh, (6, 6)), (q, (9, 6)), (r, (6, 6)), (f.lu[0], (6, 6)), (f.inv(), (6, 6))):
        placed(x, placements)
        assert x.shape == shape, (x.shape, shape)
    close(w, torch.linalg.eigvalsh(a), 6, "one rank")
    close(lw.det(da), torch.linalg.det(a), 60, "one rank")
    close(q.full_tensor() @ r.full_tensor(), tall, 60, "one rank")
    for right in (b, b[:, 0], distribute_tensor(b, mesh, placements), distribute_tensor(b[:, 0], mesh, [Shard(0)])):
        whole = dtensor.whole(right)
        for x in (lw.solve(da, right), f.solve(right), lw.lstsq(da, right).x):
            close(x, torch.linalg.solve(a, whole), 60, "one rank")
            assert not isinstance(right, DTensor) or x.placements == right.placements


def check_two_dtypes(mesh, placements):
    n = 9
    a, b = positive(n), random(n, 2, dtype=torch.float32, seed=1)
    da, db = (distribute_tensor(x, mesh, placements) for x in (a, b))
    expected = torch.linalg.solve(a, b.double())
    for right in (b, db, b[:, 0]):
        sides = expected if right.ndim == 2 else expected[:, 0]
        close(lw.solve(da, right), sides, n, "wide matrix")
        close(lw.factor(da).solve(right), sides, n, "wide factor")
    low = distribute_tensor(a.float(), mesh, placements).requires_grad_()
    x = lw.lstsq(low.detach(), b.to(torch.complex128)).x
    close(x, torch.linalg.solve(a.float().to(x.dtype), b.to(x.dtype)), 10 * n, "narrow matrix")
    lw.solve(low, b.double()).sum().backward()
    assert low.grad.dtype == torch.float32
    raises(TypeError, "cannot be used with a of", lambda: lw.solve(da, torch.ones(n, dtype=torch.int64)))


def check_refinement(mesh, said):
    """The report and the log say what rank 0 did, or that there was no refinement."""
    said.clear()
    f = lw.factor(distribute_tensor(positive(20), mesh, [Shard(0)]), precision="mixed")
    f.solve(torch.ones(20).double())
    assert f.report["precision"] == "mixed" and f.report["fallback"] == (MPI is not None), f.report
    assert MPI is not None or f.report["steps"] > 0, f.report
    assert RANK or any("in full precision" in x for x in said) == (MPI is not None), said


def check_batches_and_replicated(mesh):
    """Batches that do not divide, right-hand sides placed otherwise, factors and statuses of matrices that are not cut."""
    count = SIZE + 1
    a, b = torch.stack([positive(5) * (i + 1) for i in range(count)]), random(count, 5, 2, seed=1)
    expected = torch.linalg.solve(a, b)
    batch = distribute_tensor(a, mesh, [Shard(0)])
    for x in (lw.solve(batch, b, assume="pos"), lw.factor(batch).solve(b), lw.solve_ex(batch, b, assume="pos")[0]):
        placed(x, [Shard(0)])
        close(x, expected, 5, "batch")
    one = distribute_tensor(a[0], mesh, [Replicate()])
    close(lw.cholesky_ex(one)[0], torch.linalg.cholesky(a[0]), 5, "replicated")
    for placements in ([Shard(0)], [Shard(1)]):
        x = lw.solve(one, distribute_tensor(b[0], mesh, placements), assume="pos")
        placed(x, placements)
        close(x, expected[0], 5, "replicated")


def check_one_rank_astray(mesh):
    """What is wrong on one rank alone is said by all of them, and they still understand each other afterwards."""
    n = 3 * SIZE
    a = positive(n)
    good = distribute_tensor(a, mesh, [Shard(0)])
    rows = torch.arange(n).split([3 + (i == 0) - (i == SIZE - 1) for i in range(SIZE)])[RANK]
    odd = DTensor.from_local(a[rows], mesh, [Shard(0)], run_check=False, shape=a.shape, stride=a.stride())
    raises(ValueError, "the block of rank 0", lambda: lw.cholesky(odd))
    b = torch.ones(n, 2).double()
    raises(TypeError, "got list", lambda: lw.solve(good, b if RANK else [1.0], assume="pos"))
    raises(TypeError, "got ndarray", lambda: lw.solve(good, b[:, 0].numpy(), assume="pos"))
    raises(ValueError, "shape of b", lambda: lw.solve(good, b if RANK else b[:, :1], assume="pos"))
    raises(ValueError, "for a sharded matrix", lambda: lw.solve(good, b[None], assume="pos"))
    raises(TypeError, "bfloat16", lambda: lw.cholesky(distribute_tensor(a.bfloat16(), mesh, [Shard(0)])))
    close(lw.solve(good, b, assume="pos"), torch.linalg.solve(a, b), n, "afterwards")


def check_other_placements(mesh):
    a, b = positive(9), random(9, 2, seed=1)
    for placements in ([Shard(0), Replicate()], [Replicate(), Shard(1)], [Shard(0), Shard(0)]):
        x = lw.solve(distribute_tensor(a, mesh, placements), distribute_tensor(b, mesh, placements), assume="pos")
        close(x, torch.linalg.solve(a, b), 9, placements)
        assert tuple(x.placements) == tuple(placements)
        assert tuple(lw.cholesky(distribute_tensor(a, mesh, placements)).placements) == tuple(placements)
    part = DTensor.from_local(a / SIZE, mesh, [Partial(), Partial()], run_check=False)
    close(lw.cholesky(part), torch.linalg.cholesky(a), 9, "partial")
    sides = DTensor.from_local(b / SIZE, mesh, [Partial(), Partial()], run_check=False)
    close(lw.solve(part, sides, assume="pos"), torch.linalg.solve(a, b), 9, "partial")


def check_explained(mesh, said, loud):
    """One rank alone may ask, before the ranks have ever talked; the log of the call says the same."""
    a = distribute_tensor(positive(40), mesh, [Shard(0)])
    plan = lw.explain(lw.cholesky, a) if RANK == 0 else None
    lw.cholesky(a)
    if RANK == 0 and MPI is not None:
        assert plan.engine == "scalapack" and plan.devices == SIZE and f"on {SIZE} ranks" in said[-1], (plan, said)
        assert "scalapack" in said[-1], said
    elif RANK == 0:
        assert plan.engine == "gathered" and plan.gathered == SIZE and "gathered on rank 0" in str(plan), plan
        assert plan.bytes_received == (SIZE - 1) / SIZE * 40 * 40 * 8 and plan.shard == 40 * 40 * 8, plan
        assert plan.largest <= (plan.machine.memory / 4 / 8) ** 0.5, plan
        assert any("gathered on rank 0" in x for x in (*said, *loud)), (said, loud)
        assert all(x.endswith(" in dtensor_checks.py") for x in loud), loud
        raises(ValueError, "needs ranks that MPI started", lambda: lw.explain(lw.cholesky, a, engine="scalapack"))
    raises(ValueError, "is not known", lambda: lw.explain(lw.cholesky, a, engine="nonesuch"))
    batch = distribute_tensor(torch.eye(3).double().repeat(2 * SIZE, 1, 1), mesh, [Shard(0)])
    assert lw.explain(lw.cholesky, batch) == lw.explain(lw.cholesky, batch.to_local())  # each rank its own
    partial = DTensor.from_local(positive(40), mesh, [Partial()], run_check=False)
    assert lw.explain(lw.cholesky, partial).engine == ("scalapack" if MPI is not None else "gathered")


def main():
    warnings.simplefilter("error")
    # torch's own, of its collectives and of how it was built
    warnings.filterwarnings("ignore", module=r"torch\..*")
    loud = []  # what a user sees who has set nothing
    warnings.filterwarnings("default", message=".*gathered on rank 0")
    warnings.showwarning = lambda message, _, file, *__: loud.append(f"{message} in {os.path.basename(file)}")
    if MPI is None:
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=RANK, world_size=SIZE)
    else:
        dist.init_process_group("gloo")
        assert (dist.get_rank(), dist.get_world_size()) == (RANK, SIZE)
    line = init_device_mesh("cpu", (SIZE,))
    grid = init_device_mesh("cpu", (2, SIZE // 2) if SIZE > 1 else (1, 1))
    said = []
    log = logging.getLogger("lapwing")
    log.setLevel(logging.INFO)
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: said.append(record.getMessage())
    cases = [
        (line, [Shard(0)], 13, torch.float64),  # uneven: 4, 4, 4, 1
        (line, [Shard(1)], 9, torch.complex128),  # 3, 3, 3, 0
        (grid, [Shard(0), Shard(1)], 11, torch.float32),
        (grid, [Shard(1), Shard(0)], 8, torch.float64),
    ]
    if sys.argv[-1] == "cusolvermp":  # stand-in libraries, for which the host's memory is a device's
        dtensor.on_gpu = lambda local: True
        plan = lw.explain(lw.eigh, distribute_tensor(positive(8), line, [Shard(0)]))
        assert plan.engine == "cusolvermp" and not plan.missing and plan.devices == SIZE, plan
        for mesh, placements, n, dtype in cases[::2]:
            check_systems(mesh, placements, n, dtype)
            check_spectra(mesh, placements, n, dtype)
        check_gradients(line, [Shard(0)], 10)
        check_failures(line, [Shard(0)], 12)
        check_factor(grid, [Shard(0), Shard(1)], 9, torch.complex128)
        lost = lw.solve(
            distribute_tensor(-positive(6), line, [Shard(0)]), torch.ones(6, 1).double(), assume="pos", on_fail="nan"
        )
        assert lost.isnan().all()
        raises(NotImplementedError, "polar: on GPUs", lambda: lw.polar(distribute_tensor(positive(6)[:4], line, [Shard(0)])))
        assert RANK or not any("gathered" in x for x in said), set(said)
        dist.barrier()
        print("done", flush=True)
        dist.destroy_process_group()
        return
    check_explained(line, said, loud)
    # four ranks of MPI wait for each other with all the cores they have: fewer cases
    for mesh, placements, n, dtype in cases if MPI is None else cases[1:3]:
        check_systems(mesh, placements, n, dtype)
        check_spectra(mesh, placements, n, dtype)
    check_systems(line, [Shard(0)], 2, torch.float64)  # fewer rows than ranks
    if MPI is None:
        check_gradients(line, [Shard(0)], 10)
    check_gradients(grid, [Shard(0), Shard(1)], 10)
    check_failures(line, [Shard(0)], 12)
    check_factor(grid, [Shard(0), Shard(1)], 9, torch.complex128)
    check_whole_matrices(line)
    check_two_dtypes(line, [Shard(0)])
    check_refinement(line, said)
    check_batches_and_replicated(line)
    check_one_rank_astray(line)
    check_other_placements(grid)
    engine, not_this = ("scalapack", "gathered") if MPI is not None else ("gathered on rank 0", "scalapack,")
    assert RANK or (any(engine in x for x in said) and not any(not_this in x for x in said)), set(said)
    # each operation once; an error, where the user wants that, on every rank
    assert all("hint: lapwing launch -n 4 script.py" in x for x in loud), loud
    assert any("cholesky: gathered on rank 0 of 4" in x for x in loud) == (MPI is None and RANK == 0), loud
    if MPI is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            a = distribute_tensor(positive(6), line, [Shard(0)])
            raises(UserWarning, "gathered on rank 0 of 4", lambda: lw.cholesky(a))
        raises(
            ValueError,
            "needs ranks that MPI started",
            lambda: lw.inv(distribute_tensor(positive(8), line, [Shard(0)]), engine="scalapack"),
        )
        a = distribute_tensor(positive(8), line, [Shard(0)])
        close(lw.eigvalsh(a, b=a), torch.ones(8).double(), 80, "generalised")
        assert lw.lstsq(a, torch.ones(8).double()).residuals.shape == ()
        rcond = lw.factor(a).rcond().to_local().item()
        assert 0.999 <= rcond * np.linalg.cond(positive(8).numpy(), 1) <= 3
        alone = init_device_mesh("cpu", (SIZE, 1), mesh_dim_names=("x", "y"))["y"]  # each rank has a mesh of its own
        for placements in ([Shard(0)], [Shard(1)]):
            check_one_rank(alone, placements)
        half = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("x", "y"))["y"]  # half of the ranks, twice
        a = positive(7)
        close(lw.cholesky(distribute_tensor(a, half, [Shard(0)])), torch.linalg.cholesky(a), 7, "a part of the mesh")
    dist.barrier()
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    np.seterr(all="raise")
    start()
