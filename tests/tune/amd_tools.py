#!/usr/bin/env python3
"""Stands in for AMD's tools, which need a GPU: it reads their files and prints their output with synthetic times.

It is TensileLite's Tensile or TensileCreateLibrary, or hipblaslt-bench, by the name it is called with.
"""

import os
import re
import sys
from pathlib import Path

HEADER = (
    "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,stride_a,beta,ldb,stride_b,ldc,stride_c,ldd,stride_d,a_type,b_type,"
    "c_type,d_type,compute_type,scaleA,scaleB,scaleC,scaleD,amaxD,activation_type,bias_vector,bias_type,rotating_buffer,"
    "hipblaslt-Gflops,hipblaslt-GB/s,us"
)
TYPES = {"B": 7, "F8": 15, "F8N": 11, "H": 4, "S": 0}


def kernel(m, n, tuned):
    return f"Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT{'64x112x128' if tuned else '256x128x64'}_MI16x16x1_M{m}_N{n}"


def result(fields, us, solution, tuned=True, check="", index=0):
    """The lines that hipblaslt-bench prints for one product; ``check`` has norm_error, atol and rtol."""
    values = {"grouped_gemm": 0, "rotating_buffer": 512, "hipblaslt-Gflops": 1, "hipblaslt-GB/s": 1, "us": us}
    values |= {name.lower() if name in "MNK" else name: text for name, text in fields.items()}
    values["compute_type"] = values["compute_type"].removeprefix("c_")
    values["bias_vector"] = int(fields.get("bias_vector") == "true")
    row = ",".join(str(values.get(name, 0)) for name in HEADER.split(","))
    name = kernel(values["m"], values["n"], tuned)
    return (
        f"[{index}]:{HEADER}{',norm_error,atol,rtol' if check else ''}\n    {row}{check and ',' + check}\n"
        f"    --Solution index: {solution}\n    --Solution name:  s\n    --kernel name:    {name}\n"
    )


def fields_of(line):
    return dict(re.findall(r"(\w+): ([^,}]+?)\s*[,}]", line))


def bench(arguments):
    """Times of 100 us with the default library; with the new one, products of an N below 110 are faster."""
    tuned = "HIPBLASLT_TENSILE_LIBPATH" in os.environ
    assert not tuned or Path(os.environ["HIPBLASLT_TENSILE_LIBPATH"], "TensileLibrary.dat").exists()
    print("hipBLASLt version: 100000\nRotating buffer 512 MiB. ")
    for i, line in enumerate(Path(arguments[arguments.index("--yaml") + 1]).read_text().splitlines()):
        fields = fields_of(line)
        us = 100.0 + i if not tuned else 80.0 if int(fields["N"]) < 110 else 99.5
        print(result(fields, us, 500 + tuned, tuned, "1e-5,1e-5,1e-5" if "norm_check" in fields else "", i), end="")


def tensile(config, out):
    """Library logic with one kernel for the size of a tuning file."""
    import yaml

    file = yaml.safe_load(Path(config).read_text())
    assert file["Backend"]["Name"] == "Ductile" and os.environ["HIP_VISIBLE_DEVICES"] in "0123"
    problem, steps = file["BenchmarkProblems"][0]
    (size,) = steps["BenchmarkFinalParameters"][0]["ProblemSizes"]
    about, data = file["LibraryLogic"], TYPES[problem["DataType"]]
    types = {"DataType": data, "DataTypeA": data, "DataTypeB": data, "DestDataType": TYPES[problem["DestDataType"]]}
    types |= {"ComputeDataType": 0, "TransposeA": problem["TransposeA"], "TransposeB": problem["TransposeB"]}
    types["UseScaleAB"] = problem.get("UseScaleAB", "")
    solution = {"SolutionIndex": 0, "SolutionNameMin": "s", "DepthU": size["Exact"][1], "StaggerU": 4}
    logic = [{"MinimumRequiredVersion": "4.33.0"}, about["ScheduleName"], about["ArchitectureName"], about["DeviceNames"]]
    logic += [types, [solution], [2, 3, 0, 1], [[size["Exact"], [0, 900.0]]], None, None, "DeviceEfficiency", "Equality"]
    folder = Path(out, "3_LibraryLogic")
    folder.mkdir(parents=True)
    name = f"{about['ScheduleName']}_Cijk_Alik_Bljk_{problem['DataType']}BS_BH_Bias_HAS_SAV_UserArgs.yaml"
    (folder / name).write_text(yaml.safe_dump(logic, default_flow_style=None))


def create_library(arguments):
    logic, out, kind = arguments[-3:]
    assert list(Path(logic).glob("*.yaml")) and kind == "HIP" and arguments[arguments.index("--architecture") + 1] == "gfx950"
    Path(out, "library", "gfx950").mkdir(parents=True)
    Path(out, "library", "gfx950", "TensileLibrary.dat").touch()


def install(folder):
    """Put the tools into ``folder/bin`` as TensileLite has them, and return that folder."""
    (folder / "ductile").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("Tensile", "TensileCreateLibrary", "hipblaslt-bench"):
        tool = folder / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        tool.chmod(0o755)
    return folder / "bin"


if __name__ == "__main__":
    called, *rest = sys.argv[1:]
    {"Tensile": lambda: tensile(*rest), "TensileCreateLibrary": lambda: create_library(rest)}.get(called, lambda: bench(rest))()
