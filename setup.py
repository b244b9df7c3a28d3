"""Builds the native core with plain g++; without a compiler the package still installs and works on numpy.linalg."""

import os
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

TENSORFLOW = "native/tensorflow.cc"
CORE = sorted(set(glob("native/*.cc")) - {TENSORFLOW})
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
# The C++ library is linked in, and hidden: its symbols must not reach other libraries of the process.
EXPORTS = "native/exports.map"
LINK = ["-Wl,-s", f"-Wl,--version-script={EXPORTS}", "-static-libstdc++", "-static-libgcc", "-pthread", "-ldl"]


def extension(name: str, sources: list[str]) -> Extension:
    return Extension(
        f"lapwing.{name}",
        sources,
        depends=[EXPORTS, *sorted(glob("native/*.h"))],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
        language="c++",
        py_limited_api=True,
        optional=True,
    )


class Build(build_ext):
    """The files of an extension side by side."""

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
    ext_modules=[extension("_native", CORE), extension("_tensorflow", [TENSORFLOW])],
    cmdclass={"bdist_wheel": Wheel, "build_ext": Build},
)
