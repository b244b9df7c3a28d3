"""Every device source through AMD's run-time compiler, and through a newer clang for newer GPUs. Needs no GPU.

Registers that do not fit go to scratch memory, which lies in global memory: the code object says how much of it a thread has.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent))
import hiprtc
from test_compile import NAMES, SOURCES, asked, choices, distance, of_source, representative  # noqa: F401

from lapwing.core.native import CUDA, ENGINES, OPS, native

ARCHITECTURE = "gfx90a"
ALWAYS = " -std=c++17 -Wno-pass-failed --offload-arch="
# the others that hipRTC 5.2 knows, of those that run ROCm; it ends the process for newer ones
OLDER = {"gfx906": 64, "gfx908": 64, "gfx1010": 32, "gfx1030": 32}
NEWER = {"gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32}
# Bytes of scratch memory of a thread. Kernels above the first limit are named with their own: arrays that are indexed at
# run time, and pieces of products that were cut for the registers of another GPU. First for the quickest job of each source,
# then for all jobs that the tests compile.
MOST_SCRATCH = 160
MORE_SCRATCH = {"pos_inverse": 512, "cholesky_tiled": 512, "solve_thread": 704}
ANY_SCRATCH = {
    "cholesky_tiled": 3840, "cholesky_block": 3392, "solve_thread": 704, "pos_inverse": 640, "pos_block": 576,
    "tridiagonal": 512, "solve_rows": 512, "lu_panel": 384, "triangle_product": 384, "solve_lanes": 384,
}  # fmt: skip
# dtype and order of further blocks, which use most of it: on a GPU with 64 KB of shared memory
CHOSEN = {"cholesky.cu": ("cholesky", 0, ((2, 96), (3, 64))), "pos_inverse.cu": ("inverse", 16, ((1, 96),))}


@pytest.fixture(scope="session")
def rtc():
    if not hiprtc.is_installed():
        pytest.skip("no hipRTC: Debian has it in libamdhip64-5 and libhiprtc-builtins5")


def definitions(options):
    return " ".join(word for word in options.split() if word.startswith("-D"))


def compile_amd(job, more=None, architecture=ARCHITECTURE, lanes=64):
    """``more``: the limits of kernels that may have more scratch memory than others."""
    name, options = job
    headers = {path.name: path.read_text() for path in SOURCES.glob("*.cuh")}
    code, log = hiprtc.compile_source((SOURCES / name).read_text(), headers, name, definitions(options) + ALWAYS + architecture)
    # that the optimiser leaves a loop as it is costs time at most; no option silences it in this version
    said = [line for line in log.splitlines() if "loop not unrolled" not in line and not line.endswith("generated.")]
    assert said == [], (job, said)
    kernels = hiprtc.kernels(code)
    assert kernels, job
    for kernel, about in kernels.items():
        assert about[".wavefront_size"] == lanes
        if more is not None:
            assert about[".private_segment_fixed_size"] <= more.get(kernel, MOST_SCRATCH), (job, kernel, about)


def quickest(jobs, name):
    return min(of_source(jobs, name), key=lambda job: (distance(job), choices(job[1])["LW_DTYPE"]))


@pytest.mark.parametrize("name", NAMES)
def test_compiles(asked, rtc, name):  # noqa: F811
    """No warning; what a thread keeps in scratch memory stays below the limit."""
    compile_amd(quickest(asked, name), MORE_SCRATCH)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", OLDER)
def test_compiles_for_older(asked, rtc, architecture):  # noqa: F811
    for name in NAMES:
        compile_amd(quickest(asked, name), None, architecture, OLDER[architecture])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", NEWER)
def test_compiles_for_newer(asked, rtc, architecture, tmp_path):  # noqa: F811
    if not find_spec("ziglang"):
        pytest.skip("no newer compiler: pip install ziglang")
    for name in NAMES:
        _, options = quickest(asked, name)
        kernels, said = hiprtc.compile_newer(SOURCES / name, definitions(options), architecture, NEWER[architecture], tmp_path)
        assert said == "", name
        assert kernels, name
        assert {about[".wavefront_size"] for about in kernels.values()} == {NEWER[architecture]}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_compiles_with_every_choice(asked, rtc, name):  # noqa: F811
    op, flags, orders = CHOSEN.get(name, ("", 0, ()))
    gpu = (110, 65536, 0, "a GPU", ARCHITECTURE, 64)
    chosen = [
        job for dtype, n in orders for job in native.kernels(OPS[op], dtype, CUDA, 0, ENGINES["batched"], 0, flags, (1, n), gpu)
    ]
    for job in representative(of_source(asked, name)) + chosen:
        compile_amd(job, ANY_SCRATCH)


def test_a_wrong_source_is_seen(rtc):
    code, log = hiprtc.compile_source("nonsense", {}, "wrong.cu", ALWAYS + ARCHITECTURE)
    assert code == b""
    assert "error" in log
