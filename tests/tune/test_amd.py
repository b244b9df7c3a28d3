"""AMD's files: their structure, which AMD's parser accepts, and the rules of merging. Nothing runs on AMD hardware."""

from __future__ import annotations

import copy
import os
import re
import subprocess

import pytest

from lapwing.tune import Gemm
from lapwing.tune.amd import architectures, bench, files, names, override, tensile, yaml
from lapwing.tune.amd.equality import LogicError, merge_logic
from lapwing.tune.backends.base import Refused
from lapwing.tune.backends.hipblaslt import HipBlasLt
from lapwing.tune.readers import read
from lapwing.tune.workdir import Target, Workdir

SEED = Gemm(16032, 109, 16384, "T", "N")
PADDED = Gemm(16032, 113, 16384, "T", "N", lda=16400, ldc=16040, ldd=16040)
F8 = Gemm(7168, 128, 16384, "T", "N", a_type="f8e4m3", b_type="f8e4m3", scale_a="row", scale_b="row")
SINGLE = Gemm(640, 128, 1000, "N", "T", a_type="f32", b_type="f32", c_type="f32", d_type="f32")

# TensileLite 4.33 has read exactly these
SECTIONS = ["GlobalParameters", "BenchmarkProblems", "LibraryLogic"]
PROBLEM = {
    "OperationType",
    "DataType",
    "DestDataType",
    "ComputeDataType",
    "HighPrecisionAccumulate",
    "TransposeA",
    "TransposeB",
}
PROBLEM |= {"UseBeta", "Batched", "UseBias", "Activation", "ActivationType", "UseScaleAlphaVec"}
STEPS = ["InitialSolutionParameters", "BenchmarkCommonParameters", "ForkParameters", "BenchmarkJoinParameters"]
FORKS = ["MatrixInstruction", "DepthU", "GlobalSplitU", "GlobalSplitUAlgorithm", "PrefetchGlobalRead", "PrefetchLocalRead"]
FORKS += ["ScheduleIterAlg", "SourceSwap", "TransposeLDS", "LdsPadA", "LdsPadB", "WorkGroupMapping", "StaggerU"]
BENCH = ["bench.yaml", "verify.yaml", "compare.sh", "bench.sh"]
SEARCHED = ["WorkGroupMappingXCC", "1LDSBuffer", "NonTemporalA", "NonTemporalB", "StreamK"]  # only by the genetic search


@pytest.mark.parametrize("strategy", ["genetic", "exhaustive"])
@pytest.mark.parametrize(
    ("architecture", "schedule"), [("gfx90a", "aldebaran"), ("gfx942", "aquavanjaram"), ("gfx950", "gfx950")]
)
@pytest.mark.parametrize("gemm", [SEED, PADDED, SINGLE, F8], ids=str)
def test_schema_of_tuning_files(gemm, architecture, schedule, strategy):
    if reason := tensile.unsupported(gemm, architecture):
        assert gemm is F8 and architecture != "gfx950" and reason.endswith("--arch gfx950 has one")
        return
    genetic = strategy == "genetic"
    made = tensile.tuning(gemm, architecture=architecture, strategy=strategy)
    assert list(made) == [*SECTIONS, "Backend"][: 4 if genetic else 3] and made["LibraryLogic"]["LibraryType"] == "Equality"
    # the files that TensileLite writes must have the names of hipBLASLt's own, or nothing would be merged
    assert made["LibraryLogic"]["ScheduleName"] == schedule and made["LibraryLogic"]["ArchitectureName"] == architecture
    ((problem, steps),) = made["BenchmarkProblems"]
    assert set(problem) - {"UseScaleAB", "F32XdlMathOp"} == PROBLEM and ("UseScaleAB" in problem) == (gemm is F8)
    assert list(steps) == [*STEPS, "BenchmarkFinalParameters"]
    forks = [next(iter(f.items())) for f in steps["ForkParameters"]]
    assert [name for name, _ in forks] == (["Groups", *FORKS[1:], *SEARCHED] if genetic else FORKS)
    assert all(values for _, values in forks)
    if genetic:
        (group,) = dict(forks)["Groups"]
        tiles = [entry["MatrixInstruction"] for entry in group]
        assert made["Backend"]["Name"] == "Ductile" and made["GlobalParameters"]["NumElementsToValidate"] == 0
        config = made["Backend"]["Config"]
        assert not config["soo"] and config["n_elements_to_validate"] == 128
        ((name, costs),) = config["weights"][0].items()  # one for each instruction, the smaller the likelier
        assert name == "group_0" and len(costs) == len(tiles) and costs[0] == 1 and costs == sorted(costs)
        assert 64 <= len(tiles) <= 256
    else:
        tiles = dict(forks)["MatrixInstruction"]
        assert 4 <= len(tiles) <= 24 and made["GlobalParameters"]["NumElementsToValidate"] == 128
    assert len({tuple(t) for t in tiles}) == len(tiles)
    for m, n, k, b, block, tile_m, tile_n, waves_m, waves_n in tiles:
        assert (m, n, k, b) in architectures.get(architecture).instructions[gemm.a_type] and block == 1
        assert m * tile_m * waves_m <= 256 and n * tile_n * waves_n <= 256
    assert 1 in dict(forks)["GlobalSplitU"]
    (size,) = steps["BenchmarkFinalParameters"][0]["ProblemSizes"]
    if gemm is PADDED:
        assert size["Exact"] == [16032, 113, 1, 16384, 16040, 16040, 16400, 16384]
    else:
        assert size["Exact"] == [gemm.m, gemm.n, 1, gemm.k]


def test_names_that_tensile_gave():
    assert names.problem_name(SEED) == "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs"
    assert names.problem_name(SINGLE) == "Cijk_Ailk_Bjlk_SB_Bias_HAS_SAV_UserArgs"


def test_yaml_is_read_back(tmp_path):
    values = {
        "a": [1, -2, 2.5, True, None, "word", "no", "1e5", "a: b", "it's", "", "4.33.0"],
        "b": [[{"c": [[1, 2], [3]], "d": None}, {"e": {"f": "g h"}}], [{"i": []}]],
        "j": {"k": {}},
    }
    text = yaml.write(values)
    reader = pytest.importorskip("yaml", reason="PyYAML checks our writer")
    assert reader.safe_load(text) == values
    made = tensile.tuning(PADDED)
    assert reader.safe_load(yaml.write(made)) == made


def test_yaml_as_text():
    assert yaml.write({"a": {"b": [1, "x"], "c": None}, "d": [{"e": True}]}) == "a:\n  b: [1, x]\n  c: null\nd:\n- e: True\n"
    assert yaml.flow(["no", "4.33.0", "N"]) == "['no', '4.33.0', N]"
    with pytest.raises(ValueError, match="line break"):
        yaml.write({"a": "b\nc: d"})


def test_emission(tmp_path):
    backend = HipBlasLt()
    made = backend.emit({"BBS_TN_0": SEED, "BBS_TN_1": PADDED, "F8BS_TN_0": F8}, tmp_path)
    assert sorted(p.name for p in made) == sorted(
        ["BBS_TN_0.yaml", "BBS_TN_0.sh", "BBS_TN_1.yaml", "BBS_TN_1.sh", "tune.sh", "left_out.txt", *BENCH]
    )
    assert "F8BS_TN_0" in (tmp_path / "left_out.txt").read_text()
    for path in made:
        if path.suffix == ".sh":
            assert os.access(path, os.X_OK) and "not run on AMD hardware" in path.read_text()
            subprocess.run(["sh", "-n", str(path)], check=True)
    ran = subprocess.run(
        ["sh", str(tmp_path / "BBS_TN_0.sh")], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    )
    assert ran.returncode and "set TENSILE" in ran.stderr
    tool = tmp_path / "bin" / "Tensile"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$HIP_VISIBLE_DEVICES $1 $2"\n')
    tool.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "TENSILE": str(tool.parent), "DEVICE": "3"}
    ran = subprocess.run(["sh", str(tmp_path / "BBS_TN_0.sh")], capture_output=True, text=True, env=env)
    assert ran.returncode == 2 and "no genetic search" in ran.stderr and "--strategy exhaustive" in ran.stderr
    (tmp_path / "ductile").mkdir()
    out = subprocess.run(["sh", str(tmp_path / "BBS_TN_0.sh")], capture_output=True, text=True, check=True, env=env).stdout
    assert out.startswith(f"3 {tmp_path}/BBS_TN_0.yaml {tmp_path}/BBS_TN_0\n")
    with pytest.raises(ValueError, match="is not a valid configuration name"):
        backend.emit({"../x": SEED}, tmp_path)
    with pytest.raises(ValueError, match="gfx942, gfx950"):
        backend.emit({"a": SEED}, tmp_path, architecture="gfx1100")
    with pytest.raises(ValueError, match="hint: use genetic or exhaustive"):
        backend.emit({"a": SEED}, tmp_path, strategy="anneal")
    assert "runs nothing" in backend.missing() and not backend.devices()
    # products that TensileLite cannot tune are measured all the same
    assert not backend.supports(F8) and backend.supports(Gemm(8, 8, 8, a_type="c64", b_type="c64", c_type="c64", d_type="c64"))
    for refused in (lambda: backend.open(SEED, 0, 0), lambda: backend.callable(SEED, {}, 0)):
        with pytest.raises(Refused):
            refused()


def test_bench_lines_are_the_logs_own():
    """The same as hipBLASLt's own log line, except for measurements and counts."""
    line = (
        "{ function: matmul, M: 16032, N: 109, K: 16384, lda: 16384, ldb: 16384, ldc: 16032, ldd: 16032, stride_a: 0, "
        "stride_b: 0, stride_c: 0, stride_d: 0, alpha: 1.0, beta: 0.0, transA: T, transB: N, batch_count: 1, scaleA: 0, "
        "scaleB: 0, scaleAlpha_vector: false, gradient: false, use_e: false, bias_vector: false, bias_source: d, "
        "a_type: bf16_r, b_type: bf16_r, c_type: bf16_r, d_type: bf16_r, scale_type: f32_r, bias_type: f32_r, "
        "compute_type: c_f32_r, activation_type: none, flush: false, rotating: 512, cold_iters: 0, iters: 0, "
        "call_count: 1 }"
    )
    want = dict(re.findall(r"(\w+): ([^,}]+?)(?:,| })", line))
    got = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in bench.problem(SEED, iters=0, cold_iters=0).items()}
    assert got == want
    command = bench.command(Gemm(8, 4, 16, batch=2, bias="f32"), method="index", solution=7)
    for words in (
        "-m 8 -n 4 -k 16",
        "--stride_a 128",
        "--bias_vector --bias_source d",
        "--solution_index 7",
        "--compute_type f32_r",
    ):
        assert words in command
    with pytest.raises(ValueError, match="heuristic, all or index"):
        bench.command(SEED, method="best")
    with pytest.raises(ValueError, match="a solution needs method index"):
        bench.command(SEED, solution=3)


def test_bench_results(tmp_path):
    header = (
        "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,stride_a,beta,ldb,stride_b,ldc,stride_c,ldd,stride_d,a_type,"
    )
    header += "b_type,c_type,d_type,compute_type,scaleA,scaleB,scaleC,scaleD,amaxD,activation_type,bias_vector,bias_type,"
    header += "rotating_buffer,hipblaslt-Gflops,hipblaslt-GB/s,us,norm_error,atol,rtol,soulution_index"

    def line(us, index, error="1e-5", bias="0"):
        return (
            "T,N,0,1,16032,109,16384,1,16384,262668288,0,16384,1785856,16032,1747488,16032,1747488,bf16_r,bf16_r,bf16_r,bf16_r,"
            f"f32_r,0,0,0,0,0,none,{bias},f32_r,512,1000,2000,{us},{error},0,0,{index}"
        )

    text = ["hipBLASLt version: 100", "[0]:" + header, "    " + line(150.5, 11), header.replace("soul", "sol"), line(140.5, 12)]
    text += [line(90.5, 13, "0.5"), line("nan", 14), line(100, 15, bias="1"), "T,N,garbage", "is_supported: 1"]
    (tmp_path / "out.txt").write_text("\n".join(text))
    results, problems = bench.read_results(tmp_path / "out.txt")
    assert [(r.us, r.solution) for r in results] == [(150.5, 11), (140.5, 12), (90.5, 13), (100.0, 15)]
    assert results[0].gemm == SEED and results[3].gemm.bias == "f32" and [line for line, _ in problems] == [7, 9]
    best = bench.best(results)
    assert {g.bias: r.solution for g, r in best.items()} == {"": 12, "f32": 15}  # 13 is wrong
    done = override.write({g: r.solution for g, r in best.items()}, tmp_path / "override.txt")
    assert not done.written and len(done.left_out) == 2 and "1587" in str(done)  # the file has no bias
    done = override.write({SEED: 12, PADDED: 13}, tmp_path / "override.txt")
    lines = (tmp_path / "override.txt").read_text().splitlines()
    assert lines[0] == ",".join(override.FIELDS) and lines[1] == "T,N,1,16032,109,16384,bf16_r,bf16_r,bf16_r,f32_r,12"
    assert sorted(override.read(tmp_path / "override.txt").values()) == [12, 13] and not done.left_out


def logic(*sizes, kernels, kind="Equality", form=list, **problem):
    """Equality logic with kernels by their depth; sizes are (size, kernel, efficiency)."""
    solutions = [{"SolutionIndex": i, "SolutionNameMin": f"k{i}", "DepthU": d, "StaggerU": 4} for i, d in enumerate(kernels)]
    table = [[list(size), [kernel, efficiency]] for size, kernel, efficiency in sizes]
    made = [{"MinimumRequiredVersion": "4.33.0"}, "gfx942", "gfx942", ["Device 0049"], {"DataType": 7} | problem, solutions]
    made += [[2, 3, 0, 1], table, None, None, "DeviceEfficiency", kind]
    if form is list:
        return made
    keys = ("MinimumRequiredVersion", "ScheduleName", "ArchitectureName", "DeviceNames", "ProblemType", "Solutions")
    return dict(zip(keys, made, strict=False)) | {"ExactLogic": table, "LibraryType": kind, "DefaultSolution": {}}


def chosen(made):
    solutions, table = (made["Solutions"], made["ExactLogic"]) if isinstance(made, dict) else (made[5], made[7])
    assert [s["SolutionIndex"] for s in solutions] == list(range(len(solutions)))
    return {tuple(size): (solutions[i]["DepthU"], eff) for size, (i, eff) in table}


@pytest.mark.parametrize("form", [list, dict])
def test_equality_merge(form):
    a, b, c, d = (1, 1, 1, 64), (2, 1, 1, 64), (3, 1, 1, 64), (4, 1, 1, 64)
    base = logic((a, 0, 50.0), (b, 1, 60.0), (c, 1, 70.0), kernels=[32, 64, 999], form=form)
    new = logic((b, 0, 90.0), ((*c, 3, 3, 64, 64), 1, 10.0), (d, 0, 5.0), kernels=[64, 128], form=form)
    before = copy.deepcopy((base, new))
    forced = merge_logic(base, new)
    assert chosen(forced.logic) == {a: (32, 50.0), b: (64, 90.0), c: (128, 10.0), d: (64, 5.0)}
    assert len(forced.logic["Solutions"] if form is dict else forced.logic[5]) == 3  # 64 shared, 999 dropped
    winner = merge_logic(base, new, force=False)
    assert chosen(winner.logic) == {a: (32, 50.0), b: (64, 90.0), c: (64, 70.0), d: (64, 5.0)}
    assert {(word, size[0]) for word, size, _ in winner.ledger} == {("kept", 1), ("replaced", 2), ("refused", 3), ("added", 4)}
    plain = merge_logic(base, new, no_efficiency=True)
    assert chosen(plain.logic)[b] == (64, 0.0)
    # with efficiency 0, any later kernel wins
    assert chosen(merge_logic(plain.logic, logic((b, 0, 0.1), kernels=[256], form=form), force=False).logic)[b] == (256, 0.1)
    assert (base, new) == before


def test_equality_refuses_what_does_not_belong_together():
    base = logic(((1, 1, 1, 64), 0, 1.0), kernels=[32])
    with pytest.raises(LogicError, match="DataType is 7 in the base and 4 in the new file"):
        merge_logic(base, logic(kernels=[], DataType=4))
    with pytest.raises(LogicError, match="kind 'GridBased'"):
        merge_logic(base, logic(kernels=[], kind="GridBased"))
    with pytest.raises(LogicError, match="list of 12"):
        merge_logic(base, [1, 2])
    with pytest.raises(LogicError, match="names kernel 5"):
        merge_logic(base, logic(((1, 1, 1, 64), 5, 1.0), kernels=[32]))
    old = logic(((1, 1, 1, 64), 0, 1.0), kernels=[32], Forgotten=1)
    assert "Forgotten" not in merge_logic(old, base).logic[4]
    still = logic(((1, 1, 1, 64), 0, 1.0), kernels=[32])
    still[5][0]["StaggerU"] = 0
    assert merge_logic(still, base, force=False).logic[5][0]["StaggerUStride"] == 0


def test_a_workdir_becomes_tuning_files(tmp_path):

    with pytest.raises(FileNotFoundError, match="no configurations"):
        files.emit(tmp_path)
    for name, gemm in (("BBS_TN_0", SEED), ("F8BS_TN_0", F8)):
        Workdir(tmp_path).add_config(Target(name, gemm, count=32))
    made = {p.name for p in files.emit(tmp_path, architecture="gfx950")}
    assert made == {"BBS_TN_0.yaml", "BBS_TN_0.sh", "F8BS_TN_0.yaml", "F8BS_TN_0.sh", "tune.sh", *BENCH}
    assert (tmp_path / "tunings" / "F8BS_TN_0.yaml").exists()
    for name in ("bench.yaml", "verify.yaml"):  # the counts of the log stay
        assert [call.count for call in read(tmp_path / "tunings" / name).calls] == [32, 32]
    (tmp_path / "configs" / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad\.json is not a configuration"):
        files.emit(tmp_path)


def test_folders_of_logic(tmp_path):
    reader = pytest.importorskip("yaml", reason="reading library logic needs PyYAML")
    base, new, out = tmp_path / "Equality", tmp_path / "new", tmp_path / "out"
    for folder in (base, new):
        folder.mkdir()
    old = logic(((1, 1, 1, 64), 0, 50.0), kernels=[32])
    fresh = logic(((2, 1, 1, 64), 0, 60.0), kernels=[64])
    for path, content in ((base / "a.yaml", old), (base / "b.yaml", old), (new / "a.yaml", fresh), (new / "c.yaml", fresh)):
        path.write_text(reader.safe_dump(content))
    done = files.merge_folders(base, new, out)
    assert done["c.yaml"] is None and sorted(p.name for p in out.iterdir()) == ["a.yaml", "b.yaml", "c.yaml"]
    both = {(1, 1, 1, 64): (32, 50.0), (2, 1, 1, 64): (64, 60.0)}
    assert chosen(reader.safe_load((out / "a.yaml").read_text())) == both
    files.merge_folders(base, new, base)
    assert chosen(reader.safe_load((base / "a.yaml").read_text())) == both
    other = tmp_path / "GridBased"
    base.rename(other)
    with pytest.raises(LogicError, match=r"merged as GridBased \(a.yaml\)"):
        files.merge_folders(other, new, out)
