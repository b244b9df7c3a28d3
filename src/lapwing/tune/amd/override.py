"""hipBLASLt's override file (HIPBLASLT_TUNING_OVERRIDE_FILE): the solution of each product. Not run on AMD hardware.

The file has only transposes, sizes, batch, the types of A, B and C, and the compute type: no leading dimensions, bias,
activation or scales (hipBLASLt issue 1587). If two products look the same in it but need different solutions, both are left
out. Solution numbers are valid for one release of hipBLASLt and one device only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..gemm import Gemm
from .bench import unsupported
from .names import R_TYPES, compute_type

FIELDS = ("transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type", "compute_type", "solution_index")


@dataclass(frozen=True)
class Override:
    """The products that were written, and those that were left out, with the reason."""

    path: Path
    written: tuple[Gemm, ...]
    left_out: tuple[tuple[Gemm, str], ...]

    def __str__(self) -> str:
        rows = "".join(f"\nleft out: {gemm}: {reason}" for gemm, reason in self.left_out)
        return f"{self.path}: {len(self.written)} products{rows}"


def write(solutions: Mapping[Gemm, int], path: str | Path) -> Override:
    """Write the solutions of these products, without those that the file cannot distinguish. No file is written for none."""
    rows: dict[tuple[str, ...], list[Gemm]] = {}
    left_out: list[tuple[Gemm, str]] = []
    for gemm in solutions:
        reason = unsupported(gemm)
        if reason is not None:
            left_out.append((gemm, reason))
        else:
            rows.setdefault(_row(gemm), []).append(gemm)
    lines, written = [], []
    for row, gemms in rows.items():
        numbers = sorted({solutions[g] for g in gemms})
        if len(numbers) > 1:
            why = f"the file cannot distinguish it from {len(gemms) - 1} more, with solutions {numbers} (hipBLASLt issue 1587)"
            left_out += [(g, why) for g in gemms]
            continue
        # hipBLASLt looks for a line with "transA" and reads the next one
        lines += [",".join(FIELDS), ",".join((*row, str(numbers[0])))]
        written += gemms
    to = Path(path)
    if lines:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text("\n".join(lines) + "\n")
    return Override(to, tuple(written), tuple(left_out))


def read(path: str | Path) -> dict[tuple[str, ...], int]:
    """Rows and solution numbers, as hipBLASLt reads them: the last of equal rows counts."""
    lines = Path(path).read_text().splitlines()
    solutions = {}
    for header, values in pairwise(lines):
        if "transA" in header:
            row = dict(zip(header.split(","), values.split(","), strict=True))
            solutions[tuple(row[name] for name in FIELDS[:-1])] = int(row["solution_index"])
    return solutions


def _row(gemm: Gemm) -> tuple[str, ...]:
    sizes = (gemm.trans_a, gemm.trans_b, str(gemm.batch), str(gemm.m), str(gemm.n), str(gemm.k))
    return (*sizes, R_TYPES[gemm.a_type], R_TYPES[gemm.b_type], R_TYPES[gemm.c_type], compute_type(gemm))
