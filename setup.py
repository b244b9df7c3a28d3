"""Builds the native core with plain g++; without a compiler the package still installs and works on numpy.linalg."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from sysconfig import get_platform
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

TENSORFLOW = "native/bind/tensorflow.cc"
FOLDERS = ("bind", "cpu", "cusolver", "gpu", "lapack", "methods")
CORE = sorted({*glob("native/*.cc"), *[f for folder in FOLDERS for f in glob(f"native/{folder}/*.cc")]} - {TENSORFLOW})
COMPILE = [
    "-std=c++17",
    "-O3",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-g0",
]
if "aarch64" in get_platform():
    COMPILE.append("-Wno-psabi")  # notes about calls that never leave the library
# The C++ library is linked in, and hidden: its symbols must not reach other libraries of the process.
EXPORTS = "native/exports.map"
STATIC = ["-Wl,-s", "-static-libstdc++", "-static-libgcc", "-pthread", "-ldl"]
LINK = [f"-Wl,--version-script={EXPORTS}", *STATIC]
# A plain shared library for solvers, not a Python module: it has no suffix of an ABI, and stays loaded once it was.
INSITU = "lapwing.liblapwing_insitu"
INSITU_EXPORTS = "native/insitu/exports.map"
INSITU_LINK = [f"-Wl,--version-script={INSITU_EXPORTS}", "-Wl,-soname,liblapwing_insitu.so", "-Wl,-z,nodelete", *STATIC]


def extension(name: str, sources: list[str]) -> Extension:
    return Extension(
        f"lapwing.{name}",
        sources,
        include_dirs=["native"],
        depends=[EXPORTS, *glob("native/*.def"), *sorted({*glob("native/*.h"), *glob("native/*/*.h")})],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
        language="c++",
        py_limited_api=True,
        optional=True,
    )


def insitu_library() -> Extension:
    version_file = "src/lapwing/_version.py"
    version = re.search(r'"(.+)"', Path(version_file).read_text().split("__version__")[1])
    assert version
    header = "src/lapwing/insitu/include/lapwing_insitu.h"
    return Extension(
        INSITU,
        sorted(glob("native/insitu/*.cc")),
        depends=[INSITU_EXPORTS, header, version_file, *sorted(glob("native/insitu/*.h"))],
        define_macros=[("LAPWING_VERSION", f'"{version[1]}"')],
        extra_compile_args=COMPILE,
        extra_link_args=INSITU_LINK,
        language="c++",
        optional=True,
    )


class Build(build_ext):
    """The files of an extension side by side."""

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.endswith("liblapwing_insitu"):  # also asked by its last name alone
            return f"{fullname.replace('.', os.sep)}.so"
        return str(super().get_ext_filename(fullname))

    def build_extension(self, ext: Extension) -> None:
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_all([source], **options), sources)
            return [name for names in made for name in names]

        self.compiler.compile = compile_each
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_all


class Wheel(bdist_wheel):
    """One wheel for every Python from 3.11 on."""

    def finalize_options(self) -> None:
        self.py_limited_api = "cp311"
        super().finalize_options()


setup(
    ext_modules=[extension("_native", CORE), extension("_tensorflow", [TENSORFLOW]), insitu_library()],
    cmdclass={"bdist_wheel": Wheel, "build_ext": Build},
)
