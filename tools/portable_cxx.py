"""A C++ compiler for wheels: g++ compiles, zig links for an old glibc.

g++ compiles, because with clang the kernels for AVX2 and AVX-512 are left out (native/cpu/cpu.h). zig links, because a library
that g++ links needs the glibc of this machine, while zig carries the symbol tables of older ones.

    CXX="python tools/portable_cxx.py" pip wheel .

LAPWING_MACHINE=aarch64 compiles for that machine, with Debian's cross compiler.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

GLIBC = os.environ.get("LAPWING_GLIBC", "2.28")
MACHINE = os.environ.get("LAPWING_MACHINE", platform.machine())
COMPILER = "g++" if platform.machine() == MACHINE else f"{MACHINE}-linux-gnu-g++"
# What libstdc++.a and its headers take from a newer glibc. The variable says "other threads
# may run", which is always safe.
MISSING = """
#include <stdint.h>
#include <sys/random.h>
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {}
  return value;
}
"""
# options of g++ or of this Python's build (Debian's has several) that zig refuses, or that would find a newer glibc
DROPPED = ("-static-libstdc++", "-static-libgcc", "-specs=", "-flto", "-ffat-lto-objects", "-g", "-fdebug-prefix-map")
DROPPED += ("-Wl,-O", "-Wl,-Bsymbolic", "-L/usr/lib", "-L/lib")


def archive(option: str) -> str:
    return subprocess.run([COMPILER, option], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def link(arguments: list[str]) -> None:
    zig = [sys.executable, "-m", "ziglang"]
    target = ["-target", f"{MACHINE}-linux-gnu.{GLIBC}"]
    output = arguments[arguments.index("-o") + 1]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "missing.c"
        source.write_text(MISSING)
        missing = str(source.with_suffix(".o"))
        subprocess.run([*zig, "cc", *target, "-O2", "-fPIC", "-c", str(source), "-o", missing], check=True)
        # libgcc.a has what asks for the processor; the unwinder stays shared, because the static one needs a newer glibc
        libraries = [archive(f"-print-file-name={name}") for name in ("libstdc++.a", "libgcc.a", "libgcc_s.so.1")]
        kept = [a for a in arguments if not a.startswith(DROPPED)]
        subprocess.run([*zig, "c++", *target, "-nostdlib++", *kept, missing, *libraries, "-lm"], check=True)
    symbols = subprocess.run(["nm", "-D", "--undefined-only", output], check=True, text=True, stdout=subprocess.PIPE).stdout
    unknown = [line.split()[1] for line in symbols.splitlines() if line.split()[0] == "U" and "@" not in line]
    unknown = [name for name in unknown if not name.startswith(("Py", "_Py"))]
    if unknown:
        Path(output).unlink()
        sys.exit(f"portable_cxx: glibc {GLIBC} does not have {', '.join(unknown)}\nhint: add them to MISSING in {__file__}")


if __name__ == "__main__":
    if "-shared" in sys.argv:
        try:
            link(sys.argv[1:])
        except subprocess.CalledProcessError as error:
            sys.exit(error.returncode)
    else:
        os.execvp(COMPILER, [COMPILER, *sys.argv[1:]])
