"""Builds the native core with plain g++; without a compiler the package still installs and works on numpy.linalg."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

CORE = [
    "python", "run", "threads", "lapack", "cholesky_cpu", "xla", "vendor", "cubin_cache", "cuda", "cholesky_cuda", "cusolver",
    "krylov", "krylov_cpu", "krylov_cuda", "hermitian_product",
]  # fmt: skip
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
        [f"native/{source}.cc" for source in sources],
        depends=[EXPORTS, *sorted(glob("native/*.h"))],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
        language="c++",
        py_limited_api=True,
        optional=True,
    )


class Wheel(bdist_wheel):
    """One wheel for every Python from 3.11 on."""

    def finalize_options(self) -> None:
        self.py_limited_api = "cp311"
        super().finalize_options()


setup(
    ext_modules=[extension("_native", CORE), extension("_tensorflow", ["tensorflow"])],
    cmdclass={"bdist_wheel": Wheel},
)
