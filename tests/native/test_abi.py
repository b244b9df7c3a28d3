"""The hand-declared C interfaces against the headers they stand for: XLA's in jaxlib, NVIDIA's in its wheels, AMD's in ROCm."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NATIVE = TESTS.parents[1] / "native"
COMPILER = shutil.which("g++") or shutil.which("c++")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(not NATIVE.is_dir(), reason="only from a source tree"),
]


def check(source, *include, options=()):
    # native/cuda.h must not be found for <cuda.h>
    folders = [f"-iquote{folder}" for folder in (NATIVE, TESTS / "abi")] + [f"-I{folder}" for folder in include]
    command = [
        COMPILER,
        "-std=c++17",
        "-fsyntax-only",
        "-Wno-invalid-offsetof",
        *options,
        *folders,
        str(TESTS / "abi" / source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wrong = [line for line in done.stderr.splitlines() if "error:" in line]
    assert done.returncode == 0, "\n".join(wrong[:20])


def without_comments(path):
    return re.sub(r"//[^\n]*", "", path.read_text())


def constants(header):
    """The names of every constexpr number of a header."""
    rows = re.findall(r"constexpr (?:int|uint32_t) ([^;]*);", without_comments(header))
    return [name for row in rows for name in re.findall(r"(\w+)\s*=", row)]


def members(header):
    """(structure, member) of every structure of a header."""
    for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", without_comments(header), re.S):
        for declaration in body.split(";"):
            if function := re.search(r"\(\*(\w+)\)\(", declaration):
                yield name, function[1]
            elif declaration.strip():
                first, *others = declaration.split(",")
                yield name, re.search(r"(\w+)\s*$", first)[1]
                for other in others:
                    yield name, re.search(r"(\w+)\s*$", other)[1]


def xla_headers():
    jax = pytest.importorskip("jax", reason="jaxlib, which carries XLA's header, is not installed")
    return jax.ffi.include_dir()


def test_xla():
    check("xla.cc", xla_headers())


def test_xla_check_is_complete():
    checks = (TESTS / "abi" / "xla.cc").read_text()
    declared = list(members(NATIVE / "bind/xla_abi.h"))
    assert len(declared) > 60
    assert [m for m in declared if not re.search(rf"^(SAME|UNUSED)\({m[0]}, {m[1]}, ", checks, re.M)] == []
    whole = {name for name, _ in declared}
    assert [name for name in whole if not re.search(rf"^(WHOLE|PREFIX)\({name}, ", checks, re.M)] == []
    assert [n for n in constants(NATIVE / "bind/xla_abi.h") if n not in checks] == []


def vendor_rows(header="gpu/vendor.h", tables=("LAPWING_VENDOR",)):
    """(library, our name, the vendor's symbol) of every row, as the preprocessor writes the table out."""
    source = f'#include "{header}"\n#define ROW(library, name, symbol, ...) @ library name symbol;\n'
    source += "".join(f"{table}(ROW)\n" for table in tables)
    command = [COMPILER, "-E", "-P", "-x", "c++", f"-iquote{NATIVE}", "-"]
    table = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"@ (\w+) (\w+) ([^;]*);", table)
    return [(library, name, "".join(re.findall(r'"(\w+)"', symbol))) for library, name, symbol in rows]


def nvidia_headers():
    roots = [Path(root) for root in sys.path if root]
    folders = [p for root in roots for end in ("", "/cccl") for p in root.glob(f"nvidia/*/include{end}")]
    toolkit = Path("/usr/local/cuda/include")
    folders += [p for p in (toolkit, toolkit / "cccl") if p.is_dir()]
    packages = {
        "cuda.h": "nvidia-cuda-runtime",
        "crt/host_defines.h": "nvidia-cuda-crt",
        "nv/target": "nvidia-cuda-cccl",
        "nvrtc.h": "nvidia-cuda-nvrtc",
        "cusolverDn.h": "nvidia-cusolver",
        "cublas_v2.h": "nvidia-cublas",
        "cusparse.h": "nvidia-cusparse",
    }
    absent = [p for header, p in packages.items() if not any((folder / header).is_file() for folder in folders)]
    if absent:
        pytest.skip(f"NVIDIA's headers are not installed: pip install {' '.join(absent)}")
    return folders


def test_vendor(tmp_path):
    headers = nvidia_headers()
    (tmp_path / "rows.h").write_text("".join(f"ROW({name}, {symbol})\n" for _, name, symbol in vendor_rows()))
    check("vendor.cc", tmp_path, *headers)


def test_vendor_check_is_complete():
    checks = (TESTS / "abi" / "vendor.cc").read_text()
    assert [n for n in constants(NATIVE / "gpu/vendor.h") if f"VALUE({n}, " not in checks] == []


def test_vendor_check_sees_a_wrong_row(tmp_path):
    """cuCtxGetDevice in the place of cuDeviceGet must not pass."""
    headers = nvidia_headers()
    rows = [(name, "cuCtxGetDevice" if name == "device_get" else symbol) for _, name, symbol in vendor_rows()]
    (tmp_path / "rows.h").write_text("".join(f"ROW({name}, {symbol})\n" for name, symbol in rows))
    with pytest.raises(AssertionError, match="static assertion failed: cuCtxGetDevice") as caught:
        check("vendor.cc", tmp_path, *headers)
    assert str(caught.value).count("static assertion failed") == 1


def rocm_headers():
    """The folders of AMD's headers: HIP's first, then rocSOLVER's, as far as they are installed."""
    roots = [os.environ.get("ROCM_PATH") or "/opt/rocm", "/usr"]
    folders = [Path(root) / "include" for root in roots if (Path(root) / "include/hip/hip_runtime_api.h").is_file()]
    if not folders:
        pytest.skip("AMD's headers are not installed: apt install libamdhip64-dev librocsolver-dev")
    return folders[0]


def test_amd(tmp_path):
    """Every function that the installed version declares; some are newer than some versions."""
    folder = rocm_headers()
    parts = ["hip/hip_runtime_api.h", "hip/hiprtc.h", "rocblas/internal/rocblas-functions.h", "rocsolver/rocsolver-functions.h"]
    text = "".join((folder / part).read_text() for part in parts if (folder / part).is_file())
    rows = [(name, symbol) for _, name, symbol in vendor_rows("gpu/hip.h", ("LAPWING_HIP", "LAPWING_HIP_NEWER"))]
    # before version 4 rocblas_?trmm was another function, and hip.cc takes the one with a longer name
    if "rocblas_strmm_outofplace(" in text:
        rows = [(name, re.sub("^(rocblas_.trmm)$", r"\1_outofplace", symbol)) for name, symbol in rows]
    # the structure of hipGetDeviceProperties is searched, not declared
    declared = [row for row in rows if re.search(rf"\b{row[1]}\(", text) and "Properties" not in row[1]]
    assert {"hipModuleLaunchKernel", "hiprtcCompileProgram"} <= {symbol for _, symbol in declared}
    (tmp_path / "rows.h").write_text("".join(f"ROW({name}, {symbol})\n" for name, symbol in declared))
    options = ["-DWITH_ROCSOLVER"] if "rocsolver_dpotrf" in text else []
    options += ["-DWITH_PART"] if "rocsolver_dsyevdx(" in text else []
    check("hip.cc", tmp_path, folder, options=options)


def test_amd_check_is_complete():
    checks = (TESTS / "abi" / "hip.cc").read_text()
    assert [n for n in constants(NATIVE / "gpu/hip.h") if f"VALUE({n}, " not in checks] == []


@pytest.mark.parametrize("module", ["_native", "_tensorflow"])
def test_exports(module):
    """Our copy of the C++ library stays ours: one exported, it would stand in for that of every other library."""
    package = Path(pytest.importorskip("lapwing").__file__).parent
    libraries = list(package.glob(f"{module}*.so"))
    if not libraries or shutil.which("nm") is None:
        pytest.skip("not built here")
    listed = subprocess.run(["nm", "-D", "--defined-only", libraries[0]], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert [n for n in names if not n.startswith(("PyInit_", "lapwing_"))][:5] == []
