"""Names of types, scales and problems in AMD's tools."""

from __future__ import annotations

from ..gemm import Gemm

# in hipblaslt-bench and in logs
R_TYPES = {
    "f64": "f64_r",
    "f32": "f32_r",
    "f16": "f16_r",
    "bf16": "bf16_r",
    "f8e4m3": "f8_r",
    "f8e5m2": "bf8_r",
    "f8e4m3fnuz": "f8_fnuz_r",
    "f8e5m2fnuz": "bf8_fnuz_r",
    "f4e2m1": "f4_r",
    "i8": "i8_r",
    "i32": "i32_r",
}
# TensileLite's letters
LETTERS = {
    "f64": "D",
    "f32": "S",
    "tf32": "X",
    "f16": "H",
    "bf16": "B",
    "f8e4m3": "F8",
    "f8e5m2": "B8",
    "f8e4m3fnuz": "F8N",
    "f8e5m2fnuz": "B8N",
    "i8": "I8",
    "i32": "I",
}


def compute_type(gemm: Gemm) -> str:
    return {"tf32": "xf32_r"}.get(gemm.compute) or R_TYPES.get(gemm.compute, "f32_r")


def letters(gemm: Gemm) -> str:
    """The types of A and B: F8, or F8B8 if they differ."""
    a, b = LETTERS[gemm.a_type], LETTERS[gemm.b_type]
    return a if a == b else a.removesuffix("N") + b


def problem_name(gemm: Gemm) -> str:
    """TensileLite's name for the problem type that :mod:`tensile` writes."""
    a = "Ailk" if gemm.trans_a == "N" else "Alik"
    b = "Bljk" if gemm.trans_b == "N" else "Bjlk"
    if gemm.a_type in ("f32", "f64"):  # summed in its own type
        types = f"{letters(gemm)}B"
    else:
        types = f"{letters(gemm)}{LETTERS[gemm.d_type]}{LETTERS[gemm.compute]}_BH"
    scales = {"tensor": "_SAB", "row": "_SABV"}.get(gemm.scale_a, "")
    return f"Cijk_{a}_{b}_{types}_Bias_HAS{scales}_SAV_UserArgs"
