"""The identity of a matrix product: everything that can change which kernel is best, or whether it is correct.

Sizes are column-major, as in BLAS: D (m x n) = act(alpha op(A) op(B) + beta C + bias). Frameworks are row-major;
``Gemm.row_major`` is the only place that converts: y = x w^T with x (rows, inner) and w (columns, inner) is the column-major
product D = w^T x, "TN", with m = columns and n = rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from .files import from_json

# our name of a type: bytes of one element, and its letters in configuration names
TYPES: dict[str, tuple[float, str]] = {
    "f64": (8, "D"),
    "f32": (4, "S"),
    "tf32": (4, "X"),
    "f16": (2, "H"),
    "bf16": (2, "B"),
    "f8e4m3": (1, "F8"),
    "f8e5m2": (1, "B8"),
    "f8e4m3fnuz": (1, "F8N"),
    "f8e5m2fnuz": (1, "B8N"),
    "f6e2m3": (0.75, "F6"),
    "f6e3m2": (0.75, "B6"),
    "f4e2m1": (0.5, "F4"),
    "i8": (1, "I8"),
    "i32": (4, "I"),
    "c64": (8, "C"),
    "c128": (16, "Z"),
}
Trans = Literal["N", "T", "C"]
ACTIVATIONS = ("none", "relu", "gelu", "swish")
SCALES = ("none", "tensor", "row", "block")
PACKED: dict[str, Any] = dict.fromkeys((f"{name}{x}" for name in ("ld", "stride_") for x in "abcd"), 0)  # for replace()
_CHOICES: dict[str, Collection[str]] = {
    "trans_a": ("N", "T", "C"),
    "trans_b": ("N", "T", "C"),
    "activation": ACTIVATIONS,
    "scale_a": SCALES,
    "scale_b": SCALES,
}
_CHOICES |= dict.fromkeys(("a_type", "b_type", "c_type", "d_type", "compute"), TYPES)


@dataclass(frozen=True)
class Gemm:
    """One matrix product. Leading dimensions and strides of 0 mean packed; they are replaced by the packed values."""

    m: int
    n: int
    k: int
    trans_a: Trans = "N"
    trans_b: Trans = "N"
    a_type: str = "bf16"
    b_type: str = "bf16"
    c_type: str = "bf16"
    d_type: str = "bf16"
    compute: str = "f32"
    batch: int = 1
    # steps from one column to the next, in elements
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    ldd: int = 0
    # steps from one matrix of the batch to the next
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    stride_d: int = 0
    # D = act(alpha op(A) op(B) + beta C + bias)
    alpha: float = 1.0
    beta: float = 0.0
    bias: str = ""  # the type of the bias vector (length m), "" without one
    activation: str = "none"
    scale_a: str = "none"
    scale_b: str = "none"
    deterministic: bool = False  # only kernels that return the same bits every time
    fast_accum: bool = False  # sums of 8-bit floats may use fewer bits (torch's use_fast_accum); always False for other types

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        if self.bias and self.bias not in TYPES:
            raise ValueError(f"bias is {self.bias!r}; it must be empty or one of {', '.join(TYPES)}")
        for name in ("alpha", "beta"):  # 1 and 1.0 are equal, as are 0.0 and -0.0, so each pair must have one key
            object.__setattr__(self, name, float(getattr(self, name)) + 0.0)
        object.__setattr__(self, "fast_accum", bool(self.fast_accum) and self.a_type.startswith(("f8e", "f6e", "f4e")))
        for x in "abcd":
            rows, columns = self.stored(x)
            ld = getattr(self, f"ld{x}") or max(rows, 1)
            if ld < rows:
                raise ValueError(f"ld{x} is {ld}, less than the {rows} rows of {x.upper()}")
            object.__setattr__(self, f"ld{x}", ld)
            stride = getattr(self, f"stride_{x}")
            # a single matrix has no stride, whatever a log prints
            object.__setattr__(self, f"stride_{x}", 0 if self.batch == 1 else stride or ld * columns)

    @classmethod
    def row_major(
        cls, rows: int, columns: int, inner: int, *, left: Trans = "N", right: Trans = "N", dtype: str = "bf16", **other: Any
    ) -> Gemm:
        """``y (rows, columns) = op(left) @ op(right)``, all row-major, packed unless ``other`` has leading dimensions.

        A row-major matrix is the column-major matrix of its transpose, so y^T = op(right)^T op(left)^T: the operands change
        places, and each keeps its letter. ``F.linear(x, w)`` has right = "T", and is "TN".
        """
        types = {f"{x}_type": dtype for x in "abcd"} | {"compute": "f64" if dtype == "f64" else "f32"}
        return cls(m=columns, n=rows, k=inner, trans_a=right, trans_b=left, **(types | other))

    def stored(self, x: str) -> tuple[int, int]:
        """Rows and columns of A, B, C or D in column-major memory."""
        if x == "a":
            return (self.m, self.k) if self.trans_a == "N" else (self.k, self.m)
        if x == "b":
            return (self.k, self.n) if self.trans_b == "N" else (self.n, self.k)
        return self.m, self.n

    @property
    def layout(self) -> str:
        return self.trans_a + self.trans_b

    @property
    def kind(self) -> str:
        """Types and layout, as in the names of configurations: "BBS_TN", "F8BS_TN"."""
        letters = [TYPES[t][1] for t in (self.a_type, self.b_type, self.d_type, self.compute)]
        a, b, d, compute = letters
        return f"{a if a == b else a + b}{d}{compute}_{self.layout}"

    @property
    def packed(self) -> bool:
        return self == replace(self, **PACKED)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> float:
        """Bytes that must be moved at least: A, B and D once, and C if it is read."""
        a, b, c, d = (TYPES[getattr(self, f"{x}_type")][0] for x in "abcd")
        matrix = a * self.m * self.k + b * self.k * self.n + (d + (c if self.beta else 0)) * self.m * self.n
        return matrix * self.batch

    @cached_property
    def key(self) -> str:
        """A short name, different for every product and the same in every process."""
        values = self.to_dict()
        if not self.fast_accum:  # it is newer than the other fields: files written before it keep their names
            del values["fast_accum"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Gemm:
        return from_json(cls, dict(values))

    def __str__(self) -> str:
        extra = f" x{self.batch}" if self.batch > 1 else ""
        extra += f" +bias {self.bias}" if self.bias else ""
        extra += f" {self.activation}" if self.activation != "none" else ""
        extra += " fast_accum" if self.fast_accum else ""
        extra += "" if self.packed else " padded"
        return f"{self.kind} {self.m}x{self.n}x{self.k}{extra}"


@dataclass(frozen=True)
class Call:
    """A product and how often a program runs it."""

    gemm: Gemm
    count: int = 1
    source: str = ""  # file and line it came from
