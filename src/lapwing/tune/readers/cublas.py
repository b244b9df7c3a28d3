"""cuBLAS's log (a paragraph for each call) and cuBLASLt's trace (a line for each call; hipBLASLt's looks the same)."""

from __future__ import annotations

import re

from ..gemm import TYPES, Gemm
from .sink import LineReader, Sink
from .values import LARGEST, is_number, number, product, truth, type_name

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
        if match := _CALL.search(line):
            self.close()
            if "gemm" in match[1].lower():
                self.routine, self.start, self.head, self.arguments = match[1], number, line, {}
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


def _classic(routine: str, arguments: dict[str, str]) -> tuple[Gemm, str]:
    named = _ROUTINE.match(routine)
    if named is None or "Grouped" in routine:
        raise ValueError("is not a single matrix product")
    plain = _LETTER.get((named[1] or "").upper())
    fields = dict.fromkeys(("atype", "btype", "ctype"), plain) if plain else {}
    fields |= {"compute": "f16"} if plain == "f16" else {}
    fields |= {name: text for name, text in arguments.items() if name not in ("alpha", "beta")}
    if missing := [x for x in "abc" if f"{x}type" not in fields]:
        raise ValueError(f"the type of {missing[0].upper()} is missing")
    fields |= {"ldd": fields.get("ldc", "0"), "strided": fields.get("stridec", "0")}
    return product(fields)[0], "separate matrices" if "aarray" in fields else ""


class CublasLtReader(LineReader):
    """Reads logs made with CUBLASLT_LOG_LEVEL=2 or more. Rows and columns are those in memory, before transposing."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.known: dict[tuple[object, ...], tuple[Gemm, str]] = {}

    def take(self, number: int, line: str) -> bool:
        match = _TRACE.search(line)
        if match is None:
            return False
        if match[1] != "Trace" or not match[2].lower().endswith("matmul"):
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
    parts = {name.lower(): {k.lower(): v for k, v in _PAIR.findall(text)} for name, text in texts.items()}
    compute = parts.get("compute", {})
    parts.setdefault("d", parts.get("c", {}))
    parts.setdefault("c", parts["d"])
    fields: dict[str, str] = {}
    shapes: dict[str, tuple[int, int]] = {}
    for x in "abcd":
        part = parts.get(x) or {}
        if not {"type", "rows", "cols"} <= part.keys():
            raise ValueError(f"matrix {x.upper()} is not described")
        if part.get("order", "COL").removeprefix("ORDER_") != "COL":
            raise ValueError(f"matrix {x.upper()} is stored in the order {part['order'][:20]}, not by columns")
        shapes[x] = number(part["rows"], "rows", high=LARGEST), number(part["cols"], "cols", high=LARGEST)
        fields[f"{x}type"], fields[f"ld{x}"] = part["type"], part.get("ld", "0")
        fields[f"stride{x}"] = part.get("stridedbatchoffset", "0")
    for x in "ab":
        fields[f"trans{x}"], fields[f"scale{x}"] = compute.get(f"trans{x}", "OP_N"), _scale(compute, x)
    inner = shapes["a"][0 if fields["transa"] != "OP_N" else 1], shapes["b"][1 if fields["transb"] != "OP_N" else 0]
    if inner[0] != inner[1]:
        raise ValueError(f"the inner sizes of A and B differ: {inner[0]} and {inner[1]}")
    if "VECTOR" in compute.get("pointermode", "").upper():
        raise ValueError(f"alpha is a vector ({compute['pointermode'][:60]}), which is not supported")
    fields |= {name: text for name, text in scalars.items() if is_number(text)}  # "?" means that it is on the device
    fields |= {"m": str(shapes["d"][0]), "n": str(shapes["d"][1]), "k": str(inner[0])}
    fields |= {"batch": parts["a"].get("batchcount", "1"), "compute": compute.get("computetype", "COMPUTE_32F")}
    # the name of the field depends on the release
    fields["fastaccum"] = next((text for name, text in compute.items() if name.startswith("fastaccu") and truth(text)), "")
    epilogue = compute.get("epilogue", "").strip("*")
    if "BIAS" in epilogue:
        # 8-bit results take a bias of 16 bits
        of_result = fields["dtype"] if TYPES[type_name(fields["dtype"])][0] > 1 else "bf16"
        fields["bias"] = compute.get("biasdatatype", of_result)
    gradient = any(word in epilogue for word in ("BGRAD", "DRELU", "DGELU", "AUX"))
    if not any(word in epilogue for word in ("DRELU", "DGELU")):
        fields["activation"] = "relu" if "RELU" in epilogue else "gelu" if "GELU" in epilogue else "none"
    return product(fields)[0], "its second output is ignored" if gradient else ""


def _scale(compute: dict[str, str], x: str) -> str:
    mode = compute.get(f"{x}scalemode", "").upper()
    if "OUTER" in mode:
        return "row"
    if mode and "SCALAR" not in mode:
        return "block"
    return "tensor" if f"{x}scalepointer" in compute or mode else "none"
