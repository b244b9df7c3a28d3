"""The CUDA path without a GPU: a stand-in driver, solver and run-time compiler keep books and check every argument.

Each group of checks runs in a child process. See tests/native/mock.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness
from harness import launched, named

DTYPES = ("float32", "float64", "complex64", "complex128")
pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory)


@pytest.fixture
def child(libraries, tmp_path):
    return harness.Children(libraries, tmp_path)


# ---- answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_answers(child, dtype):
    code = f"""
    sizes = {{
        "batched": (1, 2, 5, 6, 8, 9, 16, 17, 32, 33, 64, 65, 97, 128),
        "tiled": (1, 31, 64, 65, 130),
        "cusolver": (1, 5, 32, 33, 65),
    }}
    for engine, orders in sizes.items():
        for n in orders:
            for upper in (False, True):
                check("{dtype}", 3, n, engine, upper)
            check("{dtype}", 1, n, engine, n % 2 == 0, in_place=True)
        for batch, n in ((0, 4), (3, 0), (0, 0)):
            check("{dtype}", batch, n, engine)
    """
    calls, _ = child(code)
    used = set(launched(calls))
    assert used == {
        "cholesky_thread", "cholesky_rows", "cholesky_block", "cholesky_tiled", "cholesky_settle",
        "transpose_in", "check_diagonal", "finish",
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["batched", "tiled", "cusolver"])
def test_failed_matrices(child, engine):
    """info names the first pivot that is not finite and positive; only that matrix is NaN."""
    code = f"""
    for dtype in {DTYPES}:
        for n in (4, 20, 70):
            for upper in (False, True):
                a, expected = problem(dtype, 5, n, upper)
                a[1, 2, 2] = -1
                a[2, n - 1, n - 1] = np.nan
                a[3, 3, 3] = np.inf
                found, info = cholesky(a, "{engine}", upper)
                assert info.tolist() == [0, 3, n, 4, 0], (dtype, n, upper, info)
                for m in (0, 4):
                    assert error_of((found[m], expected[m]), n) < 10
                for m in (1, 2, 3):
                    assert np.isnan(found[m].real).all() and np.isnan(found[m].imag).all() == (found.dtype.kind == "c")
    """
    child(code)


def test_alignment(child):
    """Pointers that allow only narrow accesses get kernels compiled for them."""
    code = """
    for dtype, shift in (("float32", 4), ("float32", 8), ("float64", 8), ("complex64", 8), ("complex128", 16)):
        for engine in ("batched", "tiled", "cusolver"):
            for n in (3, 8, 20, 33, 64):
                check(dtype, 3, n, engine, n % 2 == 0, shift=shift)
    """
    calls, _ = child(code)
    assert {c["width"] for c in named(calls, "cuLaunchKernel")} == {"4", "8", "16"}


def test_finite(child):
    code = f"""
    for dtype in {DTYPES}:
        for n in (1, 5, 64, 65):
            for upper in (False, True):
                a, _ = problem(dtype, 4, n, upper)
                a[1, n - 1, n - 1] = np.inf
                a[2, 0, 0] = np.nan
                flags = np.full(4, -7, np.int32)
                native.run(FINITE, DTYPE_CODE[dtype], CUDA, 0, 0, 0, int(upper), (4, n), 0, None, a, flags)
                assert flags.tolist() == [1, 0, 0, 1], (dtype, n, upper, flags)
    """
    calls, _ = child(code)
    assert {"finite_start", "finite_small", "finite_large"} == set(launched(calls))


def test_finite_of_nothing(child):
    """A matrix of order 0 is finite, as on the CPU."""
    code = """
    flags = np.full(3, -7, np.int32)
    native.run(FINITE, 1, CUDA, 0, 0, 0, 0, (3, 0), 0, None, np.empty((3, 0, 0)), flags)
    tell(flags=flags.tolist())
    """
    assert child(code)[1] == {"flags": [1, 1, 1]}


def test_many_matrices(child):
    """Grids stay within the limits, and a batch that ends inside a block is whole."""
    code = """
    for n in (2, 7, 12, 40):
        check("float32", 517, n, "batched")
    """
    calls, _ = child(code)
    grids = {c["name"]: int(c["grid"].split(",")[0]) for c in named(calls, "cuLaunchKernel")}
    assert grids["cholesky_block"] == 517
    assert 1 < grids["cholesky_thread"] < 517


# ---- workspace ---------------------------------------------------------------------------------------------------


def test_workspace(child):
    """The call uses what the query said: less is refused, more is not asked for."""
    code = """
    def ask(engine, dtype, batch, n, ordinal=0):
        return native.scratch_bytes(CHOLESKY, DTYPE_CODE[dtype], CUDA, ordinal, ENGINES[engine], 0, 0, (batch, n))

    asked = {d: ask("cusolver", d, 3, 40) for d in DTYPE_CODE}
    short = {}
    for engine in ("tiled", "cusolver"):
        need, (a, _) = ask(engine, "float64", 3, 70), problem("float64", 3, 70)
        check("float64", 3, 70, engine, scratch=need)
        short[engine] = message(lambda: cholesky(a, engine, scratch=need - 1))
    batched, nothing = ask("batched", "float64", 3, 40), ask("cusolver", "float64", 0, 40)
    tell(cusolver=asked, batched=batched, nothing=nothing, short=short)
    """
    calls, told = child(code)
    assert told["cusolver"] == {"float32": 2584, "float64": 2592, "complex64": 2616, "complex128": 2624}
    assert told["batched"] == told["nothing"] == 0
    for text in told["short"].values():
        assert "no GPU memory for a workspace of" in text
    work = [c for c in named(calls, "cusolverDnXpotrf") if c["n"] == "70"]
    assert {c["bytes"] for c in work} == {str(64 * 70 + 8 + 24)}


@pytest.mark.parametrize(("dtype", "n"), [("complex128", 128), ("float32", 150)])
def test_workspace_of_a_batch_that_outgrows_its_kernel(child, dtype, n):
    """Where a block cannot hold the triangle, the tiles do the work; the batched engine is refused by name."""
    code = f'check("{dtype}", 3, {n}, "auto"); tell(text=message(lambda: check("{dtype}", 3, {n}, "batched", scratch=0)))'
    calls, told = child(code, MOCK_SHARED=166912, MOCK_ARCH=80)
    assert launched(calls) == ["cholesky_tiled", "cholesky_settle"]
    assert "engine batched: " in told["text"]


def test_auto_on_a_gpu_with_little_shared_memory(child):
    """99 KB a block, as on desktop GPUs: engine="auto" always finds a way."""
    code = f"""
    for dtype in {DTYPES}:
        for n in (5, 30, 64, 65, 96, 128, 200):
            check(dtype, 2, n, "auto")
    """
    child(code, MOCK_SHARED=101376, MOCK_ARCH=86)


def test_too_little_shared_memory(child):
    code = 'a, _ = problem("complex128", 1, 70); tell(text=message(lambda: cholesky(a, "tiled")))'
    _, told = child(code, MOCK_SHARED=49152)
    assert "tiled needs more shared memory than the 49152 bytes that this GPU allows a block" in told["text"]


# ---- errors ------------------------------------------------------------------------------------------------------

# engine, order, what the message must say; in the order of the calls, since what succeeded is not done again
FAILURES = [
    ("batched", "cuDevicePrimaryCtxRetain:1", "finding the GPU context", "invalid device ordinal"),
    ("batched", "cuCtxPushCurrent_v2:1", "entering the GPU context", "invalid device context"),
    ("batched", "cuDeviceGetAttribute:1", "reading the GPU's properties", "999"),
    ("batched", "cuDeviceGetName:1", "reading the GPU's properties", "unknown error"),
    ("batched", "nvrtcCreateProgram:1", "the run-time compiler refused cholesky.cu", ""),
    ("batched", "nvrtcCompileProgram:1", "cholesky.cu does not compile with", "-arch=sm_90"),
    ("batched", "nvrtcGetCUBINSize:1", "gave no code for cholesky.cu", ""),
    ("batched", "nvrtcGetCUBIN:1", "gave no code for cholesky.cu", ""),
    ("batched", "cuModuleLoadData:1", "loading a kernel", "device kernel image is invalid"),
    ("batched", "cuModuleGetFunction:1", "cholesky_block", "named symbol not found"),
    ("batched", "cuFuncSetAttribute:1", "asking for shared memory", "invalid argument"),
    ("batched", "cuLaunchKernel:1", "launching a kernel", "unspecified launch failure"),
    ("tiled", "cuMemsetD8Async:1", "filling GPU memory", "invalid argument"),
    ("tiled", "cuLaunchKernel:1", "launching a kernel", "unspecified launch failure"),
    ("cusolver", "cusolverDnCreate:1", "starting the solver", "status 7"),
    ("cusolver", "cusolverDnCreateParams:1", "starting the solver", "status 7"),
    ("cusolver", "cusolverDnSetStream:1", "choosing the stream", "status 7"),
    ("cusolver", "cusolverDnXpotrf_bufferSize:1", "asking for the workspace", "status 7"),
    ("cusolver", "cusolverDnXpotrf:1:2", "cholesky", "status 2"),
    ("cusolver", "cusolverDnXpotrf:2", "cholesky", "status 7"),
    ("cusolver", "cuLaunchKernel:1", "launching a kernel", "unspecified launch failure"),
    ("cusolver", "cuLaunchKernel:2", "launching a kernel", "unspecified launch failure"),
    ("cusolver", "cuLaunchKernel:3", "launching a kernel", "unspecified launch failure"),
]


def test_failing_calls(child):
    """Each failure says what was being done and leaves no context behind; after the last the call works."""
    code = f"""
    texts = []
    a, _ = problem("complex128", 2, 96)
    for engine in ("batched", "tiled", "cusolver"):
        for order in [order for name, order, *_ in {FAILURES} if name == engine]:
            texts.append(failing(order, lambda: cholesky(a, engine, scratch=1 << 16)))
        check("complex128", 2, 96, engine)
    tell(texts=texts)
    """
    _, told = child(code)
    wrong = [
        (engine, order, text)
        for (engine, order, *wanted), text in zip(FAILURES, told["texts"], strict=True)
        if text is None or not all(part in text for part in wanted)
    ]
    assert wrong == []


def test_failing_queries(child):
    code = """
    ask = lambda engine: native.scratch_bytes(CHOLESKY, 1, CUDA, 0, ENGINES[engine], 0, 0, (2, 96))
    texts = [failing(order, lambda: ask("cusolver")) for order in (
        "cuCtxPushCurrent_v2:1", "cuDeviceGetAttribute:2", "cusolverDnCreate:1", "cusolverDnXpotrf_bufferSize:1")]
    tell(texts=texts, named=failing("cuStreamGetCtx:1", lambda: check("float32", 1, 2, "batched", stream=stream(1))))
    """
    _, told = child(code)
    said = ["entering the GPU context", "the GPU's properties", "starting the solver", "asking for the workspace"]
    assert [part in text for part, text in zip(said, told["texts"], strict=True)] == [True] * 4
    assert "finding the GPU context" in told["named"]


def test_empty_batches_touch_no_driver(child):
    calls, _ = child('check("float64", 0, 5, "cusolver"); check("float64", 0, 0, "batched")')
    assert calls == []


def test_compile_error(child):
    """The message names the source, the options, and what the compiler said."""
    log = "cholesky.cu(12): error: identifier foo is undefined"
    code = 'tell(text=message(lambda: check("float32", 1, 3, "batched")))'
    calls, told = child(code, MOCK_COMPILE_LOG=log)
    assert "cholesky.cu does not compile with -DLW_DTYPE=0" in told["text"]
    assert log in told["text"]
    assert len(named(calls, "nvrtcDestroyProgram")) == len(named(calls, "nvrtcCompileProgram")) == 1


ABSENT = """
import child
import lapwing.planner
from lapwing.core.engines import ENGINES as LISTED
name = "{name}"
try:
    ctypes.CDLL(name)
except OSError:
    # nothing but the first folder, without those of NVIDIA's wheels
    native.configure("", "", "", os.environ["LAPWING_CUDA_PATH"], "")
    if name == "libcuda.so.1":
        child.balanced = lambda: True
    tell(text=message(lambda: check("float32", 1, 3, "{engine}", scratch=1024)), reason=LISTED["cusolver"].missing("cuda"),
         gpus=native.gpus(), versions=list(native.cuda_versions()))
else:
    tell(installed=True)
"""


@pytest.mark.parametrize(
    ("name", "engine", "said", "hint"),
    [
        ("libcuda.so.1", "batched", "no usable GPU: libcuda.so.1 was not found", ""),
        ("libnvrtc.so.13", "batched", "need the run-time compiler: libnvrtc.so.13 was not found", "nvidia-cuda-nvrtc"),
        ("libcusolver.so.12", "cusolver", "engine cusolver: libcusolver.so.12 was not found", "nvidia-cusolver"),
    ],
)
def test_absent_library(libraries, child, tmp_path, name, engine, said, hint):
    folder = tmp_path / "some"
    folder.mkdir()
    for library in libraries.iterdir():
        if library.name != name:
            (folder / library.name).symlink_to(library)
    _, told = child(ABSENT.format(name=name, engine=engine), LAPWING_CUDA_PATH=folder)
    if told.get("installed"):
        pytest.skip(f"{name} is installed on this machine")
    assert said in told["text"]
    assert name in told["reason"]
    assert hint in told["reason"]
    assert len(told["gpus"]) == (0 if name == "libcuda.so.1" else 2)
    assert len(told["versions"]) == 2


def test_incomplete_library(libraries, child, tmp_path):
    """A solver library that lacks a routine is named together with the routine."""
    folder = tmp_path / "some"
    folder.mkdir()
    for library in libraries.iterdir():
        (folder / library.name).symlink_to(libraries / "xla.so" if "cusolver" in library.name else library)
    code = 'tell(text=message(lambda: check("float32", 1, 3, "cusolver", scratch=99)))'
    _, told = child(code, LAPWING_CUDA_PATH=folder)
    assert "libcusolver has no cusolverDnCreate" in told["text"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"MOCK_DEVICES": 0}, "the NVIDIA driver sees no GPU"),
        ({"MOCK_FAIL": "cuInit:0"}, "the NVIDIA driver does not start"),
    ],
)
def test_no_gpu(child, settings, said):
    code = 'tell(text=message(lambda: check("float32", 1, 3, "batched", scratch=0)), gpus=native.gpus())'
    _, told = child(code, **settings)
    assert said in told["text"]
    assert told["gpus"] == []


def test_wrong_calls(child):
    code = """
    a = np.eye(3)[None]
    run = lambda op, dtype, engine: native.run(op, dtype, CUDA, 0, engine, 0, 0, (1, 3), 0, None, a, a.copy(), a.copy())
    tell(engine=message(lambda: run(0, 1, ENGINES["lapack"])), op=message(lambda: run(99, 1, 0)),
         dtype=message(lambda: run(0, 9, 0)), device=message(lambda: check("float64", 1, 3, "batched", ordinal=5)))
    """
    _, told = child(code, refused=2)
    assert "engine lapack does not have this operation on a GPU" in told["engine"]
    assert "no operation 99" in told["op"]
    assert "dtype 9" in told["dtype"]
    assert "invalid device ordinal" in told["device"]


# ---- handles, contexts, choice -----------------------------------------------------------------------------------


def test_handle_pool(child):
    """Two calls at once have a handle each, later calls use them again, another device has its own."""
    code = """
    from threading import Thread
    call = lambda: check("float64", 2, 20, "cusolver")
    call()
    call()
    threads = [Thread(target=call) for _ in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()
    call()
    check("float64", 1, 20, "cusolver", ordinal=1)
    """
    calls, _ = child(code, MOCK_SOLVER_SLEEP=60)
    used = [(c["thread"], c["handle"]) for c in named(calls, "cusolverDnXpotrf")]
    main = used[0][0]
    assert {h for t, h in used if t == main} <= {"1", "2", "3"}
    assert [h for t, h in used][:4] == ["1"] * 4
    assert len({(t, h) for t, h in used if t != main}) == 2
    assert {h for t, h in used if t != main} == {"1", "2"}
    assert used[-1] == (main, "3")
    assert len(named(calls, "cusolverDnCreate")) == 3


def test_many_threads(child):
    """Eight threads, one compilation of each kernel, right answers."""
    code = """
    from threading import Thread
    wrong = []
    def work(k):
        try:
            for engine in ("batched", "tiled", "cusolver"):
                check("float64", 3, 20, engine, ordinal=0)
        except BaseException as error:
            wrong.append(repr(error))
    threads = [Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not wrong, wrong
    """
    calls, _ = child(code, MOCK_SOLVER_SLEEP=5, MOCK_COMPILE_SLEEP=20)
    compiled = Counter(c["options"] for c in named(calls, "nvrtcCompileProgram"))
    assert len(compiled) == 3
    assert set(compiled.values()) == {1}


def test_contexts(child):
    """A default stream means the primary context of the given GPU; a named stream brings its own."""
    code = """
    own = stream(1)
    for given, ordinal in ((0, 0), (0, 1), (1, 1), (2, 1), (0, -1), (own, 0), (own, -1)):
        for engine in ("batched", "cusolver"):
            check("float64", 2, 9, engine, stream=given, ordinal=ordinal, scratch=1024)
    tell(own=own)
    """
    calls, told = child(code)
    own = hex(told["own"])
    launches = named(calls, "cuLaunchKernel")
    found = [(c["stream"], c["device"]) for c in launches if c["name"] == "cholesky_rows"]
    null = "(nil)"
    assert found == [(null, "0"), (null, "1"), ("0x1", "1"), ("0x2", "1"), (null, "0"), (own, "1"), (own, "1")]
    # every kernel and every solver call of one run is on the same stream
    assert Counter(c["stream"] for c in launches) == {null: 12, "0x1": 4, "0x2": 4, own: 8}
    assert Counter(c["stream"] for c in named(calls, "cusolverDnXpotrf")) == {null: 6, "0x1": 2, "0x2": 2, own: 4}
    # code is loaded once for each GPU
    assert Counter((c["good"], c["device"]) for c in named(calls, "cuModuleLoadData")) == {("1", "0"): 2, ("1", "1"): 2}


@pytest.mark.parametrize("engine", ["batched", "cusolver"])
def test_two_contexts_of_one_gpu(child, engine):
    """Code and handles belong to a context, not to a GPU: a program may have its own beside the primary one."""
    code = f"""
    check("float64", 2, 9, "{engine}")
    check("float64", 2, 9, "{engine}", stream=stream(0, primary=False), ordinal=-1, scratch=1024)
    check("float64", 2, 9, "{engine}")
    """
    calls, _ = child(code)
    assert [c["kind"] for c in named(calls, "cuCtxPushCurrent")][-1] == "primary"
    assert "other" in {c["kind"] for c in named(calls, "cuCtxPushCurrent")}


def test_capture(child):
    """A kernel may be compiled and loaded while the caller captures a graph."""
    calls, _ = child('check("float32", 2, 5, "batched"); check("float32", 2, 70, "tiled")', MOCK_CAPTURING=1)
    assert len(named(calls, "cuModuleLoadData")) == 2


def test_choice_of_engine(child):
    """engine="auto": the rules of this GPU's name come before the general ones."""
    code = """
    row = lambda engine, low, high: (CHOLESKY, CUDA, DTYPE_CODE["float64"], ENGINES[engine], low, high, 0, 1 << 60, "a test")
    for n in (3, 200):
        check("float64", 1, n, "auto")
    native.set_rules("Mock GPU", [row("cusolver", 0, 50), row("batched", 51, 60)])
    for n in (3, 55, 200):
        check("float64", 1, n, "auto")
    native.set_rules("Another GPU", [row("tiled", 0, 1 << 60)])
    check("float64", 1, 55, "auto")
    """
    calls, _ = child(code)
    assert launched(calls) == [
        "cholesky_thread", "cholesky_tiled", "cholesky_settle",
        "transpose_in", "check_diagonal", "finish", "cholesky_block", "cholesky_tiled", "cholesky_settle",
        "cholesky_block",
    ]  # fmt: skip


def test_what_is_there(child):
    code = """
    import lapwing as lw
    tell(gpus=native.gpus(), versions=native.cuda_versions(), missing=[native.missing(x) for x in ("driver", "solver",
         "compiler")], usable={e.name: e.usable_on for e in lw.engines()})
    """
    _, told = child(code, MOCK_ARCH=120)
    assert told["gpus"] == [["Mock GPU", 120, 2**37]] * 2
    assert told["versions"] == {"driver": 13000, "solver": 12003, "compiler": 13000}
    assert told["missing"] == [None] * 3
    assert all("cuda" in told["usable"][name] for name in ("batched", "tiled", "cusolver"))


# ---- the cache of compiled kernels -------------------------------------------------------------------------------

ONE = 'check("float64", 3, 7, "batched")'


def compiled(result):
    calls, _ = result
    assert named(calls, "cuLaunchKernel")
    return len(named(calls, "nvrtcCompileProgram"))


@pytest.fixture
def cache(child, tmp_path):
    """A cache that holds one kernel."""
    base = tmp_path / "cache"
    assert compiled(child(ONE, LAPWING_CACHE=base)) == 1
    return base


def files(base):
    return sorted(p.name for p in (base / "kernels").iterdir())


def test_cache(child, cache):
    (name,) = files(cache)
    assert name.endswith(".cubin")
    assert compiled(child(ONE, LAPWING_CACHE=cache)) == 0
    assert (cache / "kernels").stat().st_mode & 0o777 == 0o700
    # another compiler or another architecture is another file
    assert compiled(child(ONE, LAPWING_CACHE=cache, MOCK_COMPILER_MAJOR=12)) == 1
    assert compiled(child(ONE, LAPWING_CACHE=cache, MOCK_ARCH=100)) == 1
    assert len(files(cache)) == 3


def test_cache_of_the_user(child, tmp_path):
    """Without LAPWING_CACHE the cache is in the user's own folder."""
    assert compiled(child(ONE, LAPWING_CACHE=None, XDG_CACHE_HOME=tmp_path / "own")) == 1
    assert len(files(tmp_path / "own" / "lapwing")) == 1
    assert compiled(child(ONE, LAPWING_CACHE=None, XDG_CACHE_HOME="", HOME=tmp_path / "home")) == 1
    assert len(files(tmp_path / "home" / ".cache" / "lapwing")) == 1


def test_no_cache(child, tmp_path):
    """LAPWING_CACHE="" writes nothing anywhere."""
    assert compiled(child(ONE, LAPWING_CACHE="", XDG_CACHE_HOME=tmp_path / "own", HOME=tmp_path / "home")) == 1
    assert not (tmp_path / "own").exists()
    assert not (tmp_path / "home").exists()


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def foreign(path):
    """A good file of another kernel under this name."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b"-DLW_UPPER=0", b"-DLW_UPPER=1"))


def refused_by_driver(path):
    """Whole and with the right sum, but the driver does not take it, as after a change of drivers."""
    data = path.read_bytes()
    head, key = data[:8], int.from_bytes(data[8:16], "little")
    binary = b"not a binary"
    value = 14695981039346656037
    for byte in binary:
        value = (value ^ byte) * 1099511628211 % 2**64
    numbers = b"".join(number.to_bytes(8, "little") for number in (key, len(binary), value))
    path.write_bytes(head + numbers + data[32 : 32 + key] + binary)


def linked(path):
    other = path.parent.parent / "elsewhere"
    path.rename(other)
    path.symlink_to(other)


DAMAGE = {
    "corrupt": lambda path: flip(path, -3),
    "corrupt head": lambda path: flip(path, 9),
    "corrupt key": lambda path: flip(path, 40),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "short": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "foreign": foreign,
    "refused by the driver": refused_by_driver,
    "writable by others": lambda path: path.chmod(0o666),
    "a link": linked,
}


def test_damaged_cache(child, tmp_path):
    """What is not as it was written is not run: compiled again and replaced."""
    orders = dict(zip(DAMAGE, range(9, 32), strict=False))
    code = f"for n in {[*orders.values(), 32]}: check('float64', 1, n, 'batched')"
    base = tmp_path / "cache"
    assert compiled(child(code, LAPWING_CACHE=base)) == len(orders) + 1
    paths = {path.read_bytes().split(b"-DLW_N=")[1].split()[0].decode(): path for path in (base / "kernels").iterdir()}
    before = files(base)
    for damage, n in orders.items():
        DAMAGE[damage](paths[str(n)])
    calls, _ = child(code, LAPWING_CACHE=base)
    again = [c["options"].split("-DLW_N=")[1].split("|")[0] for c in named(calls, "nvrtcCompileProgram")]
    assert again == [str(n) for n in orders.values()]
    assert files(base) == before
    for path in paths.values():
        assert path.is_file() and not path.is_symlink()
        assert path.stat().st_mode & 0o077 == 0
    assert compiled(child(code, LAPWING_CACHE=base)) == 0


@pytest.mark.parametrize("way", ["writable by others", "a link", "a file"])
def test_unsafe_cache_folder(child, cache, way):
    """A folder that others can write to, or that is not one, is neither read nor written."""
    folder = cache / "kernels"
    before = files(cache)
    if way == "writable by others":
        folder.chmod(0o777)
    else:
        folder.rename(cache / "elsewhere")
        if way == "a link":
            folder.symlink_to(cache / "elsewhere")
        else:
            folder.write_text("")
    assert compiled(child(f"{ONE}; {ONE.replace('7', '6')}", LAPWING_CACHE=cache)) == 2
    if way != "a file":
        assert files(cache) == before


def test_cache_becomes_unsafe_later(child, cache):
    """The folder is looked at again at every use, not only when lapwing is imported."""
    code = f"os.chmod({str(cache / 'kernels')!r}, 0o777)\n" + ONE
    assert compiled(child(code, LAPWING_CACHE=cache)) == 1


def test_two_processes_fill_the_cache(child, tmp_path):
    base = tmp_path / "cache"
    running = [child.start(ONE, LAPWING_CACHE=base, MOCK_COMPILE_SLEEP=300) for _ in range(2)]
    assert sum(compiled(child.finish(process)) for process in running) in (1, 2)
    (name,) = files(base)
    assert name.endswith(".cubin")
    assert compiled(child(ONE, LAPWING_CACHE=base)) == 0


# ---- XLA ---------------------------------------------------------------------------------------------------------


def test_xla_metadata(child):
    """Version 0.1; only the handler for graphs says that it may be captured."""
    _, told = child('tell(**{name: describe(name) for name in ("cpu", "cuda", "cuda_graph")})')
    assert told == {"cpu": [0, 1, 0], "cuda": [0, 1, 0], "cuda_graph": [0, 1, 1]}


@pytest.mark.parametrize("engine", ["batched", "tiled", "cusolver"])
def test_xla_call(child, engine):
    """The stream and the scratch memory come from XLA, and the memory goes back."""
    code = f"""
    given = stream(1)
    told = []
    for dtype in {DTYPES}:
        for upper in (False, True):
            a, expected = problem(dtype, 6, 20, upper)
            a, expected = a.reshape(2, 3, 20, 20), expected.reshape(2, 3, 20, 20)
            failed, factor, info, books = execute("cuda", a, "{engine}", upper, stream=given)
            assert not failed and not info.any(), books
            assert error_of((factor, expected), 20) < 10
            told.append(books)
    need = native.scratch_bytes(CHOLESKY, 0, CUDA, 0, ENGINES["tiled"], 0, 0, (6, 20))
    tell(books=told, stream=given, tiled=need)
    """
    calls, told = child(code)
    for code, books in enumerate(told["books"]):
        assert books["wrong"] == books["errors_made"] == 0
        assert books["streams"] == 1
        assert books["allocations"] == books["frees"] == (0 if engine == "batched" else 1)
        kind = (0, 1, 4, 5)[code // 2]
        assert books["bytes"] == {"batched": 0, "tiled": told["tiled"], "cusolver": 64 * 20 + 8 * kind + 24}[engine]
    launches = named(calls, "cuLaunchKernel")
    assert {(c["stream"], c["device"]) for c in launches} == {(hex(told["stream"]), "1")}


def test_xla_graph_call(child):
    """The handler for graphs does the same, and asks for nothing but the stream."""
    code = """
    a, expected = problem("float32", 4, 8)
    failed, factor, info, books = execute("cuda_graph", a, "batched", stream=stream(0))
    assert not failed and error_of((factor, expected), 8) < 10, books
    tell(books=books)
    """
    calls, told = child(code, MOCK_CAPTURING=1)
    assert told["books"]["allocations"] == 0
    assert {c["call"] for c in calls} <= {
        "cuInit", "cuStreamGetCtx", "cuCtxPushCurrent", "cuCtxPopCurrent", "nvrtcCompileProgram", "nvrtcDestroyProgram",
        "cuModuleLoadData", "cuLaunchKernel",
    }  # fmt: skip


def test_xla_errors(child):
    """Each error reaches XLA once with its message, and nothing is left allocated."""
    code = """
    a, _ = problem("float64", 2, 70)
    given = stream(0)
    told = {}
    def case(name, *call, **options):
        failed, _, _, books = execute("cuda", a, *call, **{"stream": given, **options})
        assert failed, name
        told[name] = books
    case("stream", "batched", fail_stream=1)
    case("shape", "batched", dims=(2, 70, 35))
    case("rank", "batched", dims=(70,))
    case("dtype", "batched", dtype=10)
    case("op", "batched", op=99)
    case("engine", "lapack")
    case("memory", "cusolver", fail_allocate=1)
    case("memory of tiles", "tiled", fail_allocate=1)
    for name, order in (("solver", "cusolverDnXpotrf:1"), ("launch", "cuLaunchKernel:3")):
        os.environ["MOCK_FAIL"] = order
        case(name, "cusolver")
        del os.environ["MOCK_FAIL"]
    tell(**told)
    """
    _, told = child(code)
    said = {
        "stream": "no stream here",
        "shape": "square",
        "rank": "expected matrices",
        "dtype": "dtype",
        "op": "no operation 99",
        "engine": "engine lapack does not have this operation on a GPU",
        "memory": "no GPU memory for a workspace of 4512 bytes (XLA: out of memory)",
        "memory of tiles": "(XLA: out of memory)",
        "solver": "status 7",
        "launch": "unspecified launch failure",
    }
    assert {name for name, part in said.items() if part not in told[name]["message"]} == set()
    assert {name for name, books in told.items() if books["wrong"]} == set()
    assert {name for name, books in told.items() if books["allocations"] != books["frees"]} == set()
    # exactly one error goes back to XLA; what the allocator answered was taken away
    assert {name for name, books in told.items() if books["errors_made"] - books["errors_destroyed"] != 1} == set()
