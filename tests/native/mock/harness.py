"""Builds the stand-in libraries and runs child processes that find them through LAPWING_CUDA_PATH."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import lapwing

MOCK = Path(__file__).parent
NATIVE = MOCK.parents[2] / "native"
EMULATOR = MOCK.parents[1] / "emulate" / "emulator.h"
COMPILER = shutil.which("g++") or shutil.which("c++")


# Where the stand-in of a newer solver is: as `pip install --target` leaves it, below a folder of its own
NEWER = "newer/nvidia/cu13/lib"


def libraries(factory, amd=False):
    """The folder with the stand-ins, built once in a test session for all of its processes."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / ("stand-ins-amd" if amd else "stand-ins")
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not (folder / "built").exists():
            (build_amd if amd else build)(folder)
            (folder / "built").touch()
    return folder


def build(folder):
    sources = {
        "libcuda.so.1": "cuda", "libcusolver.so.12": "cusolver", "libcublas.so.13": "cublas", "libnvrtc.so.13": "nvrtc",
        "xla.so": "xla",
    }  # fmt: skip
    running = {}
    newer = folder / NEWER
    newer.mkdir(parents=True, exist_ok=True)
    for library, source in [*sources.items(), (f"{NEWER}/libcusolver.so.12", "cusolver")]:
        options = [
            "-std=c++17",
            {"nvrtc": "-O0", "xla": "-O0", "cuda": "-O1"}.get(source, "-O2"),
            "-Wall",
            "-Wextra",
            "-Werror",
        ]
        options += ["-DLW_VERSION=99905"] if library.startswith(NEWER) else []
        command = [COMPILER, *options, "-shared", "-fPIC", f"-iquote{NATIVE}", "-o", folder / library]
        running[source, library] = subprocess.Popen([*command, MOCK / f"{source}.cc"], stderr=subprocess.PIPE, text=True)
    for (source, _), process in running.items():
        _, errors = process.communicate()
        assert process.returncode == 0, f"{source}.cc: {errors}"
    return folder


# Functions that older versions of AMD's libraries lack
NEWER_IN_AMD = (
    "hipStreamGetDevice", "hipModuleLaunchCooperativeKernel", "hipGetDevicePropertiesR0600", "rocblas_*_64", "rocsolver_*evdx",
)  # fmt: skip


def build_amd(folder):
    """AMD's stand-ins: in ``new`` as ROCm 6 has them, in ``old`` as ROCm 5, whose driver holds the compiler."""
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", f"-iquote{NATIVE}"]
    sources = {"hip": "-O0", "hiprtc": "-O0", "rocblas": "-O2", "rocsolver": "-O1"}
    run_all([*command, level, "-c", "-o", folder / f"{name}.o", MOCK / f"{name}.cc"] for name, level in sources.items())
    script = folder / "old.map"
    script.write_text(f"{{ local: {'; '.join(NEWER_IN_AMD)}; }};")
    links = {
        "new": {
            "libamdhip64.so.6": "hip", "libhiprtc.so.6": "hiprtc",
            "librocblas.so.4": "rocblas", "librocsolver.so.0": "rocsolver",
        },
        "old": {"libamdhip64.so.5": "hip hiprtc", "librocblas.so.0": "rocblas", "librocsolver.so.0": "rocsolver"},
    }  # fmt: skip
    for version, libraries in links.items():
        (folder / version).mkdir(exist_ok=True)
        more = [f"-Wl,--version-script={script}"] if version == "old" else []
        run_all(
            [COMPILER, "-shared", *more, "-o", folder / version / library, *(folder / f"{name}.o" for name in objects.split())]
            for library, objects in libraries.items()
        )
    run_all([[*command, "-O0", "-shared", "-o", folder / version / "xla.so", MOCK / "xla.cc"] for version in links])


def run_all(commands):
    running = [(command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) for command in commands]
    for command, process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, f"{command[-1]}: {errors}"


class Children:
    """Starts child processes and reads their books. ``amd``: the stand-ins are those of AMD's libraries."""

    def __init__(self, libraries, folder, amd=False):
        self.libraries, self.folder, self.count, self.amd = libraries, folder, 0, amd

    def start(self, code, **settings):
        self.count += 1
        log, told = self.folder / f"log{self.count}", self.folder / f"told{self.count}"
        log.touch()
        places = [str(Path(lapwing.__file__).parents[1]), str(MOCK)]
        own = {k: v for k, v in os.environ.items() if not k.startswith(("MOCK_", "LAPWING_"))}
        environment = own | {
            "PYTHONPATH": os.pathsep.join(places),
            "LAPWING_HIP_PATH" if self.amd else "LAPWING_CUDA_PATH": str(self.libraries),
            "MOCK_LIBRARIES": str(self.libraries),
            "LAPWING_CACHE": "",
            "LAPWING_KERNELS": "",
            "OPENBLAS_NUM_THREADS": "1",
            "MOCK_LOG": str(log),
            "MOCK_TOLD": str(told),
        }
        code = "from child import *\n" + textwrap.dedent(code)
        code = code.replace("cusolver", "rocsolver") if self.amd else code
        command = [sys.executable, "-W", "error", "-c", code]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment |= settings
        environment = {name: str(value) for name, value in environment.items() if value is not None}
        process = subprocess.Popen(command, env=environment, **pipes)
        return process, log, told

    def finish(self, started, refused=0):
        process, log, told = started
        output, _ = process.communicate(timeout=120)
        calls = [read(line) for line in log.read_text().splitlines()]
        wrong = [c["text"] for c in calls if c["call"] == "refused"]
        assert process.returncode == 0, "\n".join([output[-4000:], *wrong])
        assert wrong[refused:] == []
        depth = Counter()
        for call in calls:
            depth[call["thread"]] += {"cuCtxPushCurrent": 1, "cuCtxPopCurrent": -1}.get(call["call"], 0)
            assert depth[call["thread"]] >= 0
        assert not any(depth.values()), "contexts entered and not left"
        return calls, json.loads(told.read_text()) if told.exists() else {}

    def __call__(self, code, refused=0, **settings):
        """(calls, told): runs the code to its end. Only ``refused`` calls may have had wrong arguments."""
        return self.finish(self.start(code, **settings), refused)


def read(line):
    thread, call, *rest = line.split(" ")
    return {"thread": thread, "call": call, "text": " ".join(rest), **dict(r.split("=", 1) for r in rest if "=" in r)}


def named(calls, name):
    return [c for c in calls if c["call"] == name]


def launched(calls):
    """The names of the kernels, in order."""
    return [c["name"] for c in named(calls, "cuLaunchKernel")]
