"""The loader of shared libraries: the order of the search, what is cached, and what the error says."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lapwing.core import libraries

COMPILER = shutil.which("gcc") or shutil.which("cc")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A shared library that returns a number."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "number.c").write_text("int number(void) { return 7; }\n")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "number.so", folder / "number.c"], check=True)
    return folder / "number.so"


def put(source, folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    return str(shutil.copy(source, folder / name))


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv("LAPWING_CUDA_PATH", raising=False)
    libraries._load.cache_clear()
    yield
    libraries._load.cache_clear()


def test_order_of_the_search(source, tmp_path, monkeypatch):
    """LAPWING_CUDA_PATH, then what the process has loaded, then pip's folders; newer names first."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(libraries, "_NVIDIA", libraries._NVIDIA | {"number": ("libnumber.so.13", "libnumber.so.12")})
    assert libraries.find("number") == ""
    old = put(source, tmp_path / "site/nvidia/number/lib", "libnumber.so.12")
    assert libraries.find("number") == old and libraries.folders() == [str(Path(old).parent)]
    new = put(source, tmp_path / "site/nvidia/cu13/lib", "libnumber.so.13")
    assert libraries.find("number") == new
    running = put(source, tmp_path / "framework", "libnumber.so.12")
    ctypes.CDLL(running)
    assert libraries.loaded("libnumber.so.*") == [running] and libraries.find("number") == running
    chosen = put(source, tmp_path / "chosen", "libnumber.so.12")
    monkeypatch.setenv("LAPWING_CUDA_PATH", f"{tmp_path / 'nowhere'}:{tmp_path / 'chosen'}")
    assert libraries.find("number") == chosen
    assert libraries.load("number").number() == 7 and libraries.load("number") is libraries.load("number")


def test_libraries_of_the_environment(source, tmp_path, monkeypatch):
    """Names that end in any number, from MKLROOT and LD_LIBRARY_PATH."""
    assert libraries.find("lapwing_number") == ""
    path = put(source, tmp_path / "mkl/lib", "liblapwing_number.so.3")
    monkeypatch.setenv("MKLROOT", str(tmp_path / "mkl"))
    assert libraries.find("lapwing_number") == path
    libraries.open_lazily(path)
    with pytest.raises(OSError, match="nonesuch"):
        libraries.open_lazily(str(tmp_path / "nonesuch.so"))


def test_error_lists_the_searched_places(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(OSError) as caught:
        libraries.load("cusolverMp", operation="solve")
    text = str(caught.value)
    assert text.startswith("solve: libcusolverMp.so.0 cannot be loaded: ")
    assert "LAPWING_CUDA_PATH (which is not set)" in text and "NVIDIA's wheels (none installed)" in text
    assert text.endswith("\nhint: pip install nvidia-cusolvermp-cu13")
    (tmp_path / "libcusolverMp.so.0").write_text("this is no library")
    monkeypatch.setenv("LAPWING_CUDA_PATH", str(tmp_path))
    with pytest.raises(OSError, match=f"cannot be loaded: {tmp_path}.*LAPWING_CUDA_PATH \\({tmp_path}\\)"):
        libraries.load("cusolverMp")


def test_tune_uses_the_chosen_folder(tmp_path, monkeypatch):
    """cuBLASLt and NVRTC are searched as every other library of CUDA."""
    from lapwing.tune.backends.cublaslt_api import Library

    (tmp_path / "libcublasLt.so.13").write_text("this is no library")
    monkeypatch.setenv("LAPWING_CUDA_PATH", str(tmp_path))
    with pytest.raises(OSError, match=f"tune: libcublasLt.so.13 cannot be loaded: {tmp_path}"):
        Library()
