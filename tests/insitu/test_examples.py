"""The example solvers: the original's digits from every back end, the exact solution, the same numbers on all ranks."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from insitu.cases import ERRORS
from insitu.cases import check_burgers as check
from insitu.harness import CFLAGS, EXAMPLES, INCLUDE, LIBS, MPI_ENVIRONMENT, build, compiler, need_embedding, run

BURGERS = EXAMPLES / "burgers"
SCRIPT = BURGERS / "burgers_analysis.py"
RELEASE = ["-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]


def exact_solution():
    spec = importlib.util.spec_from_file_location("exact", BURGERS / "exact.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.burgers


def test_serial(tmp_path):
    need_embedding()
    program = build(tmp_path / "burgers", *RELEASE, BURGERS / "burgers.cpp", *CFLAGS, *LIBS)
    done = run(program, SCRIPT, cwd=tmp_path)
    check(done.stdout)
    print(re.findall(r"Mean.*", done.stdout)[0])
    if importlib.util.find_spec("matplotlib"):
        for name in ("Field_evolution.png", "SVD_Eigenvectors.png"):
            assert (tmp_path / "insitu" / name).read_bytes().startswith(b"\x89PNG"), name


def test_openmp(tmp_path, numbers):
    need_embedding()
    flags = ["-fopenmp", "-DBURGERS_PARALLEL_FROM=0"]
    program = build(tmp_path / "burgers", *RELEASE, *flags, BURGERS / "burgers.cpp", *CFLAGS, *LIBS)
    check(run(program, numbers, cwd=tmp_path, OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive").stdout)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """The same analyses without pictures."""
    script = tmp_path_factory.mktemp("script") / "numbers.py"
    script.write_text(
        f"import sys\nsys.path.append({str(BURGERS)!r})\nimport burgers_analysis\nfrom lapwing import insitu\n"
        "analyses = [a for a in burgers_analysis.analyses() if not isinstance(a, insitu.Plot)]\n"
    )
    return script


def test_a_finer_mesh_is_nearer_to_the_exact_solution(tmp_path, numbers):
    need_embedding()
    program = build(tmp_path / "burgers", *RELEASE, BURGERS / "burgers.cpp", *CFLAGS, *LIBS)
    done = run(program, numbers, 512, cwd=tmp_path)
    errors = dict(re.findall(r"t = ([\d.]+): off the exact solution by ([\d.e+-]+)", done.stdout))
    assert float(errors["2.001"]) < ERRORS["2.001"] / 4


def test_fortran(tmp_path, numbers):
    need_embedding()
    sources = [INCLUDE / "lapwing_insitu.f90", BURGERS / "burgers.f90"]
    flags = ["-std=f2018", "-O3", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-J{tmp_path}"]
    program = build(tmp_path / "burgers", *flags, *sources, *LIBS, using="gfortran")
    check(run(program, numbers, cwd=tmp_path).stdout)


def test_cmake(tmp_path):
    """find_package finds the library from a copy of the example, and the programs find their script."""
    need_embedding()
    cmake = compiler("cmake")
    shutil.copytree(BURGERS, tmp_path / "burgers")
    options = [f"-DCMAKE_PREFIX_PATH={INCLUDE / 'cmake'}", "-DWITH_OPENMP=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    fortran = shutil.which("gfortran") or os.environ.get("FC")
    run(cmake, "-S", tmp_path / "burgers", "-B", tmp_path / "build", *options, *["-DWITH_FORTRAN=ON"] * bool(fortran))
    run(cmake, "--build", tmp_path / "build", "--parallel", "2")
    for name in ("burgers", "burgers_openmp"):
        assert "0.0733873" in run(tmp_path / "build" / name, LAPWING_INSITU="0").stdout
    check(run(tmp_path / "build" / "burgers", cwd=tmp_path).stdout)
    if fortran:
        check(run(tmp_path / "build" / "burgers_fortran", cwd=tmp_path / "build").stdout)


@pytest.fixture(scope="module")
def over_ranks(tmp_path_factory, numbers):
    """Runs the MPI example on a number of ranks."""
    need_embedding()
    mpicxx = compiler("mpicxx")
    pytest.importorskip("mpi4py")
    beside = shutil.which("mpiexec", path=str(Path(mpicxx).parent))
    if not beside:
        pytest.skip("there is no mpiexec beside mpicxx")
    known = run(beside, "--version").stdout
    spread = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in known or "OpenRTE" in known else []
    folder = tmp_path_factory.mktemp("mpi")
    rpath = f"-Wl,-rpath,{Path(mpicxx).parents[1] / 'lib'}"
    program = build(
        folder / "burgers_mpi", *RELEASE, EXAMPLES / "mpi" / "burgers_mpi.cpp", *CFLAGS, *LIBS, rpath, using="mpicxx"
    )

    def start(ranks: int, *arguments: object, **changes: str) -> str:
        """Rank 0 in the usual environment, the others in a changed one."""
        command = [program, numbers, *arguments]
        if changes:
            others = [f"{name}={value}" for name, value in changes.items()]
            command += [":", "-n", ranks - 1, "env", *others, *command]
        first = 1 if changes else ranks
        done = run(beside, *spread, "-n", first, *command, cwd=folder, timeout=100, **MPI_ENVIRONMENT)
        return done.stdout + done.stderr

    return start


@pytest.mark.parametrize("ranks", [1, 2])
def test_mpi(over_ranks, ranks):
    check(over_ranks(ranks))


def test_mpi_on_more_ranks_than_cores(over_ranks):
    """A few steps: waiting ranks take the cores from the working ones."""
    wanted = over_ranks(1, 0.1)
    values = [np.array(re.findall(r"singular values (.*)", text)[0].split(), float) for text in (wanted, over_ranks(4, 0.1))]
    count = min(map(len, values))
    assert count >= 4 and np.abs(values[0][:count] - values[1][:count]).max() <= 1e-8 * values[0][0]


@pytest.mark.parametrize(
    "change", [{"LAPWING_INSITU_PYTHON": "/nowhere"}, {"LAPWING_INSITU": "0"}, {"LAPWING_INSITU_SCRIPT": "/no.py"}]
)
def test_a_rank_without_python_keeps_no_other_waiting(over_ranks, change):
    output = over_ranks(2, 0.01, **change)
    assert "2 ranks, 10 steps" in output and "singular values" not in output
    assert "on another rank" in output or "could not be started" in output


# --------------------------------------------------------------------------------------------------------- exact solution


@pytest.mark.parametrize("t", [0.3, 1.0, 2.0])
def test_exact_solution_solves_the_equation(t):
    """u_t + u u_x = nu u_xx by differences whose error falls as d^2; and it is odd, periodic and bounded."""
    burgers, nu = exact_solution(), 0.05
    x = np.linspace(0.05, 6.2, 200)

    def residual(d: float) -> float:
        u, left, right = burgers(x, t, nu), burgers(x - d, t, nu), burgers(x + d, t, nu)
        u_t = (burgers(x, t + d, nu) - burgers(x, t - d, nu)) / (2 * d)
        return float(np.abs(u_t + u * (right - left) / (2 * d) - nu * (right - 2 * u + left) / d**2).max())

    coarse, fine = residual(4e-3), residual(1e-3)
    assert fine < 1e-3 and 14 < coarse / fine < 18
    u = burgers(x, t, nu)
    assert np.allclose(burgers(-x, t, nu), -u, rtol=0, atol=1e-14)
    assert np.allclose(burgers(x + 2 * np.pi, t, nu), u, rtol=0, atol=1e-13)
    assert np.abs(u).max() < 1


def test_exact_solution_needs_no_tuning():
    burgers = exact_solution()
    x = np.linspace(0, 2 * np.pi, 101)
    assert (burgers(x, 0.0) == np.sin(x)).all()
    for t in (1e-8, 1e-3, 0.5, 2.0, 50.0):
        for nu in (1e-3, 0.01, 1.0):
            u = burgers(x, t, nu)
            # the exponents reach 1 / nu, and carry rounding errors of that size
            bound = 10 * (1 + 1 / nu) * np.finfo(float).eps
            assert np.isfinite(u).all() and np.abs(u - burgers(x, t, nu, nodes=8001)).max() < bound


# ------------------------------------------------------------------------------------------------------------------- GPU


WHERE = """
import sys
sys.path.append({folder!r})
import burgers_analysis
from lapwing import insitu

class Where(insitu.Analysis):
    fields = None
    seen = 0
    def on_step(self, ctx, *arrays):
        field = ctx.fields["u"]
        assert field.device[0] == 2 and ctx.stream != 0
        array = field.array({library!r})
        address = dict(cupy=lambda: array.data.ptr, torch=lambda: array.data_ptr(), jax=lambda: field.pointer)[{library!r}]()
        assert address == field.pointer and array.shape == (256,), "no copy"
        self.seen += 1
    def on_finish(self, ctx):
        print("looked at", self.seen, {library!r}, "arrays", flush=True)

def analyses():
    return [Where(), *burgers_analysis.analyses()]
"""


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
def test_cuda(tmp_path, library):
    """The same source through nvcc; the field stays on the device, on a stream that does not wait for the default one."""
    need_embedding()
    pytest.importorskip(library)
    flags = ["-x", "cu", "-std=c++17", "-O3", "-fmad=false", BURGERS / "burgers.cpp", *CFLAGS]
    libs = [x.replace("-Wl,-rpath,", "-Xlinker=-rpath,") for x in LIBS]
    program = build(tmp_path / "burgers", *flags, *libs, using="nvcc")
    script = tmp_path / "analysis.py"
    script.write_text(WHERE.format(folder=str(BURGERS), library=library))
    # the solver owns the card: JAX must not take most of it at the start
    done = run(program, script, cwd=tmp_path, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    check(done.stdout)
    assert f"looked at 2001 {library} arrays" in done.stdout, done.stderr
    print(re.findall(r"Mean.*", done.stdout)[0])
