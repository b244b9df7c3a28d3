"""TunableOp's files: untuned products and tuned results. Their fields contain commas, so they are not CSV."""

from __future__ import annotations

import re

from .hipblaslt import yaml_fields
from .sink import LineReader
from .values import is_number, product

_OPERATION = re.compile(r"(Gemm|GemmAndBias|GemmStridedBatched|ScaledGemm)TunableOp_(.+)_([NTC])([NTC])$")
_TYPE = re.compile(r"Float8_[a-z0-9]+|c10::complex<\w+>|BFloat16|Half|float|double|tf32|Int8|Int")
_SIZES = re.compile(
    r"([ntcNTC])([ntcNTC])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_(\d+))?(?:_rw_([01]))?(?:_bias_([\w:]+))?$"
)
_ADDED = ("stridea", "strideb", "stridec", "strided")


class TunableOpReader(LineReader):
    def take(self, number: int, line: str) -> bool:
        if line.startswith("Validator,"):
            name, _, value = line.removeprefix("Validator,").strip().partition(",")
            if name == "GCN_ARCH_NAME" and value.startswith("gfx"):
                self.sink.architectures.add(value.partition(":")[0])
            return True
        if "TunableOp_" not in line:
            return False
        operation, _, rest = line.strip().partition(",")
        sizes, _, rest = rest.partition(",")
        # each product has one row, without a count
        self.sink.add("listed", product(_fields(operation, sizes, rest))[0], 1, number)
        return True


def _fields(operation: str, sizes: str, rest: str) -> dict[str, str]:
    # the program may have printed a little before it on the same line
    named, sized = _OPERATION.search(operation[-200:].strip()), _SIZES.match(sizes.strip())
    if named is None:
        raise ValueError(f"unknown operation {operation[:60]!r}")
    if sized is None:
        reason = "stands for many sizes" if "*" in sizes else "is not of the form tn_m_n_k_ld_lda_ldb_ldc"
        raise ValueError(f"{sizes[:60]!r} {reason}")
    names = ("transa", "transb", "m", "n", "k", "batch", "lda", "ldb", "ldc")
    fields = {name: text for name, text in zip(names, sized.groups(), strict=False) if text}
    fields["ldd"] = fields.get("ldc", "0")
    types = _TYPE.findall(named[2])
    if len(types) not in (1, 2, 3):
        raise ValueError(f"unknown types {named[2][:40]!r}")
    a, b, d = (types * 3 if len(types) == 1 else [types[0], *types] if len(types) == 2 else types)[:3]
    fields |= {"atype": a, "btype": b, "ctype": d, "dtype": d} | ({"compute": "tf32"} if "tf32" in types else {})
    if named[1] == "ScaledGemm":
        fields["scalea"] = fields["scaleb"] = "row" if sized[10] == "1" else "tensor"
        fields["bias"] = sized[11] or ""
    elif named[1] == "GemmAndBias":
        fields["bias"] = d
    return fields | _more(rest)


def _more(rest: str) -> dict[str, str]:
    """Fields that BLAS_PARAMS adds. Its types and scales are ignored: they are printed even when they have no meaning."""
    fields = yaml_fields(rest.partition("{")[2])
    # alpha and beta may be complex numbers: then 1 and 0 are assumed
    wanted = {name: text for name, text in fields.items() if name in _ADDED or (name in ("alpha", "beta") and is_number(text))}
    return wanted | ({"activation": text} if (text := fields.get("activation", "").lower()) in ("relu", "gelu") else {})
