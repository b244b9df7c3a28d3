"""In-situ analysis on a CPU: cost of the coupling, and the streaming POD against the SVD of the stored history.

    python benchmarks/insitu.py [--only overhead|pod] [--points 256] [--snapshots 1000] [--modes 20] [--threads 1]
                                [--output FILE]

Prints pass or fail against the bars, and writes everything to benchmarks/results/. Exit code: 0 all passed, 1 a missed bar.
The POD: 2-D Burgers on points x points (u, v), double precision. Both analyses run in separate processes, so that each has its
own peak memory; the memory of the solver is measured in a third process and subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parent / "results"
_CPU_BAR, _MEMORY_BAR, _ERROR_BAR, _STEP_BAR_US = 5.0, 10.0, 1e-8, 10.0


def main() -> int:
    options = _options()
    if options.child:
        print(json.dumps(_CHILDREN[options.child](options)))
        return 0
    verdicts: list[tuple[str, bool]] = []
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%S"), "threads": options.threads}
    report["environment"] = {"python": platform.python_version(), "numpy": version("numpy"), "cpus": os.cpu_count()}
    report["environment"]["processor"] = _processor()
    if options.only in (None, "overhead"):
        report["overhead"] = found = _run("overhead", options)
        for name, us in found.items():
            verdicts.append((f"no-op analysis, {name}: {us:.2f} us per step (bar {_STEP_BAR_US:g})", us <= _STEP_BAR_US))
    if options.only in (None, "pod"):
        report["pod"], more = _pod(options)
        verdicts += more
    for text, passed in verdicts:
        print(f"{'pass' if passed else 'FAIL'}  {text}")
    report["verdicts"] = [{"what": text, "passed": passed} for text, passed in verdicts]
    path = options.output or _RESULTS / f"insitu-cpu-{report['date'][:10]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {path}")
    return 0 if all(passed for _, passed in verdicts) else 1


def _pod(options: argparse.Namespace) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    alone, stream, batch = (_run(name, options) for name in ("solver", "stream", "batch"))
    reference, sigma = batch.pop("sigma"), stream.pop("sigma")
    error = max(abs(a - b) for a, b in zip(sigma, reference, strict=True)) / reference[0]
    cpu = batch["cpu_s"] / stream["cpu_s"]
    memory = (batch["peak_mb"] - alone["peak_mb"]) / max(stream["peak_mb"] - alone["peak_mb"], 1e-9)
    size = f"{2 * options.points**2} x {options.snapshots}"
    for name, row in (("stream", stream), ("batch", batch)):
        row["extra_mb"] = row["peak_mb"] - alone["peak_mb"]
        print(f"{name}: {size}, {row['cpu_s']:.2f} s CPU, {row['extra_mb']:.0f} MB more than the solver")
    print(
        f"stream: sigma_0 {sigma[0]:.9g}, sigma_{len(sigma) - 1} {sigma[-1]:.6g}; error bound {stream['bound']:.3g}"
        f" ({stream['bound'] / sigma[0]:.2g} sigma_0), true error {error:.2g} sigma_0;"
        f" orthogonality {stream['orthogonality']:.2g}; energy {stream['energy']:.12f}"
    )
    true_error = max(abs(a - b) for a, b in zip(sigma, reference, strict=True))
    verdicts = [
        (f"POD: CPU time {cpu:.1f}x less than numpy.linalg.svd (bar {_CPU_BAR:g})", cpu >= _CPU_BAR),
        (f"POD: extra memory {memory:.1f}x less (bar {_MEMORY_BAR:g})", memory >= _MEMORY_BAR),
        (f"POD: error of sigma {error:.2g} sigma_0 (bar {_ERROR_BAR:g})", error <= _ERROR_BAR),
        (f"POD: the bound {stream['bound']:.3g} holds the error {true_error:.3g}", true_error <= stream["bound"]),
        (f"POD: orthogonality {stream['orthogonality']:.2g}", stream["orthogonality"] <= 1e-12),
    ]
    detail = {"size": size, "modes": options.modes, "solver": alone, "stream": stream, "batch": batch}
    return detail | {"sigma": sigma, "sigma_reference": reference, "error": error}, verdicts


# ------------------------------------------------------------------------------------------------------- one process each


def _solver(options: argparse.Namespace) -> dict[str, Any]:
    for _ in _burgers(options.points, options.snapshots):
        pass
    return {"peak_mb": _peak_mb()}


def _stream(options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from lapwing import insitu

    pod = insitu.POD("w", rank=options.modes)
    hub = insitu.Hub([pod], output=None, quiet=True)
    spent = 0.0
    for n, w in enumerate(_burgers(options.points, options.snapshots)):
        begin = time.process_time()
        hub.step(n, float(n), w=w)
        spent += time.process_time() - begin
    begin = time.process_time()
    hub.finish()
    spent += time.process_time() - begin
    peak = _peak_mb()
    modes = pod.modes("w").reshape(pod.rank, -1)
    gap = float(np.abs(modes @ modes.T - np.eye(pod.rank)).max())
    found = {"sigma": pod.sigma.tolist(), "bound": pod.bound, "weyl": pod.weyl, "energy": pod.energy, "orthogonality": gap}
    return found | {"cpu_s": spent, "peak_mb": peak}


def _batch(options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    history = np.empty((options.snapshots, 2 * options.points**2))
    spent = 0.0
    for n, w in enumerate(_burgers(options.points, options.snapshots)):
        begin = time.process_time()
        history[n] = w.reshape(-1)
        spent += time.process_time() - begin
    begin = time.process_time()
    # snapshots as columns, as POD has them; the values do not depend on it
    _, sigma, _ = np.linalg.svd(history.T, full_matrices=False)
    spent += time.process_time() - begin
    return {"sigma": sigma[: options.modes].tolist(), "cpu_s": spent, "peak_mb": _peak_mb()}


def _overhead(options: argparse.Namespace) -> dict[str, Any]:
    import tempfile

    import numpy as np

    from lapwing import insitu
    from lapwing.insitu.solver import bridge

    u = np.zeros(258)

    @insitu.on_step
    def nothing(ctx: Any, u: Any) -> None:
        pass

    hub = insitu.Hub([nothing], output=None, quiet=True)
    best = {"Hub.step": 1e9, "bridge": 1e9}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text("from lapwing import insitu\n\n@insitu.on_step\ndef nothing(ctx, u):\n    pass\n")
        session = bridge.start(str(script), json.dumps({"output": folder, "quiet": True}), -1)
        pointer = u.ctypes.data
        for _ in range(10):
            begin = time.perf_counter()
            for n in range(2000):
                hub.step(n, 0.0, u=u)
            best["Hub.step"] = min(best["Hub.step"], (time.perf_counter() - begin) / 2000 * 1e6)
            begin = time.perf_counter()
            for n in range(2000):
                session.field("u", pointer, (258,), None, "f", 64, 1, 0, 0, False)
                session.step(n, 0.0)
            best["bridge"] = min(best["bridge"], (time.perf_counter() - begin) / 2000 * 1e6)
        assert session.error() == "" and session.finalize() == 0
    return best


_CHILDREN = {"solver": _solver, "stream": _stream, "batch": _batch, "overhead": _overhead}


def _burgers(points: int, snapshots: int) -> Any:
    """2-D Burgers, periodic, (u, v) from a few smooth vortices; explicit; yields w = [u, v], always the same memory."""
    import numpy as np

    h = 2 * np.pi / points
    viscosity = 0.6 * h  # the steepest fronts are resolved: a cell Reynolds number below 2
    dt = 0.2 * min(h, h * h / (4 * viscosity))
    x = np.arange(points) * h
    w = np.empty((2, points, points))
    w[0] = np.sin(x)[:, None] * np.cos(x)[None] + 0.3 * np.cos(2 * x + 1)[None] * np.sin(x + 0.5)[:, None]
    w[1] = -np.cos(x)[:, None] * np.sin(x)[None] + 0.3 * np.sin(2 * x)[:, None] * np.cos(x)[None]
    # one cell of halo: plain slices instead of rolled copies
    full = np.empty((2, points + 2, points + 2))
    steps = 2  # between two snapshots
    change, work = np.empty_like(w), np.empty_like(w)
    for _ in range(snapshots):
        for _ in range(steps):
            full[:, 1:-1, 1:-1] = w
            full[:, 0, 1:-1], full[:, -1, 1:-1] = w[:, -1], w[:, 0]
            full[:, 1:-1, 0], full[:, 1:-1, -1] = w[:, :, -1], w[:, :, 0]
            north, south = full[:, 2:, 1:-1], full[:, :-2, 1:-1]
            east, west = full[:, 1:-1, 2:], full[:, 1:-1, :-2]
            # viscosity (laplacian) - u d/dx - v d/dy
            np.add(north, south, out=change)
            change += east
            change += west
            np.multiply(w, 4.0, out=work)
            change -= work
            change *= viscosity / h**2
            np.subtract(north, south, out=work)
            work *= w[0] / (2 * h)
            change -= work
            np.subtract(east, west, out=work)
            work *= w[1] / (2 * h)
            change -= work
            change *= dt
            w += change
        yield w


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _run(child: str, options: argparse.Namespace) -> dict[str, Any]:
    threads = str(options.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    numbers = [f"--{name}={getattr(options, name)}" for name in ("points", "snapshots", "modes", "threads")]
    command = [sys.executable, __file__, "--child", child, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("overhead", "pod"))
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--snapshots", type=int, default=1000)
    parser.add_argument("--modes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", choices=tuple(_CHILDREN), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
