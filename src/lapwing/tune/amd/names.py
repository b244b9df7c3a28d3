"""Names of types, scales and problems in AMD's tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..gemm import TYPES, Gemm

# in hipblaslt-bench and in logs
R_TYPES = {name: f"{name}_r" for name in ("f64", "f32", "f16", "bf16", "i8", "i32")}
R_TYPES |= {"f8e4m3": "f8_r", "f8e5m2": "bf8_r", "f8e4m3fnuz": "f8_fnuz_r", "f8e5m2fnuz": "bf8_fnuz_r"}
R_TYPES |= {"f4e2m1": "f4_r", "f6e2m3": "f6_r", "f6e3m2": "bf6_r"}
SMALL = ("f4e2m1", "f6e2m3", "f6e3m2")  # only with block scales, by kernels that TensileLite does not generate
# TensileLite's letters, which are ours; it has no types below eight bits and no complex numbers
LETTERS = {name: letters for name, (_, letters) in TYPES.items() if name not in (*SMALL, "c64", "c128")}
# TensileLite's numbers of types in library logic
_NUMBERS = {0: "f32", 1: "f64", 4: "f16", 6: "i32", 7: "bf16", 8: "i8", 10: "tf32"}
_NUMBERS |= {11: "f8e4m3fnuz", 12: "f8e5m2fnuz", 15: "f8e4m3", 16: "f8e5m2"}
_MIXED = {13: (11, 12), 14: (12, 11), 17: (15, 16), 18: (16, 15)}  # one number for different types of A and B


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
    if gemm.a_type == "f64":
        return f"Cijk_{a}_{b}_{types}_UserArgs"
    scales = {"tensor": "_SAB", "row": "_SABV"}.get(gemm.scale_a, "")
    return f"Cijk_{a}_{b}_{types}_Bias_HAS{scales}_SAV_UserArgs"


def same_problem(problem: Mapping[str, Any], gemm: Gemm) -> bool:
    """Whether library logic of this problem type is about the types, layout and scales of a product.

    Bias and activation do not matter: one kernel serves all of them.
    """
    a = b = problem.get("DataType")
    a, b = _MIXED.get(a, (a, b)) if isinstance(a, int) else (a, b)
    types = [problem.get("DataTypeA", a), problem.get("DataTypeB", b), problem.get("DestDataType")]
    wanted = [gemm.a_type, gemm.b_type, gemm.d_type]
    layout = ["T" if problem.get(f"Transpose{x}") else "N" for x in "AB"]
    scales = {"Scalar": "tensor", "Vector": "row"}.get(str(problem.get("UseScaleAB") or ""), "none")
    fast = problem.get("F32XdlMathOp", 0) not in (0, "S", "s")
    return (
        [_type(kind) for kind in types] == wanted
        and layout == [gemm.trans_a, gemm.trans_b]
        and (scales == gemm.scale_a or gemm.scale_a == "none")
        and (gemm.a_type != "f32" or fast == (gemm.compute == "tf32"))
    )


def _type(kind: Any) -> str | None:
    if isinstance(kind, str):
        return next((name for name, letters in LETTERS.items() if letters == kind.upper()), None)
    return _NUMBERS.get(kind)
