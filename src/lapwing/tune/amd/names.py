"""Names of types, scales and problems in AMD's tools."""

from __future__ import annotations

from ..gemm import TYPES, Gemm

# in hipblaslt-bench and in logs
R_TYPES = {name: f"{name}_r" for name in ("f64", "f32", "f16", "bf16", "i8", "i32")}
R_TYPES |= {"f8e4m3": "f8_r", "f8e5m2": "bf8_r", "f8e4m3fnuz": "f8_fnuz_r", "f8e5m2fnuz": "bf8_fnuz_r", "f4e2m1": "f4_r"}
# TensileLite's letters, which are ours; it has no types of four bits and no complex numbers
LETTERS = {name: letters for name, (_, letters) in TYPES.items() if name not in ("f4e2m1", "c64", "c128")}


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
