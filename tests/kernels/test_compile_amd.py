"""Every device source through AMD's run-time compiler, for a GPU with 64 lanes. Needs no GPU.

Registers that do not fit go to scratch memory, which lies in global memory: the code object says how much of it a thread has.
"""

import sys
from pathlib import Path

import pytest

pytest.importorskip("lapwing._native", reason="the native core was not built")
sys.path.append(str(Path(__file__).parent))
import hiprtc
from test_compile import NAMES, SOURCES, asked, choices, distance, of_source, representative  # noqa: F401

ARCHITECTURE = "gfx90a"
ALWAYS = f" -std=c++17 -Wno-pass-failed --offload-arch={ARCHITECTURE}"
# Bytes of scratch memory of a thread. Kernels above the first limit are named with their own: arrays that are indexed at
# run time, and pieces of products that were cut for the registers of another GPU.
MOST_SCRATCH = 160
MORE_SCRATCH = {"divide_product": 512}
# of the sources that compile in a second or two, one job each
QUICK = ("blocked.cu", "divide_roots.cu", "eigh.cu", "krylov.cu", "lapack_form.cu", "spectrum.cu", "svd_gram.cu", "systems.cu",
         "tall.cu", "triangle.cu", "tridiagonal_values.cu", "divide_product.cu")  # fmt: skip


@pytest.fixture(scope="session")
def rtc():
    if not hiprtc.is_installed():
        pytest.skip("no hipRTC: Debian has it in libamdhip64-5 and libhiprtc-builtins5")


def compile_amd(job, most=None):
    name, options = job
    headers = {path.name: path.read_text() for path in SOURCES.glob("*.cuh")}
    own = " ".join(word for word in options.split() if word.startswith("-D"))
    code, log = hiprtc.compile_source((SOURCES / name).read_text(), headers, name, own + ALWAYS)
    # that the optimiser leaves a loop as it is costs time at most; no option silences it in this version
    said = [line for line in log.splitlines() if "loop not unrolled" not in line and not line.endswith("generated.")]
    assert said == [], (job, said)
    kernels = hiprtc.kernels(code)
    assert kernels, job
    for kernel, about in kernels.items():
        assert about[".wavefront_size"] == 64
        if most is not None:
            assert about[".private_segment_fixed_size"] <= MORE_SCRATCH.get(kernel, most), (job, kernel, about)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in NAMES])
def test_compiles(asked, rtc, name):  # noqa: F811
    """No warning; what a thread keeps in scratch memory stays below the limit."""
    jobs = of_source(asked, name)
    compile_amd(min(jobs, key=lambda job: (distance(job), choices(job[1])["LW_DTYPE"])), MOST_SCRATCH)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_compiles_with_every_choice(asked, rtc, name):  # noqa: F811
    for job in representative(of_source(asked, name)):
        compile_amd(job)


def test_a_wrong_source_is_seen(rtc):
    code, log = hiprtc.compile_source("nonsense", {}, "wrong.cu", ALWAYS)
    assert code == b""
    assert "error" in log
