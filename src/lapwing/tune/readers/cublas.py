"""cuBLAS's log (a paragraph for each call) and cuBLASLt's trace (a line for each call; hipBLASLt's looks the same)."""

from __future__ import annotations

import re
from typing import Any

from ..gemm import TYPES, Gemm
from .sink import LineReader, Sink
from .values import LARGEST, compute_type, make, number, sizes, sums_of, truth, type_name

_CALL = re.compile(r"I! cuBLAS .*?\b(cublas\w+)\(")
_ARGUMENT = re.compile(r"i!\s+(\w+): type=(?:.*?); val=([^\s(]+)")
_ROUTINE = re.compile(r"cublas(?:([SDCZH])gemm|(?:Gemm))(\w*)", re.IGNORECASE)
_LETTER = {"S": "f32", "D": "f64", "H": "f16", "C": "c64", "Z": "c128"}

_TRACE = re.compile(r"\[(?:cublasLt|HIPBLASLT|hipblasLt)\]\[\d+\]\[(\w+)\]\[(\w+)\]")
_DESCRIPTION = re.compile(r"\b([ABCD]|compute)desc=\[([^\[\]]{0,4000})\]", re.IGNORECASE)
_PAIR = re.compile(r"(\w+)=([^\s\]]+)")
_POINTER = re.compile(r"0[xX][0-9A-Fa-f]+")
_SCALAR = re.compile(r"\s(alpha|beta)=([^\s\]]+)")


class CublasReader(LineReader):
    """Reads logs made with CUBLAS_LOGINFO_DBG=1. They have only the addresses of alpha and beta: 1 and 0 are assumed."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.routine = ""
        self.start = 0
        self.head = ""
        self.arguments: dict[str, str] = {}

    def take(self, number: int, line: str) -> bool:
        if "i!" not in line and "I!" not in line:
            return False
        if found := _CALL.search(line):
            self.close()
            if "gemm" in found[1].lower():
                self.routine, self.start, self.head, self.arguments = found[1], number, line, {}
            return True
        if self.routine and (argument := _ARGUMENT.match(line.strip())):
            self.arguments.setdefault(argument[1].lower(), argument[2])
            return True
        if line.lstrip().startswith(("i!", "I!")):
            self.close()  # lines with time and thread end the paragraph
            return True
        return False

    def close(self) -> None:
        if not self.routine:
            return
        routine, self.routine = self.routine, ""
        try:
            gemm, remark = _classic(routine, self.arguments)
            self.sink.add("cublas", gemm, 1, self.start, remark)
        except ValueError as error:
            self.sink.bad(self.start, self.head, f"{routine[:40]}: {error}")


def _classic(routine: str, fields: dict[str, str]) -> tuple[Gemm, str]:
    found = _ROUTINE.match(routine)
    if found is None or "Grouped" in routine:
        raise ValueError("is not a single matrix product")
    values = sizes(fields)
    for x in "ab":
        values[f"trans_{x}"] = fields.get(f"trans{x}", "CUBLAS_OP_N").removeprefix("CUBLAS_OP_")
    for x in "abc":
        values[f"ld{x}"] = number(fields.get(f"ld{x}", "0"), f"ld{x}")
        values[f"stride_{x}"] = number(fields.get(f"stride{x}", "0"), f"stride_{x}")
    values["ldd"], values["stride_d"] = values["ldc"], values["stride_c"]
    plain = _LETTER.get((found[1] or "").upper())
    for x in "abc":
        word = fields.get(f"{x}type")
        if word is None and plain is None:
            raise ValueError(f"the type of {x.upper()} is missing")
        values[f"{x}_type"] = type_name(word) if word else plain
    values["d_type"] = values["c_type"]
    wide = "f16" if plain == "f16" else sums_of(values["a_type"])
    values["compute"] = compute_type(fields["computetype"]) if "computetype" in fields else wide
    return make(**values), "separate matrices" if "aarray" in fields else ""


class CublasLtReader(LineReader):
    """Reads logs made with CUBLASLT_LOG_LEVEL=2 or more. Rows and columns are those in memory, before transposing."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.known: dict[tuple[object, ...], tuple[Gemm, str]] = {}

    def take(self, number: int, line: str) -> bool:
        found = _TRACE.search(line)
        if found is None:
            return False
        if found[1] != "Trace" or not found[2].lower().endswith("matmul"):
            return True  # another function of the library
        # pointers differ between calls; it only matters whether they exist
        described = tuple((name, _POINTER.sub("0x", text)) for name, text in _DESCRIPTION.findall(line))
        scalars = tuple(_SCALAR.findall(line))
        if not described:
            raise ValueError("the matrices are not described; set CUBLASLT_LOG_LEVEL=2")
        key = described, scalars
        if key not in self.known:
            self.known[key] = _traced(dict(described), dict(scalars))
        gemm, remark = self.known[key]
        self.sink.add("trace", gemm, 1, number, remark)
        return True


def _traced(texts: dict[str, str], scalars: dict[str, str]) -> tuple[Gemm, str]:
    parts = {name[0].lower(): {k.lower(): v for k, v in _PAIR.findall(text)} for name, text in texts.items() if name in "ABCD"}
    compute = next(({k.lower(): v for k, v in _PAIR.findall(text)} for name, text in texts.items() if len(name) > 1), {})
    parts.setdefault("d", parts.get("c", {}))
    parts.setdefault("c", parts["d"])
    values: dict[str, Any] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for x in "abcd":
        part = parts.get(x) or {}
        if not {"type", "rows", "cols"} <= part.keys():
            raise ValueError(f"matrix {x.upper()} is not described")
        if part.get("order", "COL").removeprefix("ORDER_") != "COL":
            raise ValueError(f"matrix {x.upper()} is stored in the order {part['order'][:20]}, not by columns")
        sizes[x] = number(part["rows"], "rows", high=LARGEST), number(part["cols"], "cols", high=LARGEST)
        values[f"{x}_type"] = type_name(part["type"])
        values[f"ld{x}"] = number(part.get("ld", "0"), f"ld{x}")
        values[f"stride_{x}"] = number(part.get("stridedbatchoffset", "0"), f"stride_{x}")
    values["batch"] = number(parts["a"].get("batchcount", "1"), "batch", high=LARGEST)
    for x in "ab":
        values[f"trans_{x}"] = compute.get(f"trans{x}", "OP_N").removeprefix("OP_")
    values["m"], values["n"] = sizes["d"]
    values["k"] = sizes["a"][1] if values["trans_a"] == "N" else sizes["a"][0]
    inner = sizes["b"][0] if values["trans_b"] == "N" else sizes["b"][1]
    if inner != values["k"]:
        raise ValueError(f"the inner sizes of A and B differ: {values['k']} and {inner}")
    values["compute"] = compute_type(compute.get("computetype", "COMPUTE_32F"))
    if "VECTOR" in compute.get("pointermode", "").upper():
        raise ValueError(f"alpha is a vector ({compute['pointermode'][:60]}), which is not supported")
    for name, usual in (("alpha", 1.0), ("beta", 0.0)):
        try:
            values[name] = float(scalars.get(name, usual))
        except ValueError:
            values[name] = usual  # "?" means that it is on the device
        if values[name] - values[name] != 0:
            raise ValueError(f"{name} is {scalars[name][:40]!r}, not a number")
    for x in "ab":
        values[f"scale_{x}"] = _scale(compute, x)
    # the name of the field depends on the release
    values["fast_accum"] = any(truth(text) for name, text in compute.items() if name.startswith("fastaccu"))
    epilogue = compute.get("epilogue", "").strip("*")
    if "BIAS" in epilogue:
        # 8-bit results take a bias of 16 bits
        usual_bias = values["d_type"] if TYPES[values["d_type"]][0] > 1 else "bf16"
        values["bias"] = type_name(compute["biasdatatype"]) if "biasdatatype" in compute else usual_bias
    gradient = any(word in epilogue for word in ("BGRAD", "DRELU", "DGELU", "AUX"))
    if not any(word in epilogue for word in ("DRELU", "DGELU")):
        values["activation"] = "relu" if "RELU" in epilogue else "gelu" if "GELU" in epilogue else "none"
    return make(**values), "its second output is ignored" if gradient else ""


def _scale(compute: dict[str, str], x: str) -> str:
    mode = compute.get(f"{x}scalemode", "").upper()
    if "OUTER" in mode:
        return "row"
    if mode and "SCALAR" not in mode:
        return "block"
    return "tensor" if f"{x}scalepointer" in compute or mode else "none"
