"""Tuning on AMD from a log to its results, with stand-ins for AMD's tools; and outputs that are damaged."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from lapwing.__main__ import main
from lapwing.tune import Gemm
from lapwing.tune.amd import architectures, bench, results
from lapwing.tune.readers import read
from lapwing.tune.workdir import Target, Workdir
from tune import amd_tools

LOG = (Path(__file__).parent / "fixtures" / "hipblaslt.yaml").read_text()
DOCS = Path(__file__).parents[2] / "docs" / "tune-use.md"
SEED = Gemm(16032, 109, 16384, "T", "N")
OTHER = Gemm(16032, 113, 16384, "T", "N")
F8 = Gemm(7168, 128, 16384, "T", "N", a_type="f8e4m3", b_type="f8e4m3", scale_a="row", scale_b="row")


def rows(path):
    return {row["name"]: row for row in csv.DictReader(path.read_text().splitlines())}


def test_documented_commands(tmp_path, capsys, monkeypatch):
    """The commands of the page, with the original's log: each line is run as it stands, with stand-ins for AMD's tools."""
    yaml = pytest.importorskip("yaml", reason="reading library logic needs PyYAML")
    block = next(b for b in re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.S) if "amd gather" in b)
    tools = amd_tools.install(tmp_path / "Tensile")
    monkeypatch.chdir(tmp_path)
    for name, value in (("TENSILE", str(tools)), ("PATH", f"{tools}:{os.environ['PATH']}"), ("RUNS", "2")):
        monkeypatch.setenv(name, value)
    Path("hipblaslt.log").write_text(LOG.replace("call_count: 1}", "call_count: 40}", 1))
    base = Path("asm_full/gfx950/Equality")
    base.mkdir(parents=True)
    for line in block.splitlines()[1:]:  # the first one sets TENSILE
        if line.startswith("lapwing "):
            assert main(shlex.split(line)[1:]) == 0, line
        else:
            subprocess.run(["sh", "-c", line], check=True)
    out, errors = capsys.readouterr()
    assert "nothing was measured" in out.partition("BBS_TN_0")[2] and errors.count("2 products, 41 calls") == 2
    raw, final = rows(Path("W/results/raw_results.csv")), rows(Path("W/results/final_results.csv"))
    (name, kept), (other,) = next(iter(final.items())), set(raw) - set(final)
    assert (kept["n"], kept["us_reference"], kept["us_tuned"], kept["ratio"]) == ("109", "100", "80", "1.25")
    assert kept["call_count"] == "40" and kept["runs_tuned"] == "2" and kept["verified"] == "True"
    assert "MT256x128x64" in kept["kernel_reference"] and "MT64x112x128" in kept["kernel_tuned"]
    assert raw[other]["kept"] == "False" and "1.03 is needed" in raw[other]["reason"]
    share = 100 * 40 * 100 / (40 * 100 + 101)  # measured by log.out
    assert float(kept["pct_of_total"]) == pytest.approx(share, rel=1e-4)
    assert f"by calls: {share * 0.2:.2f} % less time" in out and "uplift of the kept products: 25.00 % on average" in out
    assert "call_count: 40" in Path("W/tunings/bench.yaml").read_text()
    (merged,) = base.glob("*.yaml")
    assert merged.name.startswith("gfx950_Cijk_Alik_Bljk_BBS") and "build hipBLASLt again" in out
    assert [size for size, _ in yaml.safe_load(merged.read_text())[7]] == [[16032, 109, 1, 16384]]
    assert name in ("BBS_TN_0", "BBS_TN_1") and len(list(Path("W/libs").glob("*.yaml"))) == 1


def workdir(path, *gemms, percent=50.0):
    for i, gemm in enumerate(gemms):
        Workdir(path).add_config(Target(f"{gemm.kind}_{i}", gemm, 2, 1e-4, percent))
    return path


def output(path, *parts):
    path.write_text("".join(parts))
    return path


def printed(gemm, us, solution, **more):
    return amd_tools.result(amd_tools.fields_of(bench.yaml_lines([bench.Call(gemm)])), us, solution, **more)


def judge(tmp_path, reference, tuned, verify="1e-5,0,0", gemm=SEED, **options):
    """The comparison of one product; times of several runs, and the text of the validation."""
    w = workdir(tmp_path / "w", gemm)
    ref = output(tmp_path / "ref", *(printed(gemm, us, 1, tuned=False) for us in reference))
    new = output(tmp_path / "new", *(printed(gemm, us, 2) for us in tuned))
    check = [output(tmp_path / "check", printed(gemm, 9, 2, check=verify))] if verify else []
    return results.compare(w, [ref], [new], check, **options)


@pytest.mark.parametrize(
    ("reference", "tuned", "verify", "kept", "reason"),
    [
        ([100], [80], "1e-5,0,0", True, "faster"),
        ([100, 101], [80, 82], "1e-5,0,0", True, "faster"),
        ([100, 79], [80, 60], "1e-5,0,0", False, "the runs overlap"),
        ([100], [99], "1e-5,0,0", False, "1.03 is needed"),
        ([100], [80], "0.5,0,0", False, "its error is 0.5"),
        ([100], [80], "nan,0,0", False, "its answer is wrong"),
        ([100], [80], "1e-5,failed,0", False, "its answer is wrong"),
        ([100], [80], "", False, "it was not validated"),
        ([5], [0.02], "1e-5,0,0", False, "impossible"),
        ([1.2], [1.0], "1e-5,0,0", False, "saves 0.20 us"),
    ],
)
def test_what_is_kept(tmp_path, reference, tuned, verify, kept, reason):
    judged = judge(tmp_path, reference, tuned, verify, architecture="gfx942")
    (c,) = judged.comparisons
    assert c.kept == kept and reason in c.reason and c.doubtful == (reason in ("the runs overlap", "impossible"))
    assert (judged.solutions == {SEED: 2}) == kept and judged.metrics.kept == kept


@pytest.mark.parametrize(("kind", "tflops"), [("f64", 48), ("f32", 48), ("f16", 192)])
def test_what_a_die_of_an_mi250_can_do(tmp_path, kind, tflops):
    """One of the two dies is a device of its own; the data sheet has the sum of both."""
    gemm = Gemm(4096, 4096, 4096, "T", "N", a_type=kind, b_type=kind, c_type=kind, d_type=kind)
    us = gemm.flops / (tflops * 1e6)
    (possible,) = judge(tmp_path, [2 * us], [us], gemm=gemm, architecture="gfx90a").comparisons
    (impossible,) = judge(tmp_path, [2 * us], [us / 1.1], gemm=gemm, architecture="gfx90a").comparisons
    assert possible.kept and not impossible.kept and "more than gfx90a can do" in impossible.reason


def test_unverified_and_equal_kernels(tmp_path):
    assert judge(tmp_path, [100], [80], "", unverified=True).kept
    same = [output(tmp_path / str(us), printed(SEED, us, 1)) for us in (100, 80)]
    (c,) = results.compare(tmp_path / "w", same[:1], same[1:], unverified=True).comparisons
    assert not c.kept and c.reason == "the same kernel runs in both libraries"
    other = output(tmp_path / "other", printed(SEED, 9, 1, tuned=False, check="0,0,0"))
    (c,) = results.compare(tmp_path / "w", [tmp_path / "ref"], [tmp_path / "new"], [other]).comparisons
    assert not c.kept and c.reason == "another kernel was validated than was timed"


def test_damaged_outputs_lose_only_what_is_damaged(tmp_path):
    w = workdir(tmp_path / "w", SEED, OTHER, F8, percent=30.0)
    good, bad = printed(SEED, 100, 1, tuned=False), printed(OTHER, "nan", 1)
    cut = printed(F8, 50, 1).splitlines()[1][:60] + "\n"
    foreign = printed(Gemm(8, 8, 8), 1, 1)
    ref = output(tmp_path / "ref", "Error: a GPU memory access fault\n", good, bad, cut, foreign, "No Solution Found!!\n")
    new = output(tmp_path / "new", printed(SEED, 50, 2, check="1e-6,0,0"), printed(OTHER, 50, 2))
    judged = results.compare(w, [ref], [new])
    assert [(c.name, c.kept, c.compared) for c in judged.comparisons] == [
        ("BBS_TN_0", True, True), ("BBS_TN_1", False, False), ("F8BS_TN_2", False, False),
    ]  # fmt: skip
    reasons = " | ".join(map(str, judged.problems))
    for text in ("memory access fault", "us is nan, so the run failed", "the line is cut off: it has", "No Solution Found"):
        assert text in reasons
    assert "BBS_NN 8x8x8 is not a product of this workdir" in reasons and f"{ref}:1: " in reasons
    assert judged.comparisons[1].reason == "there is no result of the default library"
    assert rows(w / "results" / "raw_results.csv")["F8BS_TN_2"]["us_reference"] == ""
    # its estimated share stays, and is that of the only product that was run
    assert judged.comparisons[0].percent == pytest.approx(30.0)


def test_results_of_old_versions_without_columns(tmp_path):
    """An old output has no scales or bias: it is matched where only one product is possible."""
    drop = r"(,scaleA,scaleB,scaleC,scaleD|,bias_vector,bias_type)"
    text = re.sub(drop, "", printed(F8, 10, 1)).replace("f32_r,2,2,0,0,", "f32_r,").replace("none,0,f32_r,", "none,")
    (result,), problems = bench.read_results(output(tmp_path / "old", text))
    assert not problems and result.gemm != F8 and results.match([result], [F8, SEED])[0] == [(result, F8)]
    biased = Gemm(**F8.to_dict() | {"bias": "bf16"})
    ((_, reason),) = results.match([result], [F8, biased])[1]
    assert "may be 2 products: the output has no bias" in reason


def test_search_of_all_solutions_becomes_an_override_file(tmp_path, capsys):
    """The repeated winner counts once, wrong solutions are left out, and the proven ones are written at the end."""
    checks = [printed(SEED, us, i, check=check) for i, (us, check) in enumerate([(9, "0,0,0"), (3, "nan,0,0"), (5, "0,0,0")])]
    text = output(tmp_path / "all", "Is supported 3 / Total solutions: 3\n", *checks, "Winner: \n", checks[2])
    assert [r.solution for r in bench.read_results(text)[0]] == [0, 1, 2]
    assert main(["tune", "amd", "override", str(text), "-o", str(tmp_path / "o.txt")]) == 0
    assert (tmp_path / "o.txt").read_text().splitlines()[1].endswith(",2")
    judge(tmp_path, [100], [80])
    words = ["--reference", str(tmp_path / "ref"), "--tuned", str(tmp_path / "new"), "--verify", str(tmp_path / "check")]
    assert main(["tune", "amd", "compare", str(tmp_path / "w"), *words, "--override", str(tmp_path / "final.txt")]) == 0
    assert (tmp_path / "final.txt").read_text().splitlines()[1].endswith(",2")
    assert "no library logic in" in capsys.readouterr().out


def test_trim_and_gather(tmp_path, capsys, monkeypatch):
    yaml = pytest.importorskip("yaml", reason="reading library logic needs PyYAML")
    w = workdir(tmp_path / "w", SEED, OTHER, F8)
    assert main(["tune", "run", str(w), "--backend", "hipblaslt", "--arch", "gfx950"]) == 0
    assert main(["tune", "amd", "gather", str(w)]) == 2
    assert "hint: run " in capsys.readouterr().err
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    for name in ("BBS_TN_0", "BBS_TN_1"):
        amd_tools.tensile(w / "tunings" / f"{name}.yaml", w / "tunings" / name)
    assert main(["tune", "amd", "gather", str(w)]) == 0
    assert "no kernel for F8BS_TN_2: its search did not end" in capsys.readouterr().out
    (lib,) = (w / "libs").glob("*.yaml")
    assert len(yaml.safe_load(lib.read_text())[7]) == 2
    output(tmp_path / "kept.csv", "m,n,k,dtype,layout\n16032,113,16384,bf16,TN\n7,8,9,bf16,TN\n")
    words = ["tune", "amd", "trim", str(w / "libs"), "-o", str(tmp_path / "out")]
    assert main([*words, "--results", str(tmp_path / "kept.csv")]) == 0
    assert "has no kernel for BBS_TN 7x8x9" in capsys.readouterr().err
    trimmed = yaml.safe_load((tmp_path / "out" / lib.name).read_text())
    assert [s["SolutionIndex"] for s in trimmed[5]] == [0] and trimmed[7][0][0] == [16032, 113, 1, 16384]
    assert main(words) == 0 and len(yaml.safe_load((tmp_path / "out" / lib.name).read_text())[7]) == 2
    lib.write_text(lib.read_text()[:200])
    assert main(words) == 2
    assert "hint: was it cut off?" in capsys.readouterr().err


def test_another_architecture_is_refused(tmp_path, capsys, monkeypatch):
    """Outputs and library logic of another GPU, and files that were cut off, change nothing."""
    pytest.importorskip("yaml", reason="reading library logic needs PyYAML")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    w = tmp_path / "w"
    log = output(tmp_path / "log", LOG)
    device = "Query device success: there are 1 devices. (Target device ID is 0)\n"
    device += "Device ID 0 : AMD Instinct MI350X gfx950:sramecc+:xnack-\n"
    times = output(tmp_path / "times", device, printed(SEED, 100, 1), printed(OTHER, 100, 1))
    words = ["tune", "configure", str(log), "-w", str(w), "--backend", "hipblaslt", "--times", str(times)]
    assert main(words) == 0 and "gfx950 (the log names it)" in capsys.readouterr().out
    assert main(["tune", "run", str(w), "--backend", "hipblaslt"]) == 0
    other = output(tmp_path / "other", device.replace("MI350X gfx950", "MI300X gfx942"), printed(SEED, 50, 2))
    assert main(["tune", "amd", "compare", str(w), "--reference", str(times), "--tuned", str(other)]) == 2
    assert f"{other} was measured on gfx942, but {w} is for gfx950" in capsys.readouterr().err
    assert main(["tune", "amd", "compare", str(w), "--reference", str(times), "--tuned", str(times)]) == 0
    amd_tools.tensile(w / "tunings" / "BBS_TN_0.yaml", w / "tunings" / "BBS_TN_0")
    assert main(["tune", "amd", "gather", str(w)]) == 0
    (lib,) = (w / "libs").glob("*.yaml")
    base = tmp_path / "asm_full" / "gfx942" / "Equality"
    base.mkdir(parents=True)
    capsys.readouterr()
    assert main(["tune", "amd", "merge", str(base), str(w / "libs"), str(base)]) == 2
    assert f"{lib} is for gfx950, but {base} is for gfx942\nhint: " in capsys.readouterr().err and not any(base.iterdir())
    (base / lib.name).write_text(lib.read_text().replace("gfx950", "gfx942"))
    assert main(["tune", "amd", "merge", str(base), str(base), str(tmp_path / "gfx950")]) == 0
    same = tmp_path / "Equality"  # no folder says whose it is, but the files do
    same.mkdir()
    (same / lib.name).write_text((base / lib.name).read_text())
    assert main(["tune", "amd", "merge", str(same), str(w / "libs"), str(tmp_path / "out")]) == 2
    assert "the base file is for gfx942, and the new one for gfx950" in capsys.readouterr().err
    (same / lib.name).unlink()
    lib.write_text(lib.read_text()[:300])  # it would only be copied
    assert main(["tune", "amd", "merge", str(same), str(w / "libs"), str(same)]) == 2
    assert "hint: was it cut off?" in capsys.readouterr().err and not any(same.iterdir())
    (found,) = (w / "tunings" / "BBS_TN_0" / "3_LibraryLogic").glob("*.yaml")
    found.write_text(found.read_text().replace("gfx950", "gfx942"))
    assert main(["tune", "amd", "gather", str(w)]) == 2
    assert f"is for gfx942, but {w} is for gfx950" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "text", "expected"),
    [
        ("gfx950", "8x8x8 f8_fnuz", "gfx950 (as named)"),
        ("gfx942_80cu", "8x8x8", "gfx942_80cu (as named)"),
        (
            None,
            "Validator,GCN_ARCH_NAME,gfx90a:sramecc+:xnack-\nGemmTunableOp_float_TN,tn_64_8_32_ld_32_32_64",
            "gfx90a (the log",
        ),
        (None, "m,n,k,gcnArchName\n8,8,8,gfx950\n", "gfx950 (the log names it)"),
        (None, "8x8x8 bf8_fnuz", "gfx942 (its floats"),
        (None, "8x8x8 f8", "gfx950 (its floats"),
        (None, "8x8x8 f4", "gfx950 (its floats"),
        (None, "8x8x8", "gfx942 (assumed"),
        (None, "8x8x8 f8\n8x8x8 f8_fnuz", "no GPU has both"),
        (None, "m,n,k,gcnArchName\n8,8,8,gfx950\n8,8,9,gfx942\n", "come from gfx942 and gfx950"),
        ("mi300", "8x8x8", "use one of gfx90a, gfx942, gfx950"),
        ("gfx942_999cu", "8x8x8", "gfx942 has 1 to 304"),
    ],
)
def test_architecture(named, text, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(architectures, "_KFD", tmp_path)
    log = read(text)
    try:
        choice = str(architectures.choose(named, log.architectures, [call.gemm for call in log.calls], tmp_path))
    except ValueError as error:
        choice = str(error)
        assert "\nhint: " in choice
    assert expected in choice
    if log.architectures and len(log.architectures) == 1:  # a table that we write keeps it
        assert read(log.write_csv(tmp_path / "t.csv")).architectures == log.architectures


def test_architecture_of_the_gpu(tmp_path):
    for node, version in (("0", 0), ("1", 110000), ("2", 90402)):
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(f"simd_count 4\ngfx_target_version {version}\n")
    assert architectures.of_gpu(tmp_path) == "gfx942"
    (tmp_path / "2" / "properties").write_text("gfx_target_version 90010\n")
    assert architectures.of_gpu(tmp_path) == "gfx90a"


MX = "- {function: matmul, M: 256, N: 128, K: 512, transA: T, transB: N, scaleA: 3, scaleB: 3, a_type: f4_r, b_type: f6_r, "
MX += "c_type: f16_r, d_type: f16_r, compute_type: c_f32_r, call_count: 7}\n"


def test_no_type_is_lost(tmp_path, capsys):
    """fp8 of both kinds and fp4 are configured, counted and measured, also where the architecture cannot tune them."""
    output(
        tmp_path / "log",
        LOG,
        MX,
        MX.replace("f4_r", "f8_r").replace("f6_r", "f8_r").replace("scaleA: 3, scaleB: 3", "scaleA: 1, scaleB: 1"),
    )
    words = ["tune", "all", str(tmp_path / "log"), "-w", str(tmp_path / "w"), "--backend", "hipblaslt", "--keep-thr", "0"]
    assert main([*words, "--arch", "gfx942"]) == 0
    out = capsys.readouterr().out
    assert "4 products to tune, 0 dropped" in out and "not tuned: F4F6HS_TN_0" in out and "--arch gfx950 has one" in out
    assert main([*words, "--arch", "gfx950"]) == 0
    left = (tmp_path / "w" / "tunings" / "left_out.txt").read_text()
    assert "F8HS" not in left and "F4F6HS_TN_0" in left and (tmp_path / "w" / "tunings" / "F8HS_TN_0.yaml").exists()
    log = read(tmp_path / "w" / "tunings" / "bench.yaml")
    assert sorted(call.count for call in log.calls) == [1, 1, 7, 7]
    mx = next(call.gemm for call in log.calls if call.gemm.a_type == "f4e2m1")
    assert (mx.b_type, mx.scale_a, mx.scale_b) == ("f6e2m3", "block", "block")
    assert "--algo_method heuristic --requested_solution 1000" in bench.command(mx, method="all")  # "all" is refused for it


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (LOG.splitlines()[0].replace("call_count: 1}", "call_count: 0}"), "call_count is 0"),
        (LOG.splitlines()[0][:200], "the entry is cut off"),
        (LOG.splitlines()[0].replace("scaleB: 0", "scaleB: 0, swizzleA: true"), "A is stored in another order"),
    ],
)
def test_bad_lines_of_a_log_lose_only_themselves(line, reason):
    unknown = LOG.splitlines()[1].replace("flush: false", "flush: false, brand_new: 3")
    log = read(f"{line}\n{unknown}\n{unknown}\n")
    assert [(call.gemm, call.count) for call in log.calls] == [(OTHER, 2)]
    (problem,) = log.problems
    assert reason in problem.reason and problem.line == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["configure", "1x2x3", "-w", "w", "--arch", "gfx942", "--backend", "cpu"], "hint: add --backend hipblaslt"),
        (["configure", "1x2x3", "-w", "w", "--arch", "x", "--backend", "hipblaslt"], "hint: use one of gfx90a"),
        (["configure", "1x2x3", "-w", "w", "--times", "no", "--backend", "hipblaslt"], "no does not exist\nhint: "),
        (["configure", "1x2x3", "-w", "w", "--times", "log", "--backend", "hipblaslt"], "has no time for a product"),
        (["run", "w", "--backend", "hipblaslt", "--strategy", "anneal"], "hint: genetic"),
        (["amd"], "a command is missing"),
        (["amd", "gather", "w"], "hint: lapwing tune configure LOG"),
        (["amd", "compare", "w"], "hint: lapwing tune configure LOG"),
        (["amd", "compare", "v"], "v/tunings/reference.out does not exist\nhint: "),
        (["amd", "compare", "v", "--reference", "log", "--tuned", "log"], "log has no result for the products of v"),
        (["amd", "override", "log", "-o", "x"], "nothing to write"),
        (["amd", "override", "log", "-o", "no/x"], "there is no folder no"),
        (["amd", "merge", "no", "v", "x"], "no does not exist\nhint: "),
        (["amd", "merge", "v", "v", "x"], "v has no library logic"),
        (["amd", "trim", "v", "-o", "x", "--results", "no"], "no does not exist\nhint: "),
    ],
)  # fmt: skip
def test_wrong_usage(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    workdir(tmp_path / "v", SEED)
    output(tmp_path / "log", "nothing\n")
    assert main(["tune", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and "\nhint: " in error.strip()
