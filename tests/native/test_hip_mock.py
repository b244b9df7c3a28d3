"""AMD's libraries without a GPU: the stand-ins of test_cuda_mock.py under AMD's names, with waves of 64 lanes and 64 KB of
shared memory. The checks of answers are the same as on the CUDA path; here follows what differs."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness
from harness import named

import test_cuda_mock as cuda
import test_cuda_mock_eigh as eigh
from test_cuda_mock import cache  # noqa: F401

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture(scope="session")
def amd_libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory, amd=True)


@pytest.fixture(scope="session")
def libraries(amd_libraries):
    return amd_libraries / "new"


@pytest.fixture
def child(libraries, tmp_path):
    return harness.Children(libraries, tmp_path, amd=True)


@pytest.fixture
def old_child(amd_libraries, tmp_path):
    """ROCm 5: the compiler is a part of the driver, sizes have 32 bits, and nothing finds a part of a spectrum."""
    children = harness.Children(amd_libraries / "old", tmp_path, amd=True)
    return lambda code, **settings: children(code, **{"MOCK_ROCBLAS_VERSION": "2.44.0", **settings})


# ---- answers: as on the CUDA path ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(child, dtype):
    """The engines take what fits in 64 KB of shared memory, and refuse the rest with that reason."""
    largest = {"float32": 128, "float64": 96, "complex64": 96, "complex128": 64}[dtype]
    code = f"""
    for n in (1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 65, 97, 128):
        for upper in (False, True):
            if n <= {largest}:
                check("{dtype}", 3, n, "batched", upper)
            check("{dtype}", 2, n, "rocsolver", upper)
            check("{dtype}", 2, n, "auto", upper)
        if "{dtype}" == "float32":
            check("{dtype}", 1, n, "tiled", in_place=True)
    for engine in ("batched", "rocsolver", "auto"):
        for batch, n in ((0, 4), (3, 0), (0, 0)):
            check("{dtype}", batch, n, engine)
    tell(text=message(lambda: check("{dtype}", 1, {largest} + 1, "batched")))
    """
    _, told = child(code)
    assert "shared memory" in told["text"] or "n up to 128" in told["text"]


def test_batches(child):
    """Many factors at once; what fails is named by its place in the batch."""
    code = """
    check("float64", 5, 100, "rocsolver")
    a, _ = problem("complex64", 4, 40)
    a[2, 17, 17] = -1
    tell(info=cholesky(a, "rocsolver")[1].tolist())
    """
    calls, told = child(code)
    assert told["info"] == [0, 0, 18, 0]
    used = {c["call"] for c in calls if "potrf" in c["call"]}
    assert used == {f"rocsolver_{letter}potrf_strided_batched" for letter in "dc"}


test_finite = cuda.test_finite
test_empty_batches_touch_no_driver = cuda.test_empty_batches_touch_no_driver
test_two_processes_fill_the_cache = cuda.test_two_processes_fill_the_cache
test_eigh_failed_matrices = eigh.test_cusolver_failed_matrices
test_krylov = eigh.test_krylov_answers
test_xla_eigh = eigh.test_xla_eigh


@pytest.mark.parametrize("dtype", DTYPES)
def test_eigh(child, dtype):
    """Whole spectra, parts of them, batches together; and what our own kernels have room for."""
    code = f"""
    for n in (1, 2, 9, 24, 40):
        for upper in (False, True):
            check_eigh(hermitian("{dtype}", 1, n), "rocsolver", upper)
            check_eigh(hermitian("{dtype}", 5, n), "rocsolver", upper, vectors=upper)
    for part in ((0, 3), (5, 4), (20, 4)):
        for vectors in (True, False):
            check_eigh(hermitian("{dtype}", 1, 24), "rocsolver", part=part, vectors=vectors)
            check_eigh(hermitian("{dtype}", 3, 24), "rocsolver", part=part, vectors=vectors)
    """
    calls, _ = child(code)
    used = {c["call"].partition("_")[2][1:] for c in calls if c["call"].startswith("rocsolver_")}
    kind = "heevd" if dtype.startswith("c") else "syevd"
    assert used == {kind, f"{kind}x", f"{kind}_strided_batched"}


def test_older_libraries(old_child):
    """Part of a spectrum is cut out of all of it, products and solves have 32-bit sizes."""
    code = f"""
    for dtype in {DTYPES}:
        check(dtype, 2, 40, "rocsolver")
        check(dtype, 2, 40, "batched")
        a = hermitian(dtype, 1, 24)
        check_eigh(a, "rocsolver", part=(3, 5))
        check_eigh(a, "rocsolver", part=(3, 5), vectors=False)
        check_eigh(hermitian(dtype, 4, 24), "rocsolver")
    tell(gpus=native.amd_gpus())
    """
    calls, told = old_child(code)
    assert told["gpus"] == [["gfx90a", 64]] * 2
    assert not [c for c in calls if c["call"].endswith("evdx")]


def test_the_builtins_are_not_the_compiler(old_child, amd_libraries, tmp_path):
    """A framework that compiled something has loaded them; here the compiler is a part of the driver."""
    builtins = tmp_path / "libhiprtc-builtins.so.5"
    builtins.symlink_to(next((amd_libraries / "old").glob("librocblas*")))
    old_child(f"ctypes.CDLL('{builtins}')\ncheck('float64', 2, 5, 'batched')")


# ---- what is here ----------------------------------------------------------------------------------------------------


def test_what_is_here(child):
    code = """
    import lapwing as lw
    tell(gpus=native.gpus(), amd=native.amd_gpus(), versions=native.amd_versions(), cuda=native.cuda_versions(),
         usable={e.name: e.usable_on for e in lw.engines()}, missing={e.name: e.missing for e in lw.engines()})
    """.replace("cusolver", "rocsolver")
    _, told = child(code, MOCK_GFX="gfx942:sramecc+", MOCK_LANES=64)
    assert told["gpus"] == [["Mock Instinct", 0, 2**37]] * 2
    assert told["amd"] == [["gfx942", 64]] * 2
    hip = "6.2.41134"
    assert told["versions"] == {"driver": hip, "compiler": hip, "blas": "4.2.1.1a2b3c", "solver": "3.26.0.40602"}
    assert told["cuda"] == {}
    assert all("cuda" in told["usable"][name] for name in ("batched", "tiled", "rocsolver", "krylov", "mixed", "tall"))
    assert "not made by NVIDIA" in told["missing"]["cuso" + "lver"]


def test_info_and_doctor(child, amd_libraries, tmp_path):
    """Both name the GPU, its architecture, the lanes of a wave and the libraries, or what is missing."""
    code = """
    import contextlib, io
    from lapwing.__main__ import main
    def said(*words):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            status = main(list(words))
        return text.getvalue(), status
    tell(info=said("info")[0], doctor=said("doctor"))
    """
    _, told = child(code, MOCK_GFX="gfx942:sramecc+")
    gpu = "Mock Instinct; gfx942, waves of 64 lanes"
    assert f"cuda:1      {gpu}" in told["info"] and "driver HIP 6.2.41134" in told["info"]
    assert "hipRTC 6.2.41134, rocBLAS 4.2.1.1a2b3c, rocSOLVER 3.26.0.40602" in told["info"]
    assert "copies of cuSOLVER" not in told["info"]
    lines = {line.split()[0]: line for line in told["info"].splitlines() if line.startswith("  ")}
    assert all("not usable" in lines["cuso" + name] for name in ("lver", "lvermg", "lvermp"))
    text, status = told["doctor"]
    assert gpu in text and "compiled by hipRTC 6.2.41134" in text and "3.26.0.40602" in text and status == 0, text
    # without the solver
    folder = tmp_path / "part"
    folder.mkdir()
    for library in (amd_libraries / "new").iterdir():
        if not library.name.startswith("librocsolver"):
            (folder / library.name).symlink_to(library)
    _, told = child(code, LAPWING_HIP_PATH=folder, MOCK_LIBRARIES=folder, ROCM_PATH=tmp_path)
    if "rocSOLVER" not in told["info"]:  # else it is installed on this machine
        assert "ROCm solver" in told["info"] and "install ROCm's rocSOLVER" in told["info"]
        assert "librocsolver.so was not found" in told["doctor"][0]


CUPY = f"""
    import sys, types
    sys.path.append({str(Path(__file__).parents[1] / "distributed")!r})
    import numpy as np
    import stand_in_cupy
    stand_in_cupy.install()
    import cupy
    def refuse():
        raise RuntimeError("streamIsCapturing is not supported in ROCm")
    now = types.SimpleNamespace(ptr=0, is_capturing=refuse)
    def alloc(size, kept=[]):
        kept.append(Memory(size))
        return types.SimpleNamespace(ptr=kept[-1].address)
    vars(cupy.cuda).update(get_current_stream=lambda: now, alloc=alloc, runtime=types.SimpleNamespace(is_hip=True))
    cupy.__getattr__ = lambda name: getattr(np, name)
    import lapwing as lw
    a = np.random.default_rng(0).standard_normal((3, 40, 40))
    a = cupy.asarray(a @ a.swapaxes(-1, -2) + 40 * np.eye(40))
"""


def test_cupy_for_rocm(child):
    """Such a build raises an error when it is asked whether a graph is captured."""
    code = """
    for engine in ("batched", "rocsolver", "auto"):
        l = lw.cholesky(a, engine=engine)
        assert type(l) is cupy.ndarray and np.abs(l @ l.swapaxes(-1, -2) - a).max() < 1e-12
    b = a.copy()
    b[1, 17, 17] = -1
    try:
        lw.cholesky(b)
    except lw.NotPositiveDefiniteError as error:
        tell(where=(error.batch_index, error.minor))
    """
    _, told = child(CUPY + code)
    assert told["where"] == [[1], 18]


def test_jax_has_the_handler_on_rocm(monkeypatch):
    """XLA looks for it by the name of the platform, which is ROCM on AMD's GPUs."""
    jax = pytest.importorskip("jax")
    import lapwing.frameworks.jax as ours

    registered = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, *_, platform: registered.append((name, platform)))
    ours._register.__wrapped__()
    assert {(name, platform) for name in (ours._TARGET, ours._LAUNCH) for platform in ("cpu", "CUDA", "ROCM")} == {*registered}


def test_options_of_the_compiler(child):
    calls, _ = child('check("float64", 1, 5, "batched")', MOCK_GFX="gfx1100", MOCK_LANES=32)
    (options,) = [c["options"].split("|") for c in named(calls, "nvrtcCompileProgram")]
    assert {"-std=c++17", "-DLW_WAVE=32", "--offload-arch=gfx1100"} <= set(options)


def test_cache(child, cache):  # noqa: F811
    assert cuda.compiled(child(cuda.ONE, LAPWING_CACHE=cache)) == 0
    assert cuda.compiled(child(cuda.ONE, LAPWING_CACHE=cache, MOCK_GFX="gfx942")) == 1
    assert cuda.compiled(child(cuda.ONE, LAPWING_CACHE=cache, MOCK_LANES="32")) == 1
    assert cuda.compiled(child(cuda.ONE, LAPWING_CACHE=cache, MOCK_HIP_VERSION=60342131)) == 1  # a newer ROCm


REFUSED = """
    from lapwing.core.problem import Problem
    import lapwing.planner as planner
    engine = "{engine}"
    call = (CHOLESKY, 1, CUDA, 0, ENGINES[engine], 0, 0, (1, 8))
    x = Memory(1024)
    tell(run=message(lambda: native.run(*call, 0, None, x.address, x.address, x.address)),
         plan=planner.refusal(engine, Problem("cholesky", "float64", 1, 8, device="cuda")))
"""


def test_the_other_vendors_engine_is_refused(child):
    _, told = child(REFUSED.format(engine="cuso' 'lver").replace("\"cuso' 'lver\"", "'cuso' 'lver'"))
    assert (
        told["run"]
        == 'engine cusolver is for GPUs of NVIDIA, and this is Mock Instinct, a GPU of AMD\nhint: engine="rocsolver"'
    )
    assert 'hint: engine="rocsolver"' in told["plan"]


# ---- devices, streams, errors ----------------------------------------------------------------------------------------


def test_the_current_device_is_restored(child):
    code = """
    check("float64", 1, 5, "batched", ordinal=1)
    check("float64", 1, 5, "batched", stream=stream(1))
    check("float64", 1, 40, "rocsolver", stream=stream(1))
    assert balanced()
    """
    calls, _ = child(code)
    assert {c["device"] for c in named(calls, "cuLaunchKernel")} == {"1"}
    assert named(calls, "hipSetDevice")[-1]["device"] == "0"


def test_no_two_streams_share_a_handle(child):
    """rocBLAS's handles hold device memory, which streams must not share; on one stream they are used again."""
    code = """
    for s in (stream(0), stream(1)) * 2:
        check("float64", 2, 40, "rocsolver", stream=s)
    """
    calls, _ = child(code)
    used = {(c["handle"], c["stream"]) for c in named(calls, "rocsolver_dpotrf_strided_batched")}
    assert len(used) == len({handle for handle, _ in used}) == len({stream for _, stream in used}) == 2


def test_failing_calls(child):
    code = """
    a, _ = problem("float64", 1, 40)
    orders = ["rocblas_create_handle:1", "cuModuleLoadData:1", "cuLaunchKernel:1", "hipSetDevice:1", "rocblas_set_stream:1",
              "rocblas_start_device_memory_size_query:1", "rocblas_set_workspace:1", "rocsolver_dpotrf:2"]
    tell(texts=[failing(order, lambda: cholesky(a, "rocsolver", scratch=1 << 20)) for order in orders])
    """
    _, told = child(code)
    said = ["starting the solver", "loading a kernel", "launching a kernel", "entering the GPU context", "choosing the stream",
            "asking for the workspace", "cholesky: the GPU solver", "cholesky: the GPU solver"]  # fmt: skip
    assert [part in (text or "") for part, text in zip(said, told["texts"], strict=True)] == [True] * len(said), told["texts"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"MOCK_DEVICES": 0}, "the AMD driver sees no GPU"), ({"MOCK_FAIL": "cuInit:0"}, "the AMD driver does not start")],
)
def test_no_gpu(child, settings, said):
    code = 'tell(text=message(lambda: check("float32", 1, 3, "batched", scratch=0)), gpus=native.gpus())'
    _, told = child(code, **settings)
    assert said in told["text"] or Path("/dev/nvidiactl").exists()
    assert told["gpus"] == []


def test_no_driver(child, tmp_path):
    """On a machine that may have a GPU of either vendor both drivers are named."""
    for name in ("libcuda.so.1", *(f"libamdhip64.so{version}" for version in (".7", ".6", ".5", ".4", ".0", ""))):
        (tmp_path / name).write_text("this hides one that is installed")
    settings = dict.fromkeys(("LAPWING_HIP_PATH", "LD_LIBRARY_PATH", "ROCM_PATH"), tmp_path)
    _, told = child("tell(text=native.missing('driver'))", **settings)
    assert told["text"] == "neither libcuda.so.1 nor libamdhip64.so was found"


@pytest.mark.parametrize(
    ("name", "engine", "said"),
    [
        ("librocsolver", "rocsolver", "librocsolver.so was not found"),
        ("librocblas", "rocsolver", "librocblas.so was not found"),
        ("libhiprtc", "batched", "run-time compiler: libamdhip64"),
    ],
)
def test_absent_library(libraries, child, tmp_path, name, engine, said):
    folder = tmp_path / "some"
    folder.mkdir()
    for library in libraries.iterdir():
        if not library.name.startswith(name):
            (folder / library.name).symlink_to(library)
    code = f"""
    import lapwing as lw
    text = message(lambda: check("float32", 1, 3, "{engine}", scratch=1024))
    tell(text=text, missing={{e.name: e.missing for e in lw.engines()}})
    """
    _, told = child(code, LAPWING_HIP_PATH=folder, MOCK_LIBRARIES=folder, ROCM_PATH=tmp_path)
    if told["text"] is None:
        pytest.skip(f"{name} is installed on this machine")
    assert said in told["text"] or name == "libhiprtc", told["text"]
    assert told["missing"][engine]


def test_engines_that_turn_to_the_solver(libraries, child, tmp_path):
    """Without it they are refused before anything is computed, and lapwing info says why."""
    folder = tmp_path / "some"
    folder.mkdir()
    for library in libraries.iterdir():
        if not library.name.startswith("librocsolver"):
            (folder / library.name).symlink_to(library)
    code = """
    import lapwing as lw
    from lapwing.core.problem import Problem
    import lapwing.planner as planner
    tell(mixed=planner.refusal("mixed", Problem("solve", "float64", 1, 600, device="cuda", columns=1, pos=True)),
         missing={e.name: e.missing for e in lw.engines()})
    """
    _, told = child(code, LAPWING_HIP_PATH=folder, MOCK_LIBRARIES=folder, ROCM_PATH=tmp_path)
    assert "librocsolver.so was not found" in told["mixed"]
    assert all("librocsolver.so" in told["missing"][name] for name in ("rocsolver", "mixed", "tall"))
    assert not told["missing"]["krylov"]


def test_xla_calls(child):
    """One handler serves both vendors: jax registers it on the platforms CUDA and ROCM."""
    code = f"""
    for engine in ("batched", "rocsolver", "auto"):
        for dtype in {DTYPES}:
            a, expected = problem(dtype, 3, 40)
            failed, factor, info, books = execute("cuda", a, engine, stream=stream(0))
            assert not failed and not info.any() and books["allocations"] == books["frees"], (engine, dtype, books)
            assert error_of((factor, expected), 40) < 10
    """
    child(code)


def test_capture(child):
    """Loading code during a capture is allowed, and the mode is as before."""
    child('check("float64", 1, 5, "batched")', MOCK_CAPTURING=1)
