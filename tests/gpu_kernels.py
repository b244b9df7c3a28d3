"""Names the kernels that the GPU tests compiled at run time, so that their pack has them the next time.

    make gpu-kernels                                    # on any machine: a pack of the common kernels and of those in the list
    LAPWING_CACHE=FOLDER make gpu-test                  # with a GPU: kernels that are in no pack are left in FOLDER
    python tests/gpu_kernels.py FOLDER                  # there or elsewhere, with the same sources: add those to the list

The list, gpu_kernels.txt, has a line per kernel: the device source and the options without the architecture.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import lapwing

LIST = Path(__file__).with_suffix(".txt")
SOURCES = Path(lapwing.__file__).parent / "kernels"
ALWAYS = " -std=c++17 -default-device"  # behind the options of every kernel
HEADER = struct.Struct("<8sQQQ")  # of a file in the cache: a word, the sizes of key and binary, a checksum


def compiled(folder: Path) -> set[str]:
    """A line for each kernel in the cache that these sources give."""
    lines = set()
    for path in (folder / "kernels").glob("*.cubin"):
        data = path.read_bytes()
        _, key_size, *_ = HEADER.unpack_from(data)
        first, _, text = data[HEADER.size : HEADER.size + key_size].partition(b"\n")
        options = first.decode().partition(" ")[2].rpartition(ALWAYS)[0]  # without the compiler's version and the architecture
        lines |= {f"{source.name} {options}" for source in SOURCES.glob("*.cu") if text.startswith(source.read_bytes())}
    return lines


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    before = set(LIST.read_text().splitlines())
    lines = before | compiled(Path(sys.argv[1]))
    LIST.write_text("".join(f"{line}\n" for line in sorted(lines)))
    print(f"{len(lines) - len(before)} kernels added, {len(lines)} in {LIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
