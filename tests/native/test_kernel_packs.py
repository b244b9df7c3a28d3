"""Kernel packs with the stand-in driver: what is in a pack is not compiled, and what is wrong with one is never run."""

import random
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent / "mock"))
import harness
from harness import named

import lapwing
from lapwing.core import packs
from lapwing.core.native import native

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason="no C++ compiler")
SOURCES = Path(lapwing.__file__).parent / "kernels"
ONE = 'check("float64", 3, 7, "batched")'
OTHER = 'check("float64", 3, 6, "batched")'

# a pack with the kernels of cholesky for n = 7 to 30, from the stand-in compiler
BUILD = """
from pathlib import Path
from lapwing.core import packs
kernels = []
for n in range(7, 31):
    call = (CHOLESKY, DTYPE_CODE["float64"], CUDA, 0, ENGINES["batched"], 0, 0, (1, n))
    for source, options in native.kernels(*call, (132, 232448, {arch}, "Mock GPU")):
        binary, said = native.compile_kernel(source, options, "sm_{arch}")
        kernels.append(packs.Kernel(source, options, native.kernel_key(source, options), {binary}))
packs.write(Path({path!r}), {arch}, kernels, compiler="13.0", lapwing={version!r})
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return harness.libraries(tmp_path_factory)


@pytest.fixture
def child(libraries, tmp_path):
    return harness.Children(libraries, tmp_path)


def build(child, path, arch=90, binary="binary", version=lapwing.__version__):
    child(BUILD.format(path=str(path), arch=arch, binary=binary, version=version))
    return path


@pytest.fixture(scope="session")
def built(libraries, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    return build(harness.Children(libraries, folder), folder / "sm_90.pack")


@pytest.fixture
def pack(built, tmp_path):
    (tmp_path / "packs").mkdir()
    return Path(shutil.copy(built, tmp_path / "packs"))


def compiled(result):
    calls, _ = result
    assert named(calls, "cuLaunchKernel")
    return len(named(calls, "nvrtcCompileProgram"))


# ---- kernels from a pack ------------------------------------------------------------------------------------------


def test_a_kernel_in_a_pack_is_not_compiled(child, pack, tmp_path):
    assert compiled(child(ONE)) == 1
    code = f"{ONE}\ntell(loaded=native.loaded_kernels())"
    for place in (pack.parent, pack, f"{tmp_path / 'nowhere'}:{pack.parent}"):
        result = child(code, LAPWING_KERNELS=place)
        assert compiled(result) == 0
        ((source, options, origin, seconds),) = result[1]["loaded"]
        assert (source, origin) == ("cholesky.cu", "pack")
        assert "-DLW_N=7" in options
        assert 0 < seconds < 5
    # nor is it written to the cache
    assert compiled(child(ONE, LAPWING_KERNELS=pack, LAPWING_CACHE=tmp_path / "cache")) == 0
    assert not (tmp_path / "cache").exists()


def test_a_kernel_that_no_pack_has_is_compiled(child, pack):
    """It is compiled and the log says so; the others still come from the pack."""
    code = f"""
    import logging
    from lapwing import planner
    logging.basicConfig(level=logging.INFO, filename={str(pack.parent / "log")!r})
    {OTHER}
    planner.log_notes()
    {ONE}
    planner.log_notes()
    tell(origins=[origin for _, _, origin, _ in native.loaded_kernels()])
    """
    result = child(code, LAPWING_KERNELS=pack)
    assert compiled(result) == 1
    assert result[1]["origins"] == ["compiler", "pack"]
    (line,) = (pack.parent / "log").read_text().splitlines()
    assert "compiled cholesky.cu for this GPU in" in line
    assert "-DLW_N=6" in line


def test_the_key_does_not_depend_on_the_compiler(child, pack):
    assert compiled(child(ONE, LAPWING_KERNELS=pack, MOCK_COMPILER_MAJOR=12)) == 0


def test_no_compiler_is_needed(child, pack, libraries, tmp_path):
    """What is in a pack runs without a compiler; what is not, says what to install."""
    few = tmp_path / "few"
    few.mkdir()
    for library in libraries.glob("lib*"):
        if "nvrtc" not in library.name:
            (few / library.name).symlink_to(library)
    code = f"""
    native.configure({str(SOURCES)!r}, os.environ["LAPWING_KERNELS"], "", os.environ["LAPWING_CUDA_PATH"], "")
    {ONE}
    from lapwing.core.engines import missing_gpu
    try:
        {OTHER}
    except RuntimeError as error:
        tell(error=str(error), missing=missing_gpu(), compiler=native.missing("compiler"))
    """
    told = child(code, LAPWING_KERNELS=pack, LAPWING_CUDA_PATH=few)[1]
    if not told:
        pytest.skip("the loader finds a compiler of its own")
    assert told["error"].startswith("this GPU kernel is not in the kernel pack, and needs the run-time compiler: ")
    assert told["missing"] == ""
    assert "libnvrtc" in told["compiler"]
    # a pack of another version has none of the kernels
    other = build(child, tmp_path / "other.pack", version="0.0.1")
    code = f"""
    from lapwing.core.engines import missing_gpu
    native.configure({str(SOURCES)!r}, os.environ["LAPWING_KERNELS"], "", os.environ["LAPWING_CUDA_PATH"], "")
    tell(missing=missing_gpu())
    """
    missing = child(code, LAPWING_KERNELS=other, LAPWING_CUDA_PATH=few)[1]["missing"]
    assert missing.startswith(f"{other} is not used: its kernels are of lapwing 0.0.1, and this is {lapwing.__version__}; ")


def test_code_for_an_older_gpu_of_the_same_generation(child, tmp_path):
    path = build(child, tmp_path / "packs" / "sm_80.pack", 80)
    assert compiled(child(ONE, LAPWING_KERNELS=path.parent, MOCK_ARCH=86)) == 0
    assert compiled(child(ONE, LAPWING_KERNELS=path, MOCK_ARCH=89)) == 0
    assert compiled(child(ONE, LAPWING_KERNELS=path, MOCK_ARCH=90)) == 1


def test_another_architecture(child, pack):
    assert compiled(child(ONE, LAPWING_KERNELS=pack.parent, MOCK_ARCH=100)) == 1
    # whatever the name of the file says
    shutil.copy(pack, pack.with_name("sm_100.pack"))
    assert compiled(child(ONE, LAPWING_KERNELS=pack.parent, MOCK_ARCH=100)) == 1


def test_changed_sources(child, pack, tmp_path):
    """A header that the source includes is part of the key, one that it does not include is not."""
    code = f"""
    native.configure(os.environ["SOURCES"], os.environ["LAPWING_KERNELS"], "", os.environ["LAPWING_CUDA_PATH"], "")
    {ONE}
    """
    for header, times in (("eigh.cuh", 0), ("common.cuh", 1)):
        sources = tmp_path / header
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("packs"))
        with open(sources / header, "a") as file:
            file.write("\n// changed\n")
        assert compiled(child(code, LAPWING_KERNELS=pack, SOURCES=sources)) == times


# ---- what must not be used ----------------------------------------------------------------------------------------


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "the kernels": lambda path: [flip(path, -place) for place in range(1, 400)],
    "magic": lambda path: flip(path, 0),
    "number of kernels": lambda path: flip(path, 15),
    "index": lambda path: flip(path, 60),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "short": lambda path: path.write_bytes(path.read_bytes()[:9]),
    "empty": lambda path: path.write_bytes(b""),
    "writable by others": lambda path: path.chmod(0o666),
    "writable by the group": lambda path: path.chmod(0o664),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_pack_that_is_not_as_it_was_written(child, pack, damage):
    DAMAGE[damage](pack)
    calls = "\n".join(f'check("float64", 3, {n}, "batched")' for n in range(7, 31))
    assert compiled(child(calls, LAPWING_KERNELS=pack)) >= (1 if damage == "the kernels" else 24)


def test_a_kernel_that_the_driver_refuses(child, tmp_path):
    """As code of a newer compiler by an old driver: it is compiled here."""
    path = build(child, tmp_path / "sm_90.pack", binary="b'not a binary'")
    assert compiled(child(ONE, LAPWING_KERNELS=path)) == 1


def test_packs_of_the_installation(child, pack, tmp_path):
    """They are trusted as the sources beside them are; the installation may be read-only."""
    sources = tmp_path / "installed"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("packs"))
    (sources / "packs").mkdir()
    shutil.copy(pack, sources / "packs")
    (sources / "packs" / pack.name).chmod(0o464)
    (sources / "packs").chmod(0o555)
    sources.chmod(0o555)
    code = f"""
    packs = os.environ["SOURCES"] + "/packs"
    native.configure(os.environ["SOURCES"], packs, "", os.environ["LAPWING_CUDA_PATH"], "")
    {ONE}
    tell(packs=native.kernel_packs(90))
    """
    try:
        result = child(code, SOURCES=sources)
    finally:
        sources.chmod(0o755)
        (sources / "packs").chmod(0o755)
    assert compiled(result) == 0
    assert result[1]["packs"] == [[str(sources / "packs" / pack.name), 90, 24, ""]]


def test_what_is_wrong_is_told(child, pack):
    code = "tell(packs=native.kernel_packs(90))"
    assert child(code, LAPWING_KERNELS=pack)[1]["packs"] == [[str(pack), 90, 24, ""]]
    pack.chmod(0o666)
    ((_, _, _, problem),) = child(code, LAPWING_KERNELS=pack)[1]["packs"]
    assert problem == "others can write to it"


# ---- the file -----------------------------------------------------------------------------------------------------


@pytest.fixture
def find(tmp_path, monkeypatch):
    """The native core's own reader, in this process."""

    def look(path, key, capability=90):
        native.configure(str(SOURCES), str(path), "", "", "")
        return native.find_kernel(key, capability)

    yield look
    from lapwing import planner

    planner.configure()


def test_what_goes_in_comes_out(tmp_path, find):
    """Data that compress well, badly, and over distances of every kind."""
    chance = random.Random(1)
    noise = chance.randbytes(70_000)
    blobs = [
        b"x", bytes(100_000), noise, noise[::-1], noise[:40_000] * 3, bytes(range(256)) * 700,
        *(bytes(chance.choice(b"\0\1\xff") for _ in range(chance.randrange(1, 20_000))) for _ in range(9)),
        b"".join(chance.choice((b"LDG.E ", b"STS ", b"FFMA R1, R2 ", chance.randbytes(3))) for _ in range(60_000)),
    ]  # fmt: skip
    kernels = [packs.Kernel("a.cu", f"{i:03}", f"{chance.getrandbits(128):032x}", blob) for i, blob in enumerate(blobs)]
    path = tmp_path / "sm_90.pack"
    packs.write(path, 90, kernels, compiler="13.0", lapwing="1.0")
    for kernel in kernels:
        assert find(path, kernel.key) == kernel.binary
        assert find(path, kernel.key, 100) == b""
    assert find(path, "0" * 32) == b""
    assert sorted(packs.kernels_of(path), key=lambda k: k.options) == kernels
    described = packs.read(path)
    assert (described.architecture, described.compiler, len(described.kernels)) == (90, "13.0", len(kernels))


def test_damage_is_never_taken_for_a_kernel(tmp_path, find):
    """Any bytes in the place of the compressed ones give the kernel or nothing, and end."""
    chance = random.Random(2)
    blob = b"".join(chance.choice((b"abcd", b"efgh", chance.randbytes(4))) for _ in range(2000))
    kernel = packs.Kernel("a.cu", "", "1" * 32, blob)
    whole = tmp_path / "whole.pack"
    packs.write(whole, 90, [kernel], compiler="13.0", lapwing="1.0")
    data = whole.read_bytes()
    for number in range(300):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 5, 200))):
            damaged[chance.randrange(len(data) // 2, len(data))] = chance.randrange(256)
        path = tmp_path / f"{number}.pack"
        path.write_bytes(damaged)
        assert find(path, kernel.key) in (b"", blob)
        path.unlink()


# ---- which kernels a call launches --------------------------------------------------------------------------------


def test_a_dry_call_names_the_kernels_that_the_real_one_asks_for(child):
    code = """
    from contextlib import suppress
    named = set()
    def both(op, dtype, flags, sizes, engine="auto"):
        call = (OPS[op], DTYPE_CODE[dtype], CUDA, 0, ENGINES[engine], 0, flags, sizes)
        named.update(native.kernels(*call, (132, 232448, 90, "Mock GPU")))
        scratch, places = Scratch(), [Memory(1 << 22) for _ in range(4 if op == "solve" else 5)]
        with suppress(RuntimeError):  # kernels that the stand-in cannot run are compiled all the same
            native.run(*call, 0, scratch, *[place.address for place in places])
    for dtype in DTYPE_CODE:
        for n in (3, 12, 33, 64):
            both("cholesky", dtype, 0, (2, n))
            both("finite", dtype, 1, (2, n))
            both("eigh", dtype, 0, (3, min(n, 32), 0, min(n, 32)))  # the stand-in stops in the midst of larger ones
            both("solve", dtype, 16, (2, n, 1), "batched")
            both("inverse", dtype, 0, (2, n), "batched")
    both("qr", "float32", 0, (1, 40, 20, 20), "batched")
    both("svdvals", "float64", 0, (1, 20, 10))
    tell(named=sorted(named))
    """
    calls, told = child(code, refused=10**6)
    asked = {(c["name"], c["options"].partition("|-std=")[0].replace("|", " ")) for c in named(calls, "nvrtcCompileProgram")}
    assert asked == {tuple(kernel) for kernel in told["named"]}
    assert len(asked) > 50


def test_a_dry_call_touches_nothing(child):
    """Neither the driver nor the compiler hears of it, and what is refused is told."""
    code = """
    call = (OPS["solve"], 1, CUDA, 0, ENGINES["auto"], 0, 0)
    kernels = native.kernels(*call, (1000, 64, 1), (132, 232448, 90, "NVIDIA H200"))
    try:
        native.kernels(OPS["cholesky"], 1, CUDA, 0, ENGINES["batched"], 0, 0, (1, 4000), (132, 232448, 90, "NVIDIA H200"))
    except RuntimeError as error:
        tell(kernels=kernels, error=str(error))
    """
    calls, told = child(code)
    assert calls == []
    assert told["kernels"]
    assert "n up to 128" in told["error"]
