"""Compiles the kernels that the GPU tests ask for on a machine without a GPU, into a folder to carry to one with it.

    python tests/gpu_kernels.py FOLDER                # compile what the list names, for an H100 or H200
    OMP_NUM_THREADS=1 LAPWING_CACHE=FOLDER pytest -m gpu -n 14   # there: every process reads the same folder
    python tests/gpu_kernels.py --record FOLDER       # there, after the tests: write the list anew

The list, gpu_kernels.txt, has a line per kernel: the device source and the options without the architecture. A kernel that is
missing from it is compiled by the first test that needs it. The run-time compiler must have the same version on both machines,
because its version is part of a kernel's key (native core, cubin cache). Kernels that are in the folder already are kept.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import lapwing

LIST = Path(__file__).with_suffix(".txt")
PACKAGE = Path(lapwing.__file__).parent
SOURCES = PACKAGE / "kernels"
ALWAYS = "-std=c++17 -default-device"
MAGIC = b"LAPWING1"
HEADER = struct.Struct("<8sQQQ")
SEEDS = (0, 0x9E3779B97F4A7C15)


def load_compiler() -> Any:
    """NVIDIA's run-time compiler: pip's, or the one of the system."""
    folders = [folder for root in sys.path if root for folder in Path(root).glob("nvidia/*/lib")]
    names = ("libnvrtc.so.13", "libnvrtc.so.12")
    for name in [*(str(folder / name) for folder in folders for name in names), *names]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SystemExit("the run-time compiler was not found\nhint: pip install nvidia-cuda-nvrtc")


def version(compiler: Any) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    compiler.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_one(compiler: Any, name: str, options: str) -> tuple[str, bytes]:
    """(what the compiler said, the binary)"""

    def texts(values: list[bytes]) -> Any:
        return (ctypes.c_char_p * len(values))(*values)

    def fetch(kind: str) -> bytes:
        size = ctypes.c_size_t()
        assert getattr(compiler, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)) == 0
        room = ctypes.create_string_buffer(size.value)
        assert getattr(compiler, f"nvrtcGet{kind}")(program, room) == 0
        return room.raw[: size.value]

    headers = sorted(SOURCES.glob("*.cuh"))
    program = ctypes.c_void_p()
    beside = (len(headers), texts([h.read_bytes() for h in headers]), texts([h.name.encode() for h in headers]))
    source = (SOURCES / name).read_bytes()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), *beside) == 0
    words = [word.encode() for word in options.split()]
    status = compiler.nvrtcCompileProgram(program, len(words), texts(words))
    said = fetch("ProgramLog").rstrip(b"\0").decode()
    binary = b"" if status else fetch("CUBIN")
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return said, binary


def hashed(text: bytes, seed: int = 0) -> int:
    """FNV-1a, as in the native core."""
    h = 14695981039346656037 ^ seed
    for c in text:
        h = ((h ^ c) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return h


def key_of(compiler_version: str, name: str, options: str) -> bytes:
    parts = [f"{compiler_version} {options}".encode(), b"\n", (SOURCES / name).read_bytes()]
    for header in sorted(SOURCES.glob("*.cuh")):
        parts += [b"\n// " + header.name.encode() + b"\n", header.read_bytes()]
    return b"".join(parts)


def path_of(folder: Path, key: bytes) -> Path:
    """The file that the native core reads for this key."""
    return folder / f"{hashed(key, SEEDS[0]):016x}{hashed(key, SEEDS[1]):016x}.cubin"


def write(folder: Path, key: bytes, binary: bytes) -> None:
    """Writes the file at once; only its owner may write there, or the native core ignores it."""
    path = path_of(folder, key)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(HEADER.pack(MAGIC, len(key), len(binary), hashed(binary)) + key + binary)
    new.chmod(0o600)
    new.rename(path)


def read_key(path: Path) -> bytes:
    data = path.read_bytes()
    magic, key_size, *_ = HEADER.unpack_from(data)
    return data[HEADER.size : HEADER.size + key_size] if magic == MAGIC else b""


def record(folder: Path) -> list[str]:
    """A line for each kernel in the folder that these sources give."""
    lines = set()
    for path in folder.glob("*.cubin"):
        first, _, text = read_key(path).partition(b"\n")
        options = first.decode().partition(" ")[2].rpartition(f" {ALWAYS}")[0]
        lines |= {f"{source.name} {options}" for source in SOURCES.glob("*.cu") if text.startswith(source.read_bytes())}
    return sorted(lines)


def one_job(job: tuple[Path, str, int]) -> str:
    """Compiles one line of the list; what went wrong, or ""."""
    folder, line, arch = job
    compiler = load_compiler()
    name, _, options = line.partition(" ")
    options = f"{options} {ALWAYS} -arch=sm_{arch}"
    key = key_of(version(compiler), name, options)
    if path_of(folder, key).exists():
        return ""
    said, binary = compile_one(compiler, name, options)
    if not binary:
        return f"{line}: {said}"
    write(folder, key, binary)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what LAPWING_CACHE will be")
    parser.add_argument("--arch", type=int, default=90, help="compute capability (default: 90)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--record", action="store_true", help="write the list from the kernels in the folder")
    options = parser.parse_args()
    folder = options.folder.absolute() / "kernels"
    if options.record:
        lines = record(folder)
        LIST.write_text("".join(f"{line}\n" for line in lines))
        print(f"{len(lines)} kernels in {LIST}")
        return 0
    if not LIST.exists():
        raise SystemExit(f"{LIST} is missing\nhint: run the GPU tests once, then: python tests/gpu_kernels.py --record FOLDER")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    before = len(list(folder.glob("*.cubin")))
    lines = LIST.read_text().splitlines()
    with ProcessPoolExecutor(options.processes) as pool:
        wrong = [said for said in pool.map(one_job, [(folder, line, options.arch) for line in lines]) if said]
    sizes = [path.stat().st_size for path in folder.glob("*.cubin")]
    print(
        f"{len(sizes) - before} kernels compiled, {len(wrong)} failed, {len(sizes)} in the folder: {sum(sizes) / 2**20:.1f} MiB"
    )
    print(*wrong, sep="\n", end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
