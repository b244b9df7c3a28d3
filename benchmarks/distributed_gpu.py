"""cuSOLVERMp with one rank on one GPU: checked, and timed beside cuSOLVER (through lapwing and through torch).

    python benchmarks/distributed_gpu.py [--sizes 4096 16384] [--seconds 120] [--output FILE]
    python benchmarks/distributed_gpu.py --sizes 2048 --seconds 40      # within a minute

Each answer is checked on the device before its time is kept: residuals of at most 10 n eps. Times are the best of some repeats,
with the device waited for. "public" is the call on a torch DTensor over a mesh of one GPU, or on a ShardedMatrix of one block
(factors, determinants, blocks of several libraries), with its copies in and out;
"routine" the library's own call on data in its layout; "lapwing" and "torch" are cuSOLVER on the plain tensor;
"jaxmg" is lapwing.compat.jaxmg on a JAX mesh of one GPU, "jax" is jax.numpy and jax.scipy under jit.
More than one GPU was not at hand: what is measured here says nothing of NCCL between GPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import lapwing as lw
from lapwing.distributed.backends.cusolvermp.blocks import Operand
from lapwing.distributed.backends.cusolvermp.memory import DeviceMemory as TorchMemory
from lapwing.distributed.backends.cusolvermp.nccl import nccl
from lapwing.distributed.backends.cusolvermp.session import Session, open_session
from lapwing.distributed.layout import Axis, Layout
from lapwing.distributed.matrix import ShardedMatrix

_RESULTS = Path(__file__).parent / "results"
_BEGUN = perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--seconds", type=float, default=120.0, help="no new case is begun after this")
    parser.add_argument("--only", choices=[c.__name__ for c in CASES], help="one case, and no small checks of all dtypes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda", 0)
        )
        mesh = init_device_mesh("cuda", (1,))
        report = {**environment(), "rows": [], "correctness": [], "failed": []}
        name = "h200-distributed" + (f"-{options.only}" if options.only else "")
        output = options.output or _RESULTS / f"{name}-{report['date']}.json"
        try:
            report["cusolvermp"] = mp_version()
            try:
                if not options.only:
                    correctness(mesh, report["correctness"])
            except Exception as error:
                report["failed"].append(f"correctness: {type(error).__name__}: {error}")
                print(report["failed"][-1], flush=True)
            for n in options.sizes:
                for case in CASES if options.only is None else [c for c in CASES if c.__name__ == options.only]:
                    for dtype in (torch.float64,) if n > 8192 and case is spectrum else (torch.float64, torch.float32):
                        if perf_counter() - _BEGUN > options.seconds:
                            report["failed"].append(f"left out, as the time was up: {case.__name__} n={n} {dtype}")
                            continue
                        try:
                            rows = case(mesh, n, dtype)
                        except Exception as error:
                            report["failed"].append(f"{case.__name__} n={n} {dtype}: {type(error).__name__}: {error}")
                            print(report["failed"][-1], flush=True)
                            continue
                        for row in rows:
                            print(json.dumps(row), flush=True)
                        report["rows"] += rows
                        torch.cuda.empty_cache()
        finally:
            output.write_text(json.dumps(report, indent=1) + "\n")
        dist.destroy_process_group()
    wrong = [r for r in report["rows"] + report["correctness"] if r["error"] > 10]
    print(f"{len(report['rows'])} rows, {len(wrong)} wrong, {len(report['failed'])} failed; wrote {output}")
    return int(bool(wrong or report["failed"]))


def environment() -> dict[str, Any]:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    version = nccl().version
    return {
        "kind": "distributed",
        "command": "python benchmarks/distributed_gpu.py " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "nccl": f"{version // 10000}.{version // 100 % 100}.{version % 100}",
        "python": sys.version.split()[0],
        "lapwing": lw.__version__,
        "ranks": 1,
        "unit": "ms, best of the repeats, device waited for; error in units of n eps (scaled residual)",
    }


def mp_version() -> str:
    return session_for(torch.empty(1, device="cuda")).library.version_in_words


def timed(call: Callable[[], Any], repeat: int = 3, limit: float = 6.0) -> float:
    """Milliseconds; a call that takes long is repeated less, and one that is not repeated was made before."""
    if repeat > 1:
        call()
    times = []
    begun = perf_counter()
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(perf_counter() - start)
        if perf_counter() - begun > limit:
            break
    return round(min(times) * 1e3, 4)


def matrix(n: int, dtype: torch.dtype, m: int | None = None, seed: int = 0) -> torch.Tensor:
    return torch.randn(m or n, n, dtype=dtype, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def spd(n: int, dtype: torch.dtype) -> torch.Tensor:
    x = matrix(n, dtype)
    a = x @ x.mH / n
    a.diagonal().add_(1)
    return a


def units(residual: torch.Tensor, scale: float, n: int) -> float:
    """In units of n eps."""
    return round(residual.abs().max().item() / (scale * n * torch.finfo(residual.dtype).eps), 6)


def session_for(x: torch.Tensor) -> Session:
    from lapwing.distributed.ranks.protocol import Alone

    memory = TorchMemory(x)
    return open_session(Alone(), memory.device, memory.allocate)


def given(x: torch.Tensor) -> Operand:
    memory = TorchMemory(x)
    return Operand(memory.pointer, Layout(Axis.whole(x.shape[0]), Axis.whole(x.shape[1])), memory.dtype, True, x)


def row(operation: str, n: int, dtype: torch.dtype, error: float, **times: float) -> dict[str, Any]:
    return {"operation": operation, "n": n, "dtype": str(dtype)[6:], "error": error, **times}


def positive(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    a, b = spd(n, dtype), matrix(8, dtype, n, seed=1)
    da, db = (distribute_tensor(x, mesh, [Shard(0)]) for x in (a, b))
    scale = a.abs().max().item() * n**0.5
    lower = lw.cholesky(da, engine="cusolvermp").to_local()
    error = units(lower @ lower.mH - a, scale, n)
    assert not lower.triu(1).any()
    rows = []
    session, name = session_for(a), TorchMemory(a).dtype
    for tile in (256, 512, 1024):
        layout = session.tiles(tuple(a.shape), "cholesky", tile)
        block = session.bring(given(a), layout)
        sides = session.bring(given(b), Layout.cyclic(tuple(b.shape), tile, (1, 1)))
        whole = block.owner.clone()

        def routine(block: Any = block, whole: Any = whole, layout: Any = layout) -> None:
            block.owner.copy_(whole)  # on torch's stream; the library has its own
            torch.cuda.synchronize()
            session.call("Potrf", layout, 0, n, block, dtype=name)

        def copied(block: Any = block, whole: Any = whole) -> None:
            block.owner.copy_(whole)
            torch.cuda.synchronize()

        potrf = timed(routine) - timed(copied)
        workspace = session.workspace[0]
        potrs = timed(lambda s=sides, b=block, l=layout: session.call("Potrs", l, 0, n, 8, b, s, dtype=name))
        rows.append(row("routine potrf", n, dtype, error, tile=tile, routine=round(potrf, 4), workspace=workspace))
        rows.append(row("routine potrs", n, dtype, error, tile=tile, routine=potrs, workspace=session.workspace[0]))
        del block, sides, whole
    rows.append(
        row(
            "cholesky", n, dtype, error,
            public=timed(lambda: lw.cholesky(da, engine="cusolvermp")),
            lapwing=timed(lambda: lw.cholesky(a)),
            torch=timed(lambda: torch.linalg.cholesky(a)),
        )
    )  # fmt: skip
    x = lw.solve(da, db, assume="pos", engine="cusolvermp").to_local()
    rows.append(
        row(
            "solve pos", n, dtype, units(a @ x - b, scale * x.abs().max().item(), n), columns=8,
            public=timed(lambda: lw.solve(da, db, assume="pos", engine="cusolvermp")),
            lapwing=timed(lambda: lw.solve(a, b, assume="pos")),
            torch=timed(lambda: torch.cholesky_solve(b, torch.linalg.cholesky(a))),
        )
    )  # fmt: skip
    x = lw.inv(da, assume="pos", engine="cusolvermp").to_local()
    eye = torch.eye(n, dtype=dtype, device="cuda")
    rows.append(
        row(
            "inv pos", n, dtype, units(a @ x - eye, scale * x.abs().max().item(), n),
            public=timed(lambda: lw.inv(da, assume="pos", engine="cusolvermp")),
            lapwing=timed(lambda: lw.inv(a, assume="pos")),
            torch=timed(lambda: torch.cholesky_inverse(torch.linalg.cholesky(a))),
        )
    )  # fmt: skip
    return rows


def general(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    a, b = matrix(n, dtype), matrix(8, dtype, n, seed=1)
    da, db = (distribute_tensor(x, mesh, [Shard(0)]) for x in (a, b))
    x = lw.solve(da, db, engine="cusolvermp").to_local()
    error = units(a @ x - b, a.abs().max().item() * n**0.5 * x.abs().max().item(), n)
    return [
        row(
            "solve general", n, dtype, error, columns=8,
            public=timed(lambda: lw.solve(da, db, engine="cusolvermp")),
            lapwing=timed(lambda: lw.solve(a, b)),
            torch=timed(lambda: torch.linalg.solve(a, b)),
        )
    ]  # fmt: skip


def factored(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Factor once, solve and ask for the determinant; a ShardedMatrix of one block. "lapwing" is the plain tensor."""
    rows = []
    b = matrix(8, dtype, n, seed=1)
    sides = ShardedMatrix.from_local(b, None)
    for assume, a in (("pos", spd(n, dtype)), ("general", matrix(n, dtype))):
        held = ShardedMatrix.from_local(a, None)
        known: dict[str, Any] = {"assume": assume, "engine": "cusolvermp"}
        made, plain = lw.factor(held, **known), lw.factor(a, assume=assume)
        x = made.solve(sides).local
        error = units(a @ x - b, a.abs().max().item() * n**0.5 * x.abs().max().item(), n)
        expected = torch.linalg.slogdet(a)
        sign, logabs = made.slogdet()
        wrong = abs(float(logabs) - expected.logabsdet.item()) / (abs(expected.logabsdet.item()) * n * torch.finfo(dtype).eps)
        wrong = 99.0 if sign != expected.sign.item() else round(wrong, 6)
        rows += [
            row(
                f"factor {assume}", n, dtype, error,
                public=timed(lambda held=held, known=known: lw.factor(held, **known)),
                lapwing=timed(lambda a=a, assume=assume: lw.factor(a, assume=assume)),
            ),
            row(
                f"solve by the factor {assume}", n, dtype, error, columns=8,
                public=timed(lambda made=made: made.solve(sides)),
                lapwing=timed(lambda plain=plain: plain.solve(b)),
            ),
            row(
                f"slogdet {assume}", n, dtype, wrong,
                public=timed(lambda held=held, known=known: lw.slogdet(held, **known)),
                lapwing=timed(lambda a=a, assume=assume: lw.slogdet(a, assume=assume)),
                torch=timed(lambda a=a: torch.linalg.slogdet(a)),
            ),
        ]  # fmt: skip
        del made, plain
    return rows


def libraries(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The same solve with blocks of torch, CuPy and NumPy, whose copies to the GPU and back are in its time."""
    a, b = spd(n, dtype), matrix(8, dtype, n, seed=1)
    kinds: dict[str, Callable[[torch.Tensor], Any]] = {"torch": lambda x: x, "numpy": lambda x: x.cpu().numpy()}
    try:
        import cupy

        kinds["cupy"] = cupy.asarray
    except ImportError:
        print("no CuPy here", flush=True)
    rows = []
    for name, kind in kinds.items():
        held, sides = (ShardedMatrix.from_local(kind(x), None) for x in (a, b))
        call = lambda held=held, sides=sides: lw.solve(held, sides, assume="pos", engine="cusolvermp")  # noqa: E731
        x = call()
        assert type(x.local) is type(held.local) and x.on_gpu == (name != "numpy")
        moved = held.redistribute(Layout.cyclic((n, n), 300, (1, 1)))
        found, same = (torch.as_tensor(y.local, device="cuda") for y in (x, moved))
        error = units(a @ found - b, a.abs().max().item() * n**0.5 * found.abs().max().item(), n)
        error = error if bool((same == a).all()) else 99.0
        rows.append(row(f"solve pos, {name} blocks", n, dtype, error, columns=8, public=timed(call)))
    return rows


def jax_mesh(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from lapwing.compat import jaxmg

    columns, everywhere = PartitionSpec(None, "x"), PartitionSpec(None, None)
    whole = jax.make_mesh((1,), ("x",))
    plain = jax.jit(lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a, lower=True), b))
    spectrum_of = jax.jit(jnp.linalg.eigh)
    a_torch, b_torch = spd(n, dtype), matrix(8, dtype, n, seed=1)
    with jax.enable_x64(True):
        on_one = jnp.from_dlpack(a_torch), jnp.from_dlpack(b_torch)
        a, b = (jax.device_put(x, NamedSharding(whole, p)) for x, p in zip(on_one, (columns, everywhere), strict=True))

        def solved() -> Any:
            return jax.block_until_ready(jaxmg.potrs(a, b, 256, whole, (columns, everywhere)))

        def found() -> Any:
            return jax.block_until_ready(jaxmg.syevd(a, 256, whole, columns))

        x = torch.from_dlpack(solved())
        error = units(a_torch @ x - b_torch, a_torch.abs().max().item() * n**0.5, n)
        times = {"jaxmg": timed(solved), "jax": timed(lambda: jax.block_until_ready(plain(*on_one)))}
        rows = [row("potrs of 8 columns, JAX", n, dtype, error, **times)]
        if n <= 8192:
            w, v = map(torch.from_dlpack, found())
            error = units(a_torch @ v - v * w, w.abs().max().item(), n)
            times = {"jaxmg": timed(found), "jax": timed(lambda: jax.block_until_ready(spectrum_of(on_one[0])))}
            rows.append(row("syevd, JAX", n, dtype, error, **times))
    return rows


def orthogonal(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    a = matrix(n, dtype)
    da = distribute_tensor(a, mesh, [Shard(0)])
    q, r = (x.to_local() for x in lw.qr(da, engine="cusolvermp"))
    eye = torch.eye(n, dtype=dtype, device="cuda")
    error = max(units(q @ r - a, a.abs().max().item() * n**0.5, n), units(q.mH @ q - eye, 1.0, n))
    assert not r.tril(-1).any()
    return [
        row(
            "qr", n, dtype, error,
            public=timed(lambda: lw.qr(da, engine="cusolvermp")),
            lapwing=timed(lambda: lw.qr(a)),
            torch=timed(lambda: torch.linalg.qr(a)),
        )
    ]  # fmt: skip


def unitary(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    a = matrix(n, dtype)
    held = ShardedMatrix.from_local(a, None)
    u, p = (x.local for x in lw.polar(held, engine="cusolvermp"))
    eye = torch.eye(n, dtype=dtype, device=a.device)
    error = max(units(u @ p - a, a.abs().max().item() * n**0.5, n), units(u.mH @ u - eye, 1.0, n))
    assert bool((p == p.mH).all())
    repeat = 1 if n > 8192 else 3
    times = {"public": timed(lambda: lw.polar(held, engine="cusolvermp"), repeat)}
    if n <= 8192:  # by singular values, which take long
        times["lapwing"] = timed(lambda: lw.polar(a), repeat)
    return [row("polar", n, dtype, error, **times)]


def spectrum(mesh: Any, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    x = matrix(n, dtype)
    a = (x + x.mH) / (2 * n) ** 0.5
    da = distribute_tensor(a, mesh, [Shard(0)])
    w, v = (y.to_local() for y in lw.eigh(da, engine="cusolvermp"))
    workspace = session_for(a).workspace[0]
    eye = torch.eye(n, dtype=dtype, device="cuda")
    error = max(units(a @ v - v * w, w.abs().max().item(), n), units(v.mH @ v - eye, 1.0, n))
    repeat = 1 if n > 8192 else 3
    return [
        row(
            "eigh", n, dtype, error, workspace=workspace,
            public=timed(lambda: lw.eigh(da, engine="cusolvermp"), repeat),
            lapwing=timed(lambda: lw.eigh(a), repeat),
            torch=timed(lambda: torch.linalg.eigh(a), repeat),
        )
    ]  # fmt: skip


def correctness(mesh: Any, rows: list[dict[str, Any]]) -> None:
    """All dtypes, both triangles, odd sizes, and failures: small, for the answers alone."""
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        n = 301
        a, b, tall = spd(n, dtype), matrix(5, dtype, n, seed=1), matrix(n, dtype, 2 * n + 1, seed=2)
        db, dt = (distribute_tensor(x, mesh, [Shard(0)]) for x in (b, tall))
        scale = a.abs().max().item() * n**0.5
        eye = torch.eye(n, dtype=dtype, device="cuda")
        for upper in (False, True):
            poisoned = a.clone()
            poisoned[(torch.ones_like(a.real).tril(-1) if upper else torch.ones_like(a.real).triu(1)).bool()] = float("nan")
            half = distribute_tensor(poisoned, mesh, [Shard(0)])
            known = {"upper": upper, "engine": "cusolvermp"}
            f = lw.cholesky(half, **known).to_local()
            rows.append(row("cholesky", n, dtype, units((f.mH @ f if upper else f @ f.mH) - a, scale, n), upper=upper))
            x = lw.solve(half, db, assume="pos", **known).to_local()
            rows.append(row("solve pos", n, dtype, units(a @ x - b, scale, n), upper=upper))
            x = lw.inv(half, assume="pos", **known).to_local()
            rows.append(row("inv pos", n, dtype, units(a @ x - eye, scale, n), upper=upper))
            logdet = lw.slogdet(half, assume="pos", **known).logabsdet.to_local()
            expected = torch.linalg.slogdet(a).logabsdet
            rows.append(row("slogdet pos", n, dtype, units(logdet - expected, abs(expected.item()), n), upper=upper))
            w, v = (y.to_local() for y in lw.eigh(half, subset=slice(-7, None), **known))
            rows.append(row("eigh of 7", n, dtype, units(a @ v - v * w, w.max().item(), n), upper=upper))
        g = tall[:n].contiguous()
        dg = distribute_tensor(g, mesh, [Shard(0)])
        x = lw.solve(dg, db, engine="cusolvermp").to_local()
        rows.append(row("solve general", n, dtype, units(g @ x - b, n**0.5 * 5 * x.abs().max().item(), n)))
        for assume, whole in (("pos", a), ("general", g)):
            held = ShardedMatrix.from_local(whole, None)
            made = lw.factor(held, assume=assume, engine="cusolvermp")
            x = made.solve(ShardedMatrix.from_local(b, None)).local
            rows.append(row(f"factor {assume}", n, dtype, units(whole @ x - b, n**0.5 * 5 * x.abs().max().item(), n)))
            x = made.inv().local
            rows.append(
                row(f"inv by the factor {assume}", n, dtype, units(whole @ x - eye, 5 * n**0.5 * x.abs().max().item(), n))
            )
        sign, logabs = (y.to_local() for y in lw.slogdet(dg, engine="cusolvermp"))
        expected = torch.linalg.slogdet(g)
        wrong = max(units(logabs - expected.logabsdet, abs(expected.logabsdet.item()), n), units(sign - expected.sign, 1.0, n))
        rows.append(row("slogdet general", n, dtype, wrong))
        q, r = (y.to_local() for y in lw.qr(dt, engine="cusolvermp"))
        rows.append(row("qr", n, dtype, units(q @ r - tall, 5 * n**0.5, n)))
        x = lw.lstsq(dt, distribute_tensor(tall @ eye[:, :3], mesh, [Shard(0)]), engine="cusolvermp").x.to_local()
        rows.append(row("lstsq", n, dtype, units(x - eye[:, :3], 1.0, n)))
    for value in (-1.0, 1e-3, float("nan")):
        a = spd(200, torch.float64)
        a[41, 41] = value
        found: dict[str, Any] = {"operation": "not positive definite", "value": str(value), "error": 99.0}
        try:
            lw.cholesky(distribute_tensor(a, mesh, [Shard(0)]), engine="cusolvermp")
        except lw.NotPositiveDefiniteError as error:
            right = error.minor == 42 and error.nonfinite == (value != value)
            found |= {"minor": error.minor, "nonfinite": error.nonfinite, "error": 0.0 if right else 99.0}
        session = session_for(a)
        layout = session.tiles((200, 200), "cholesky")
        found["info"] = session.call("Potrf", layout, 0, 200, session.bring(given(a), layout), dtype="float64")
        rows.append(found)
    a = torch.ones(200, 200, dtype=torch.float64, device="cuda")
    try:
        lw.inv(distribute_tensor(a, mesh, [Shard(0)]), engine="cusolvermp")
    except lw.SingularMatrixError as error:
        rows.append({"operation": "singular", "pivot": error.pivot, "error": 0.0 if error.pivot == 2 else 99.0})
    for bad in rows:
        if bad["error"] > 10:
            print("wrong:", json.dumps(bad), flush=True)
    print(f"{len(rows)} answers looked at", flush=True)


CASES = (positive, general, factored, libraries, jax_mesh, orthogonal, unitary, spectrum)

if __name__ == "__main__":
    sys.exit(main())
