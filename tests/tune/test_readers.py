"""Readers: real lines of every kind of log, and hostile files."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lapwing.tune.gemm import Call, Gemm
from lapwing.tune.readers import BadLine, Log, merge, read

FIXTURES = Path(__file__).parent / "fixtures"
HIP = (FIXTURES / "hipblaslt.yaml").read_text()  # the original's lines
LINE = HIP.splitlines()[0]
TN = {"trans_a": "T", "trans_b": "N"}


def only(log: Log) -> Gemm:
    assert len(log.calls) == 1, log
    assert not log.problems, log.problems
    return log.calls[0].gemm


def test_the_originals_lines():
    log = read(FIXTURES / "hipblaslt.yaml")
    assert [call.gemm for call in log.calls] == [Gemm(16032, n, 16384, **TN) for n in (109, 113)]
    assert [call.count for call in log.calls] == [1, 1]
    assert log.calls[0].gemm.kind == "BBS_TN" and log.problems == ()


def test_hipblaslt_masks_in_one_file_count_once(tmp_path):
    spaced = LINE.replace("{function", "{ function").replace("call_count: 1}", "call_count: 7 }")
    extended = spaced.replace("call_count", "solution_index: 12, solution_Name: Cijk_A, kernel_name: Cijk_A_B, call_count")
    bench = (
        "hipblaslt-bench --api_method c -m 16032 -n 109 -k 16384 --lda 16384 --ldb 16384 --ldc 16032 --ldd 16032 --stride_a 0 "
        "--stride_b 0 --stride_c 0 --stride_d 0 --alpha 1.000000 --beta 0.000000 --transA T --transB N --batch_count 1 "
        "--scaleA 0 --scaleB 0 --a_type bf16_r --b_type bf16_r --c_type bf16_r --d_type bf16_r --scale_type f32_r "
        "--bias_type f32_r --compute_type f32_r --algo_method index --solution_index 3 --activation_type none"
    )
    (tmp_path / "a.log").write_text("\n".join([spaced, extended, bench, bench]) + "\n")
    (tmp_path / "b.log").write_text(spaced + "\n" + bench)
    log = read(tmp_path / "a.log", tmp_path / "b.log")
    assert only(log) == Gemm(16032, 109, 16384, **TN)
    assert log.calls[0].count == 14  # two ranks of 7, each logged more than once
    assert read(tmp_path / "a.log", tmp_path / "b.log", ranks="max").calls[0].count == 7
    assert read(bench + "\n" + bench).calls[0].count == 2


@pytest.mark.parametrize("how", ["yaml", "bench", "cublaslt"])
def test_a_vector_for_alpha_is_another_product(how, tmp_path):
    """It must not be merged with lines without the vector, whose kernel cannot compute it."""
    bench = "hipblaslt-bench -m 8 -n 4 -k 2 --transA T --transB N --a_type bf16_r --scaleA 0 --activation_type none"
    texts = {
        "yaml": (LINE, LINE.replace("scaleAlpha_vector: false", "scaleAlpha_vector: true")),
        "bench": (bench, f"{bench} --scaleAlpha_vector"),
        "cublaslt": (
            line := cublaslt_line(),
            line.replace("computeType=", "pointerMode=ALPHA_DEVICE_VECTOR_BETA_ZERO computeType="),
        ),
    }
    plain, vector = texts[how]
    assert plain != vector
    log = read(f"{plain}\n{vector}\n{plain}\n")
    assert [call.count for call in log.calls] == [2]
    (bad,) = log.problems
    assert bad.line == 2 and "alpha is a vector" in bad.reason and "not supported" in bad.reason


def cublaslt_line():
    lines = [line for path in FIXTURES.glob("*lt*") for line in path.read_text(errors="replace").splitlines()]
    return next(line for line in lines if "computeType=" in line and "Trace" in line and "atmul" in line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LINE.replace("scaleA: 0,", "scaleA: ,").replace("gradient: false,", ","), Gemm(16032, 109, 16384, **TN)),
        (
            LINE.replace("scaleB: 0", "scaleB: 0, scaleC: , scaleD: , swizzleA: , any_stride: true, aux_type: f32_r"),
            Gemm(16032, 109, 16384, **TN),
        ),
        (LINE.replace(", K:", ",\n  K:").replace(", transA", ",\n    transA"), Gemm(16032, 109, 16384, **TN)),
        (
            LINE.replace("bias_vector: false", "bias_vector: true").replace("activation_type: none", "activation_type: gelu"),
            Gemm(16032, 109, 16384, **TN, bias="f32", activation="gelu"),
        ),
        (
            LINE.replace("a_type: bf16_r, b_type: bf16_r", "a_type: f8_r, b_type: bf8_r").replace(
                "scaleA: 0, scaleB: 0", "scaleA: 1, scaleB: 2"
            ),
            Gemm(16032, 109, 16384, **TN, a_type="f8e4m3", b_type="f8e5m2", scale_a="tensor", scale_b="row"),
        ),
        (
            "- function: matmul\n  M: 8\n  N: 4\n  K: 2\n  transA: 'N'\n  transB: T\n"
            "  a_type: f64_r\n  b_type: f64_r\n  compute_type: c_f64_r\n",
            Gemm(8, 4, 2, "N", "T", "f64", "f64", "f64", "f64", "f64"),
        ),
        (
            LINE.replace("c_f32_r", "c_xf32_r").replace("bf16_r", "f32_r"),
            Gemm(16032, 109, 16384, "T", "N", *["f32"] * 4, "tf32"),
        ),
        ("INFO server ready " + LINE, Gemm(16032, 109, 16384, **TN)),
    ],
    ids=["empty", "new keys", "wrapped", "epilogue", "fp8", "block", "xf32", "amid a program's output"],
)
def test_hipblaslt_variants(text, expected):
    assert only(read(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GemmTunableOp_BFloat16_TN,tn_6144_16_4096_ld_4096_4096_6144", Gemm(6144, 16, 4096, **TN)),
        ("GemmTunableOp_BFloat16_TN,tn_6144_16_4096_ld_4096_4096_6144,Gemm_Hipblaslt_7,0.0123", Gemm(6144, 16, 4096, **TN)),
        ("GemmTunableOp_tf32_NT,nt_10_20_30", Gemm(10, 20, 30, "N", "T", *["f32"] * 4, "tf32")),
        (
            "GemmAndBiasTunableOp_Half_TN,tn_64_8_32_ld_32_40_64,Default",
            Gemm(64, 8, 32, "T", "N", *["f16"] * 4, ldb=40, bias="f16"),
        ),
        (
            "GemmStridedBatchedTunableOp_float_NN,nn_6_4_5_B_3_ld_6_5_6,BLAS_PARAMS: - { function: matmul, M: 6, N: 4, K: 5, "
            "lda: 6, ldb: 5, ldc: 6, ldd: 6, stride_a: 60, stride_b: 20, stride_c: 24, stride_d: 24, alpha: 2, beta: 0.5, "
            "transA: n, transB: n, batch_count: 3 }",
            Gemm(6, 4, 5, "N", "N", *["f32"] * 4, batch=3, stride_a=60, alpha=2.0, beta=0.5),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_12288_2048_ld_2048_2048_64_rw_1_bias_None",
            Gemm(64, 12288, 2048, "T", "N", "f8e4m3", "f8e4m3", scale_a="row", scale_b="row"),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e5m2_Half_TN,tn_64_12_32_ld_32_32_64_rw_0_bias_Half",
            Gemm(64, 12, 32, "T", "N", "f8e4m3", "f8e5m2", "f16", "f16", scale_a="tensor", scale_b="tensor", bias="f16"),
        ),
    ],
)
def test_tunableop(text, expected):
    log = read(f"Validator,PT_VERSION,2.13.0\nValidator,ROCM_VERSION,6.4\n{text}\n")
    assert only(log) == expected and log.calls[0].count == 1


def test_counts_of_a_trace_go_to_rows_without(tmp_path):
    rows = read("GemmTunableOp_float_TN,tn_64_8_32_ld_32_32_64\nGemmTunableOp_float_NN,nn_5_6_7_ld_5_7_5")
    counts = read("64x8x32 f32 TN count=500\n9x9x9 f32 count=2")
    merged = merge(rows, counts)
    assert [(call.gemm.m, call.count) for call in merged.calls] == [(64, 500), (5, 1), (9, 2)]
    (tmp_path / "untuned0.csv").write_text("GemmTunableOp_float_TN,tn_64_8_32_ld_32_48_64\n")
    (log,) = read(tmp_path / "untuned0.csv", "64x8x32 f32 TN count=500").calls
    assert (log.gemm.ldb, log.count) == (48, 500)  # the row has the leading dimension, the other file the count


def test_cublas_log_made_by_the_library():
    log = read(FIXTURES / "cublas.log")
    assert log.problems == ()
    f32, f64, f16 = (["f32"] * 4, ["f64"] * 4, ["f16"] * 4)
    assert {call.gemm: call.count for call in log.calls} == {
        Gemm(6144, 16, 4096, **TN): 2,  # cublasGemmEx and cublasGemmEx_64
        Gemm(64, 32, 16, "N", "N", *f16, batch=8): 2,
        Gemm(10, 20, 30, "N", "T", *f32, lda=12): 1,
        Gemm(10, 20, 30, "N", "T", *f64, "f64", lda=12): 1,
        Gemm(10, 20, 30, "N", "T", *f32, batch=4): 1,
    }


def test_cublaslt_trace():
    log = read(FIXTURES / "cublaslt.log")
    assert {call.gemm: call.count for call in log.calls} == {
        Gemm(2048, 32, 1024): 2,
        Gemm(2048, 32, 1024, "T", "N", "f8e4m3", "f8e4m3", scale_a="tensor", scale_b="tensor"): 1,
        Gemm(64, 128, 1088, "N", "T", "f8e4m3", "f8e4m3", scale_a="block", scale_b="block"): 1,
        Gemm(32, 64, 16, "N", "N", *["f16"] * 4, bias="f16", activation="relu"): 1,
        Gemm(128, 2048, 2400, "T", "N", *["f32"] * 4, ldb=25272, bias="f32"): 1,  # hipBLASLt's trace
    }
    assert [(problem.line, problem.reason) for problem in log.problems] == [
        (9, "the inner sizes of A and B differ: 1024 and 1023")
    ]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    x, w = torch.randn(10, 64), torch.randn(96, 64, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(3):
            torch.nn.functional.linear(x, w, torch.zeros(96)).sum().backward()
        torch.nn.functional.linear(x[None], w)  # by matmul, by mm: counts once
        torch.baddbmm(torch.zeros(3, 4, 6), torch.ones(3, 4, 5), torch.ones(1, 5, 6).expand(3, 5, 6), beta=0.5, alpha=2)
        torch.mm(torch.ones(1, 1).expand(8, 4), torch.ones(4, 9)[:, :5])
        torch.mm(torch.ones(1, 4, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64))
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path


def test_live_profiler_trace(trace, tmp_path):
    f32 = ["f32"] * 4
    expected = {
        Gemm(96, 10, 64, "T", "N", *f32, bias="f32"): 3,
        Gemm(96, 10, 64, "T", "N", *f32): 1,
        Gemm(64, 96, 10, "N", "N", *f32): 3,  # the gradient of w; its left operand is spread by sum()
        Gemm(6, 4, 5, "N", "N", *f32, batch=3, alpha=2.0, beta=0.5): 1,
        Gemm(5, 8, 4, "N", "N", *f32, lda=9): 1,
        Gemm(1, 1, 4, "N", "N", *["f64"] * 4, "f64"): 1,
    }
    log = read(trace)
    assert log.problems == () and {call.gemm: call.count for call in log.calls} == expected
    sources = {call.gemm: call.source for call in log.calls}
    assert "whole batch" in sources[list(expected)[3]] and "expanded" in sources[list(expected)[2]]
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert {call.gemm: call.count for call in read(packed).calls} == expected
    # a trace that was cut off still gives its products, packed or not
    text = trace.read_text()
    place = text.rindex('"aten::baddbmm"')
    (tmp_path / "cut.json").write_text(text[:place])
    (tmp_path / "cut.json.gz").write_bytes(packed.read_bytes()[:-2000])
    cut = read(tmp_path / "cut.json")
    assert {call.gemm: call.count for call in cut.calls} == dict(list(expected.items())[:3]) and cut.problems
    assert read(tmp_path / "cut.json.gz").problems


def test_profiler_scaled_product_and_events_inside_events(tmp_path):
    args = {
        "Input Dims": [[16, 32], [32, 48], [16, 1], [1, 48], [48], [], [], []],
        "Input Strides": [[32, 1], [1, 32], [1, 1], [48, 1], [1], [], [], []],
        "Input type": [*["c10::Float8_e4m3fn"] * 2, "float", "float", "c10::BFloat16", "", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "", "", "", "", "15", "True"],
    }
    inner = {"Input Dims": [[16, 32], [32, 48]], "Input Strides": [[32, 1], [48, 1]], "Input type": ["float", "float"]}
    events = [
        {"ph": "X", "name": "aten::_scaled_mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": args},
        {"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 11, "dur": 2, "args": inner},
    ]
    text = json.dumps({"traceEvents": events})
    from lapwing.tune.readers.profiler import read_trace
    from lapwing.tune.readers.sink import Sink

    read_trace([text], sink := Sink("x"))
    (call,), _ = sink.close()
    scaled = Gemm(48, 16, 32, "T", "N", "f8e4m3", "f8e4m3", scale_a="row", scale_b="row", bias="bf16", fast_accum=True)
    assert call.gemm == scaled != replace(scaled, fast_accum=False)
    # in words, in a table and in cuBLASLt's own log it is another product too
    assert only(read(f"{scaled} scale_a=row scale_b=row")).fast_accum
    assert only(read(Log((call,)).write_csv(tmp_path / "x.csv"))) == scaled
    line = cublaslt_line()
    described = re.sub("R_16BF|R_16F|R_32F(?= rows)", "R_8F_E4M3", line, count=2)
    log = read(described + "\n" + described.replace("computeType=", "fastAccumulationMode=1 computeType="))
    assert [c.gemm.fast_accum for c in log.calls] == [False, True], log
    # TunableOp lists it without fast_accum, which comes from the log with counts
    listed = read("ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_48_16_32_ld_32_32_48_rw_1_bias_BFloat16")
    (merged,) = merge(listed, Log((Call(scaled, 9),))).calls
    assert merged.gemm.fast_accum and merged.count == 9


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        ("16x6144x4096 bf16 TN", Gemm(16, 6144, 4096, **TN), 1),
        ("16x6144x4096 linear count=9", Gemm(6144, 16, 4096, **TN), 9),
        ("8 × 4 × 2 fp64 nt batch=3", Gemm(8, 4, 2, "N", "T", *["f64"] * 4, "f64", batch=3), 1),
        ("8x4x2 fp8 TN", Gemm(8, 4, 2, "T", "N", "f8e4m3", "f8e4m3", scale_a="tensor", scale_b="tensor"), 1),
        ("m,n,k\n8,4,2\n", Gemm(8, 4, 2), 1),
        ("M;N;K;dtype;layout;calls\n8;4;2;float32;TN;12", Gemm(8, 4, 2, "T", "N", *["f32"] * 4), 12),
        ("m,n,k,lda,comment\n8.0,4,2,16,\"a, b\"", Gemm(8, 4, 2, lda=16), 1),
        ("[0]:transA,transB,grouped_gemm,batch_count,m,n,k,alpha,a_type,us\n  T,N,0,1,8,4,2,1,f16_r,3.2",
         Gemm(8, 4, 2, "T", "N", "f16", "f16", "f16", "f16"), 1),
    ],
)  # fmt: skip
def test_tables_and_words(text, expected, count):
    log = read(text)
    assert only(log) == expected and log.calls[0].count == count


def test_a_table_of_ours_reads_back(tmp_path):
    gemms = [
        Gemm(16032, 109, 16384, **TN),
        Gemm(8, 4, 2, "T", "C", "c64", "c64", "c64", "c64", lda=7, alpha=0.7, beta=1e-3),
        Gemm(
            64,
            12,
            32,
            "T",
            "N",
            "f8e4m3",
            "f8e5m2",
            "f16",
            "f16",
            scale_a="row",
            scale_b="block",
            bias="f16",
            activation="gelu",
        ),
        Gemm(6, 4, 5, *"NN", *["f32"] * 4, "tf32", batch=3, stride_a=60, deterministic=True),
        Gemm(6, 4, 5, *"NN", "i8", "i8", "i32", "i32", "i32"),
    ]
    from lapwing.tune.gemm import Call

    source = 'odd "name", with\nlines'
    path = Log(tuple(Call(gemm, 3 + i, source) for i, gemm in enumerate(gemms))).write_csv(tmp_path / "sub" / "ours.csv")
    log = read(path)
    assert log.problems == () and [(c.gemm, c.count) for c in log.calls] == [(g, 3 + i) for i, g in enumerate(gemms)]
    for gemm in gemms[:1]:
        assert only(read(str(gemm))) == gemm  # what we print is understood too


def test_bad_lines_are_named_and_nothing_else_is_lost(tmp_path):
    bad = {
        2: (LINE.replace("M: 16032", "M: nan"), "m is 'nan', not a whole number"),
        3: (LINE.replace("M: 16032", "M: -4"), "m is -4; it must be 0 to 2147483647"),
        4: (LINE.replace("K: 16384", "K: 99999999999999999999"), "k is '99999999999999999999', not a whole number"),
        5: (LINE.replace("N: 109", "N: 0"), "n is 0, so there is nothing to compute"),
        6: (LINE.replace("a_type: bf16_r", "a_type: zf17"), "unknown type 'zf17'"),
        7: (LINE.replace("lda: 16384", "lda: 3"), "lda is 3, less than the 16384 rows of A"),
        8: (LINE[:100], "the entry is cut off"),
        9: (LINE.replace("M: 16032, ", ""), "m is missing"),
        10: (LINE.replace("call_count: 1", "call_count: -3"), "call_count is -3; it must be 1 to 4611686018427387904"),
        11: (LINE.replace("alpha: 1.0", "alpha: inf"), "alpha is 'inf', not a number"),
        12: ("GemmTunableOp_BFloat16_TN,tn_*_16_4096", "'tn_*_16_4096' stands for many sizes"),
        13: ("naïve text ✓ of a program", "this line has no product"),
        14: ("[2025][cublasLt][1][Trace][cublasLtMatmul] A=0X1", "the matrices are not described; set CUBLASLT_LOG_LEVEL=2"),
        15: ("3x4x5 bf17", "'bf17' is neither a type (bf16, f16, f32, ...) nor a layout (NN, NT, TN, TT, linear, matmul)"),
    }  # fmt: skip
    path = tmp_path / "log ✓.yaml"
    path.write_text("\r\n".join([LINE, *(text for text, _ in bad.values()), LINE, "# end"]), "utf-8")
    before = path.read_bytes(), os.stat(path).st_mtime_ns
    log = read(path)
    assert [(p.file, p.line, p.reason) for p in log.problems] == [
        (str(path), line, reason) for line, (_, reason) in bad.items()
    ]
    assert [(c.gemm, c.count) for c in log.calls] == [(Gemm(16032, 109, 16384, **TN), 2)]
    assert (path.read_bytes(), os.stat(path).st_mtime_ns) == before
    assert str(log.problems[0]).startswith(f"{path}:2: m is")


def test_hostile_files(tmp_path):
    files = {
        "empty": b"",
        "zeros": bytes(5000),
        "garbage": bytes(range(1, 256)) * 4000,
        "gzip": b"\x1f\x8b\x08\x00 not really",
        "deep.json": b'{"traceEvents": ' + b"[" * 200_000,
        "deep2.json": b'{"traceEvents": [\n' + b"  {\n" * 50_000,
        "wrong.json": json.dumps({"traceEvents": [1, None, {"name": "aten::mm", "args": 3}, {"name": "aten::mm", "args": {
            "Input Dims": [[1e9, "a"], None], "Input Strides": [1], "Input type": [None]}}]}).encode(),
        "nan.json": b'{"traceEvents": [{"name": "aten::mm", "ts": NaN, "args": {"Input Dims": [[NaN, 2], [2, 2]],'
                    b' "Input Strides": [[2, 1], [2, 1]], "Input type": ["float", "float"]}}]}',
        "nothing.json": b'{"a": 1}',
        "braces": b"- { function: matmul, " * 20_000,
        "open": b"- { function: matmul,\n" * 20_000,
        "commas": b"m,n,k\n" + b"," * 900_000 + b"\n1,2,3\n",
        "colons": b"- {" + b"a:" * 400_000 + b"\n",
        "xs": b"1x" * 400_000 + b"\n4x5x6\n",
        "brackets": b"[cublasLt][1][Trace][cublasLtMatmul] " + b"Adesc=[" * 100_000 + b"\n",
        "quotes": b'm,n,k\n"' + b"\n".join([b"1,2,3"] * 3) + b"\n4,5,6\n",
        "bom": b"\xef\xbb\xbf7x8x9\n",
        "utf16": "7x8x9\n".encode("utf-16"),
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with open(tmp_path / "long", "wb") as file:
        file.write(b"1x2x3\n")
        for _ in range(100):
            file.write(b"- { function: matmul, M: 1" + b"x" * 2**20)
        file.write(b"\n4x5x6\n")
    os.mkfifo(tmp_path / "pipe")
    began = time.process_time()
    logs = {name: read(tmp_path / name) for name in (*files, "long", "pipe", "missing")}
    logs |= {"folder": read(tmp_path), "zero byte": read("a\0b"), "device": read("/dev/zero")}
    took = time.process_time() - began
    assert took < 20, took  # each is linear: all together take about a second
    for name, log in logs.items():
        assert log.problems or name == "bom", name
        assert all(isinstance(problem, BadLine) and len(problem.text) <= 200 for problem in log.problems)
        assert len(log.problems) <= 1001
    sizes = {name: [(c.gemm.m, c.gemm.n, c.gemm.k) for c in log.calls] for name, log in logs.items() if log.calls}
    assert sizes == {
        "commas": [(1, 2, 3)],
        "xs": [(4, 5, 6)],
        "quotes": [(1, 2, 3), (4, 5, 6)],
        "bom": [(7, 8, 9)],
        "long": [(1, 2, 3), (4, 5, 6)],
    }
    assert [problem.line for problem in logs["long"].problems] == [2]
    assert logs["missing"].problems[0].reason == "the file does not exist"
    with pytest.raises(ValueError, match="ranks is 'median'\nhint: use sum or max"):
        read("1x2x3", ranks="median")


def test_many_lines_take_linear_time(tmp_path):
    lines = [LINE.replace("N: 109", f"N: {100 + i % 500}") for i in range(5_000)]
    (tmp_path / "big.log").write_text("\n".join(lines))
    began = time.process_time()
    log = read(tmp_path / "big.log")
    took = time.process_time() - began
    assert len(log.calls) == 500 and log.count == 5_000 and not log.problems
    assert took < 3, took  # about 0.1 ms a line or less


def test_damaged_lines_never_raise(tmp_path):
    """Characters changed, lost and doubled in real logs: products or named lines, never an exception."""
    random = Random(0)
    texts = [(FIXTURES / name).read_text() for name in ("hipblaslt.yaml", "cublas.log", "cublaslt.log")]
    texts.append(
        "GemmStridedBatchedTunableOp_float_NN,nn_6_4_5_B_3_ld_6_5_6,BLAS_PARAMS: - { M: 6, alpha: 2, stride_a: 60 }\n" * 3
    )
    texts.append('m,n,k,dtype,layout,count\n8,4,2,f32,TN,3\n"8",4,2,bf16,NN,1\n16x6144x4096 bf16 TN count=3\n')
    shapes = '"Input Dims": [[3, 4], [4, 5]], "Input Strides": [[4, 1], [5, 1]], "Input type": ["float", "float"]'
    texts.append('{"traceEvents": [\n  {"ph": "X", "name": "aten::mm", "args": {' + shapes + "}}\n]}")
    for number in range(300):
        text = list(texts[number % len(texts)])
        for _ in range(random.randrange(1, 12)):
            place = random.randrange(len(text))
            text[place] = random.choice(
                ["", text[place] * 2, "-", "9" * 30, "{", "}", "[", "]", ",", ":", '"', "\n", "é", "\x00", "nan", "=", "(", "x"]
            )
        path = tmp_path / "damaged"
        path.write_text("".join(text), "utf-8")
        log = read(path)
        assert log.calls or log.problems
        for call in log.calls:
            assert 0 < call.gemm.flops < 1e300 and call.count > 0


def test_words_that_are_nearly_a_product(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in ("256x64 f32", "256 x 64", "256*64 f32 TN"):
        (problem,) = read(words).problems
        assert "a product in words has three sizes" in problem.reason
    (problem,) = read("256x64x512 f32 XX").problems
    assert problem.reason.startswith("'XX' is neither a type") and "nor a layout (NN" in problem.reason
    for name in ("256x64.csv", "log256x64"):
        assert read(name).problems[0].reason == "the file does not exist"
    Path("256x64").write_text("m,n,k\n1,2,3\n")
    assert len(read("256x64").calls) == 1


def trace_text(count: int, indent: int | None = None) -> str:
    args = {"Input Dims": [[16, 32], [32, 48]], "Input Strides": [[32, 1], [48, 1]], "Input type": ["float", "float"]}
    event = {"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1, "args": args}
    return json.dumps({"device": ["one"], "traceEvents": [event | {"ts": 10 * i} for i in range(count)]}, indent=indent)


@pytest.mark.parametrize("size", [1, 7, 100, 10**9])
def test_a_trace_is_read_piece_by_piece(size):
    from lapwing.tune.readers.profiler import read_trace
    from lapwing.tune.readers.sink import Sink

    text = trace_text(5, indent=1)
    for cut, problems in ((None, 0), (-3, 1), (-60, 1)):
        pieces = [text[i : min(i + size, len(text[:cut]))] for i in range(0, len(text[:cut]), size)]
        read_trace(pieces, sink := Sink("x"))
        (call,), _ = sink.close()
        assert call.count == (4 if cut == -60 else 5) and call.gemm == Gemm(48, 16, 32, "N", "N", *["f32"] * 4)
        assert call.source == "x:6"
        assert len(sink.problems) == problems, sink.problems


def test_a_packed_trace_that_grows_without_end_is_cut(tmp_path):
    """It is read as far as a trace can reasonably grow, in little memory, and the reason is named."""
    import tracemalloc

    bomb = tmp_path / "bomb.json.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        file.write(trace_text(3)[:-2].encode() + b"," + b"\n" * 40)
        for _ in range(300):
            file.write(b" " * 2**20)
    assert bomb.stat().st_size < 2 * 10**6
    tracemalloc.start()
    log = read(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.calls[0].count == 3 and peak < 50 * 2**20
    assert any("unpacks from" in p.reason and "gunzip" in p.reason for p in log.problems), log.problems
