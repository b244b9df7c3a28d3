"""TunableOp's files: untuned products and tuned results. Their fields contain commas, so they are not CSV."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from .hipblaslt import yaml_fields
from .sink import LineReader
from .values import LARGEST, make, number, sums_of, type_name

_OPERATION = re.compile(r"(Gemm|GemmAndBias|GemmStridedBatched|ScaledGemm)TunableOp_(.+)_([NTC])([NTC])$")
_TYPE = re.compile(r"Float8_[a-z0-9]+|c10::complex<\w+>|BFloat16|Half|float|double|tf32|Int8|Int")
_SIZES = re.compile(
    r"([ntcNTC])([ntcNTC])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_(\d+))?(?:_rw_([01]))?(?:_bias_([\w:]+))?$"
)


class TunableOpReader(LineReader):
    def take(self, number: int, line: str) -> bool:
        if line.startswith("Validator,"):
            return True
        if "TunableOp_" not in line:
            return False
        operation, _, rest = line.strip().partition(",")
        sizes, _, rest = rest.partition(",")
        # each product has one row, without a count
        self.sink.add("listed", make(**_product(operation, sizes, rest)), 1, number)
        return True


def _product(operation: str, sizes: str, rest: str) -> dict[str, Any]:
    # the program may have printed a little before it on the same line
    named, found = _OPERATION.search(operation[-200:].strip()), _SIZES.match(sizes.strip())
    if named is None:
        raise ValueError(f"unknown operation {operation[:60]!r}")
    if found is None:
        reason = "stands for many sizes" if "*" in sizes else "is not of the form tn_m_n_k_ld_lda_ldb_ldc"
        raise ValueError(f"{sizes[:60]!r} {reason}")
    values: dict[str, Any] = {"trans_a": found[1].upper(), "trans_b": found[2].upper()}
    for name, text in zip(("m", "n", "k", "batch"), (found[3], found[4], found[5], found[6] or "1"), strict=True):
        values[name] = number(text, name, high=LARGEST)
    for name, text in zip(("lda", "ldb", "ldc"), (found[7], found[8], found[9]), strict=True):
        values[name] = number(text or "0", name)
    values["ldd"] = values["ldc"]
    types = _TYPE.findall(named[2])
    if len(types) not in (1, 2, 3):
        raise ValueError(f"unknown types {named[2][:40]!r}")
    a, b, d = (types * 3 if len(types) == 1 else [types[0], *types] if len(types) == 2 else types)[:3]
    a, b, d = type_name(a), type_name(b), type_name(d)
    values |= {"a_type": a, "b_type": b, "c_type": d, "d_type": d}
    values["compute"] = "tf32" if "tf32" in types else sums_of(a)
    if named[1] == "ScaledGemm":
        values["scale_a"] = values["scale_b"] = "row" if found[10] == "1" else "tensor"
        if found[11] and found[11] != "None":
            values["bias"] = type_name(found[11])
    elif named[1] == "GemmAndBias":
        values["bias"] = d
    return values | _more(rest)


def _more(rest: str) -> dict[str, Any]:
    """Fields that BLAS_PARAMS adds. Its types and scales are ignored: they are printed even when they have no meaning."""
    if "{" not in rest:
        return {}
    fields = yaml_fields(rest[rest.index("{") :])
    more: dict[str, Any] = {}
    for name in ("alpha", "beta"):
        with suppress(KeyError, ValueError):  # missing, or a complex number: then 1 and 0 are assumed
            more[name] = float(fields[name])
        if more.get(name, 0) - more.get(name, 0) != 0:
            raise ValueError(f"{name} is {fields[name]!r}, not a number")
    for x in "abcd":
        if step := fields.get(f"stride{x}"):
            more[f"stride_{x}"] = number(step, f"stride_{x}")
    activation = fields.get("activation", "none").lower()
    return more | ({"activation": activation} if activation in ("relu", "gelu") else {})
