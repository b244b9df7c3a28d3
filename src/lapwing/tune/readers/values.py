"""Convert words of logs: names of types, numbers, and a product from named fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..gemm import Gemm

# the words of all libraries, in lower case, without the prefixes "cuda_", "c10::", "torch." and the suffix "_r"
_TYPES = {
    "f64": "f64 fp64 float64 double r_64f d",
    "f32": "f32 fp32 float32 float single r_32f s tf32 xf32",
    "f16": "f16 fp16 float16 half r_16f h",
    "bf16": "bf16 bfloat16 r_16bf b",
    "f8e4m3": "f8e4m3 f8 fp8 fp8e4m3 fp8_e4m3 f8_e4m3 float8_e4m3fn float8_e4m3 r_8f_e4m3 e4m3",
    "f8e5m2": "f8e5m2 bf8 fp8e5m2 fp8_e5m2 f8_e5m2 float8_e5m2 r_8f_e5m2 e5m2",
    "f8e4m3fnuz": "f8e4m3fnuz f8_fnuz float8_e4m3fnuz r_8f_e4m3_fnuz",
    "f8e5m2fnuz": "f8e5m2fnuz bf8_fnuz float8_e5m2fnuz r_8f_e5m2_fnuz",
    "f6e2m3": "f6e2m3 f6 fp6 r_6f_e2m3",
    "f6e3m2": "f6e3m2 bf6 r_6f_e3m2",
    "f4e2m1": "f4e2m1 f4 fp4 float4_e2m1fn_x2 float4_e2m1fn r_4f_e2m1",
    "i8": "i8 int8 r_8i char",
    "i32": "i32 int32 int r_32i",
    "c64": "c64 complex64 complex<float> c_32f f32_c",
    "c128": "c128 complex128 complex<double> c_64f f64_c",
}
_TYPE_OF = {word: name for name, words in _TYPES.items() for word in words.split()} | {"signed char": "i8"}
_COMPUTE = {
    "tf32": "tf32 xf32 32f_fast_tf32 32f_fast_xf32 f32_fast_tf32 f32_fast_xf32",
    "bf16": "32f_fast_16bf f32_fast_bf16 f32_bf16",
    "f16": "16f 32f_fast_16f f32_fast_f16 f32_f16",
    "f32": "32f 32f_emulated_16bfx9",
    "f64": "64f 64f_emulated_fixedpoint",
    "i32": "32i",
    "f8e4m3": "f32_fast_f8",
    "f8e4m3fnuz": "f32_fast_f8_fnuz",
}
_COMPUTE_OF = {word: name for name, words in _COMPUTE.items() for word in words.split()}
LARGEST = 2**31 - 1  # largest size that any library supports
_LARGEST_STEP = 2**62
_WHOLE = re.compile(r"[+-]?\d{1,19}(?:\.0*)?", re.ASCII)


def type_name(text: str) -> str:
    """ "bf16_r", "CUDA_R_16BF", "c10::BFloat16", "torch.bfloat16" and "bfloat16" are all "bf16"."""
    word = text.strip().strip("\"'").lower()
    for front in ("cuda_", "hip_", "c10::", "torch.", "at::"):
        word = word.removeprefix(front)
    name = _TYPE_OF.get(word) or _TYPE_OF.get(word.removesuffix("_r"))
    if name is None:
        raise ValueError(f"unknown type {text[:40]!r}")
    return name


def compute_type(text: str) -> str:
    """ "c_f32_r", "f32_r", "COMPUTE_32F_FAST_TF32", "CUBLAS_COMPUTE_32F"."""
    word = text.strip().strip("\"'").lower()
    for front in ("cublas_", "hipblas_", "compute_", "c_"):
        word = word.removeprefix(front)
    word = word.removesuffix("_r").removesuffix("_pedantic")
    if word in _COMPUTE_OF:
        return _COMPUTE_OF[word]
    try:
        return {"c64": "f32", "c128": "f64"}.get(name := type_name(word), name)
    except ValueError:
        raise ValueError(f"unknown compute type {text[:40]!r}") from None


def sums_of(a_type: str) -> str:
    """The type in which products of this type are summed, unless a log says otherwise."""
    return {"f64": "f64", "c128": "f64", "i8": "i32"}.get(a_type, "f32")


def sizes(fields: Mapping[str, str]) -> dict[str, Any]:
    """The sizes of a product from fields with folded names."""
    if missing := [name for name in "mnk" if name not in fields]:
        raise ValueError(f"{missing[0]} is missing")
    values = {name: number(fields[name], name, high=LARGEST) for name in "mnk"}
    batch = fields.get("batchcount") or fields.get("batch") or "1"
    return values | {"batch": number(batch, "batch", high=LARGEST)}


def scalars(fields: Mapping[str, str]) -> dict[str, float]:
    """alpha and beta; 1 and 0 where they are missing, or "?", which means that they are on the device."""
    values = {}
    for name, usual in (("alpha", 1.0), ("beta", 0.0)):
        try:
            values[name] = float(fields.get(name, usual))
        except ValueError:
            values[name] = usual if fields[name].strip() == "?" else math.nan
        if not math.isfinite(values[name]):
            raise ValueError(f"{name} is {fields[name][:40]!r}, not a number")
    return values


def number(text: str, name: str, low: int = 0, high: int = _LARGEST_STEP) -> int:
    word = text.strip().strip("\"'")
    if not _WHOLE.fullmatch(word):
        raise ValueError(f"{name} is {text[:40]!r}, not a whole number")
    value = int(word.partition(".")[0])
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be {low} to {high}")
    return value


def is_number(text: str) -> bool:
    try:
        float(text)
        return True
    except ValueError:
        return False


def truth(text: str) -> bool:
    return text.strip().strip("\"'").lower() in ("1", "true", "yes", "on")


def scale_mode(text: str) -> str:
    """hipBLASLt's numbers: 0 for none, 1 for a scalar, 2 for a vector, larger ones for blocks. TunableOp prints a type."""
    word = text.strip().strip("\"'").lower()
    if word in ("", "0", "none", "false"):
        return "none"
    if word in ("1", "tensor", "scalar", "true", "f32_r"):
        return "tensor"
    return "row" if word in ("2", "row", "vector") else "block"


@lru_cache(maxsize=1000)
def fold(name: str) -> str:
    """The name of a field in a common form: "batch_count" and "batchCount" are the same."""
    return name.strip().strip("\"'").lower().replace("_", "").replace("-", "")


def make(**values: Any) -> Gemm:
    """Create a product after checking its sizes; ValueError says what is wrong."""
    for name in ("m", "n", "k", "batch"):
        value = values.get(name, 1)
        if value == 0:
            raise ValueError(f"{name} is 0, so there is nothing to compute")
        if not 0 < value <= LARGEST:
            raise ValueError(f"{name} is {value}; it must be 1 to {LARGEST}")
    return Gemm(**values)


def product(raw: Mapping[str, str]) -> tuple[Gemm, int | None, str]:
    """Create a product from fields with folded names: the product, its count if there is one, and a remark.

    hipBLASLt's YAML, hipblaslt-bench's options and output, and our own tables have these fields. A missing or empty field has
    its usual value, and other fields are ignored.
    """
    fields = {name: value for name, value in raw.items() if value.strip()}
    values = sizes(fields)
    if truth(fields.get("scalealphavector", "")):
        # it must not be counted as the plain product, whose kernel cannot compute it
        raise ValueError("alpha is a vector (scaleAlpha_vector), which is not supported")
    for x in "ab":
        if truth(fields.get(f"swizzle{x}", "")):  # a kernel for the plain matrix would read it wrongly
            raise ValueError(f"{x.upper()} is stored in another order (swizzle{x.upper()}), which is not supported")
    values |= _layout(fields) | _types(fields) | scalars(fields) | _epilogue(fields)
    remarks = []
    for x in "abcd":
        values[f"ld{x}"] = number(fields.get(f"ld{x}", "0"), f"ld{x}")
        step = fields.get(f"stride{x}", "")
        values[f"stride_{x}"] = number(step or "0", f"stride_{x}")
        if step and values["batch"] > 1 and not values[f"stride_{x}"] and x in "ab":
            remarks.append(f"{x.upper()} is one matrix for the whole batch")
    if values["ldc"] == 0:
        values["ldc"] = values["ldd"]
    for name in ("gradient", "usee", "groupedgemm"):
        if truth(fields.get(name, "")):
            if name == "groupedgemm":
                raise ValueError("it is a grouped product, which is not supported")
            remarks.append("its second output is ignored")
    for x in "ab":
        if (mode := fields.get(f"scale{x}", "0").strip()) not in ("3", "block") and values[f"scale_{x}"] == "block":
            remarks.append(f"the scales of {x.upper()}, mode {mode[:20]}, are taken as blocks of 32 (mode 3)")
    for name, what in (("scalec", "scale of C"), ("scaled", "scale of D"), ("amaxd", "largest value of D")):
        if scale_mode(fields.get(name, "")) != "none":
            remarks.append(f"its {what} is ignored")
    counted = fields.get("callcount") or fields.get("count") or fields.get("calls")
    count = None if counted is None else number(counted, "count", 1)
    return make(**values), count, ", ".join(dict.fromkeys(remarks))


def _layout(fields: Mapping[str, str]) -> dict[str, str]:
    layout = fields.get("layout", "NN").strip().strip("\"'").upper()
    if len(layout) != 2:
        raise ValueError(f"layout is {layout[:20]!r}; it is two letters, for example TN")
    letters = {}
    for x, default in zip("ab", layout, strict=True):
        letter = fields.get(f"trans{x}", default).strip().strip("\"'").upper()
        letter = letter.removeprefix("OP_").removeprefix("CUBLAS_OP_")
        letters[f"trans_{x}"] = {"TRUE": "T", "1": "T", "FALSE": "N", "0": "N"}.get(letter, letter)
    return letters


def _types(fields: Mapping[str, str]) -> dict[str, str]:
    """Types of A, B, C, D and of the sums. By default, 8-bit operands have one scale each and a 16-bit result."""
    named = "atype" in fields
    # together with a_type, "dtype" is the folded name of d_type; alone it is the type of all operands
    word = "" if named else fields.get("dtype") or fields.get("type") or fields.get("precision") or ""
    a = type_name(fields.get("atype") or word or "bf16")
    b = type_name(fields.get("btype") or word or a)
    small = a.startswith(("f8e", "f6e", "f4e"))
    usual = "bf16" if small else "i32" if a == "i8" else a
    d = type_name((fields.get("dtype") if named else fields.get("out")) or fields.get("ctype") or usual)
    c = type_name(fields.get("ctype") or d)
    values = {"a_type": a, "b_type": b, "c_type": c, "d_type": d}
    if word.strip().lower() in ("tf32", "xf32"):
        values["compute"] = "tf32"
    else:
        values["compute"] = compute_type(fields.get("computetype") or fields.get("compute") or sums_of(a))
    unsaid = "tensor" if small and "atype" not in fields else "none"
    for x in "ab":
        values[f"scale_{x}"] = scale_mode(fields.get(f"scale{x}", unsaid))
    return values


def _epilogue(fields: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    bias = fields.get("bias", "").strip().strip("\"'").lower()
    if truth(fields.get("biasvector", "")) or truth(bias):
        last = fields.get("biastype") or fields.get("dtype") or fields.get("ctype") or "bf16"
        values["bias"] = type_name(last)
    elif bias not in ("", "0", "none", "false", "no"):
        values["bias"] = type_name(bias)
    activation = (fields.get("activationtype") or fields.get("activation") or "none").strip().strip("\"'").lower()
    values["activation"] = {"silu": "swish", "0": "none"}.get(activation, activation)
    values["deterministic"] = truth(fields.get("deterministic", ""))
    values["fast_accum"] = truth(fields.get("fastaccum", ""))
    return values
