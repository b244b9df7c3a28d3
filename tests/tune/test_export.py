"""Files for other programs: names, keys, and a reason for everything that is left out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from lapwing.__main__ import main
from lapwing.tune import Gemm
from lapwing.tune.library import Library, build
from lapwing.tune.library.formats import export
from tune.cases import FakeBackend, FakeComparison, linear

ALGORITHM = {"id": 66, "tile": 20, "stages": 36, "splitk": 4, "red": 2, "swizzle": 0, "custom": 7, "inner": 0, "cluster": 3}
TILE = {"template": "tile", "bm": 128, "bn": 16, "bk": 64, "split": 1, "reduce": "none", "stages": 4, "warps": 8, "group": 1}


def library(tmp_path, *comparisons, torch="2.14.0+cu130"):
    names = {c.backend for c in comparisons}
    backends = {name: FakeBackend(device="NVIDIA H200", torch=torch) for name in names}
    return Library(build(tmp_path, comparisons, tmp_path / "final", backends=backends), check=False)


def row(gemm, backend="cublaslt", config=None, **other):
    config = config or {"cublaslt": ALGORITHM, "triton": TILE}.get(backend, {})
    return FakeComparison(gemm, backend=backend, config=config, **other)


def test_tunableop(tmp_path):
    scaled = {"dtype": "f8e4m3", "c_type": "bf16", "d_type": "bf16"}
    gemms = {
        "GemmTunableOp_BFloat16_TN,tn_6144_16_4096_ld_4096_4096_6144": linear(16, 6144, 4096, "bf16"),
        "GemmTunableOp_tf32_NN,nn_8_4_16_ld_8_24_10": Gemm.row_major(
            4, 8, 16, dtype="f32", compute="tf32", ldb=24, ldc=10, ldd=10
        ),
        "GemmAndBiasTunableOp_Half_TN,tn_32_8_64_ld_64_64_32": linear(8, 32, 64, "f16", bias="f16"),
        "GemmStridedBatchedTunableOp_float_TN,tn_32_8_64_B_3_ld_64_64_32": linear(8, 32, 64, batch=3),
        "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_32_8_64_ld_64_64_32_rw_0_bias_None": linear(
            8, 32, 64, scale_a="tensor", scale_b="tensor", **scaled
        ),
        "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_32_8_64_ld_64_64_32_rw_1_bias_BFloat16": linear(
            8, 32, 64, scale_a="row", scale_b="row", bias="bf16", **scaled
        ),
    }
    bad = [linear(1, 8, 8, alpha=0.5), linear(2, 8, 8, activation="gelu"), linear(3, 8, 8, deterministic=True)]
    bad += [linear(4, 8, 8, batch=2, stride_a=99), linear(5, 8, 8, bias="bf16"), linear(6, 8, 8, "f8e4m3")]
    lib = library(tmp_path, *map(row, [*gemms.values(), *bad]), row(linear(7, 8, 8), "triton"))
    done = export(lib, "tunableop", tmp_path / "out.csv")
    first, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert first == "Validator,PT_VERSION,2.14.0"
    solution = "Gemm_Cublaslt_id_66_tile_20_stages_36_splitk_4_red_2_swizzle_0_custom_7_inner_0_cluster_3"
    assert sorted(rows) == sorted(f"{name},{solution},0.01" for name in gemms)
    assert {g.n for g, _ in done.left_out} == set(range(1, 8)) and not done.notes
    assert "left out: SSS_TN 8x7x8: it runs on triton" in str(done)


def test_tunableop_says_what_it_cannot_know(tmp_path):
    old = library(tmp_path / "a", row(linear(1, 8, 8)), torch="2.11.0")
    assert "from 2.14 on" in str(export(old, "tunableop", tmp_path / "x.csv"))
    done = export(old, "tunableop", tmp_path / "y.csv", validators={"PT_VERSION": "2.14.1", "CUBLASLT_VERSION": "130200"})
    assert (tmp_path / "y.csv").read_text().startswith("Validator,PT_VERSION,2.14.1\nValidator,CUBLASLT_VERSION,130200\n")
    assert not done.notes
    with pytest.raises(ValueError, match="use one of tunableop, inductor, vllm, hipblaslt"):
        export(old, "onnx", tmp_path / "z")


def inductor_table(tmp_path):
    plain, bias = linear(16, 256, 512, "bf16", ldb=520), linear(32, 256, 500, "f16", bias="f16")
    lib = library(
        tmp_path,
        row(plain, "triton"),
        row(bias, "triton"),
        row(linear(1, 8, 8, "bf16"), "triton", dict(TILE, split=4, reduce="atomic")),
        row(linear(2, 8, 8, "bf16"), "triton", dict(TILE, template="skinny")),
        row(linear(3, 8, 8, "bf16"), "triton", dict(TILE, bn=8)),
        row(linear(4, 8, 8, "bf16"), "triton", dict(TILE, swap=1)),
        row(linear(5, 8, 8, "bf16")),
    )
    done = export(lib, "inductor", tmp_path / "table.json")
    assert {g.n for g, _ in done.left_out} == {1, 2, 3, 4, 5} and set(done.written) == {plain, bias}
    return json.loads((tmp_path / "table.json").read_text())


def test_inductor(tmp_path):
    table = inductor_table(tmp_path)
    mm = "((torch.bfloat16, [16, 512], [520, 1]), (torch.bfloat16, [512, 256], [1, 512]))+mm"
    addmm = "((torch.float16, [32, 256], [0, 1]), (torch.float16, [32, 500], [500, 1]), (torch.float16, [500, 256], [1, 500]))"
    assert set(table) == {mm, f"{addmm}+alpha=1&beta=1+addmm"}
    assert table[mm] == [
        {"template_id": "triton::mm", "BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 1, "num_warps": 8}
        | {"num_stages": 4, "EVEN_K": True, "USE_FAST_ACCUM": False, "ACC_TYPE": "tl.float32"}
    ]
    assert table[f"{addmm}+alpha=1&beta=1+addmm"][0]["EVEN_K"] is False


def test_inductor_and_tf32(tmp_path):
    """Its key has no tf32, and it adds ALLOW_TF32 itself: a row that has it too cannot be compiled at all."""
    exact, fast = (linear(16, 256, 512, "f32", compute=c) for c in ("f32", "tf32"))
    done = export(
        library(tmp_path, row(exact, "triton"), row(fast, "triton", dict(TILE, bm=64))), "inductor", tmp_path / "t.json"
    )
    table = json.loads((tmp_path / "t.json").read_text())
    (rows,) = table.values()  # one key, and a choice for either setting
    assert sorted(r["BLOCK_N"] for r in rows) == [64, 128] and set(done.written) == {exact, fast}
    assert all("ALLOW_TF32" not in r for r in rows)
    assert "1 of them were tuned as tf32" in str(done) and "allow_tf32 is set" in str(done)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inductor_finds_its_own_keys(tmp_path):
    """Importing Inductor takes half a minute on a busy machine."""
    torch = pytest.importorskip("torch")
    choices = pytest.importorskip("torch._inductor.lookup_table.choices")
    table = inductor_table(tmp_path)

    def key(operation, scalars, *tensors):
        """As Inductor makes it, from real tensors."""
        inputs = SimpleNamespace(
            dtypes=lambda: [t.dtype for t in tensors],
            shapes_hinted=lambda: tuple(tuple(t.shape) for t in tensors),
            strides_hinted=lambda: tuple(t.stride() for t in tensors),
            _scalars=scalars,
        )
        return f"{choices.LookupTableChoices._generate_kernel_inputs_key(inputs)}+{operation}"

    brain, half = {"dtype": torch.bfloat16}, {"dtype": torch.float16}
    x, w = torch.empty(16, 520, **brain)[:, :512], torch.empty(256, 512, **brain)
    y, v, bias = torch.empty(32, 500, **half), torch.empty(256, 500, **half), torch.empty(256, **half).expand(32, 256)
    assert {key("mm", {}, x, w.t()), key("addmm", {"alpha": 1, "beta": 1}, bias, y, v.t())} == set(table)
    # a choice is made from the row and from what Inductor adds for every row
    from torch._inductor.kernel_template_choice import DictKernelTemplateParams, KernelTemplateChoice

    made = []
    template = SimpleNamespace(choice_or_none=lambda **given: made.append(given))
    for rows in table.values():
        params = DictKernelTemplateParams({k: v for k, v in rows[0].items() if k != "template_id"})
        _ = KernelTemplateChoice(template, params, {"ALLOW_TF32": True}, None, SimpleNamespace(nodes=list)).choice
    assert len(made) == 2 and all(given["ALLOW_TF32"] for given in made)


def test_vllm(tmp_path):
    steps = [row(linear(n, 256, 512, "bf16"), "triton", dict(TILE, bm=m)) for n, m in ((64, 64), (8, 128))]
    other = [row(linear(8, 256, 512, "bf16", bias="bf16"), "triton"), row(Gemm.row_major(8, 256, 512), "triton")]
    done = export(library(tmp_path, *steps, *other), "vllm", tmp_path / "vllm")
    (path,) = done.paths
    assert path.name == "N=256,K=512,device_name=NVIDIA_H200,dtype=bfloat16.json" and len(done.left_out) == 2
    table = json.loads(path.read_text())
    assert list(table) == ["8", "64"]  # in order, as vLLM's own are
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
    assert table["8"] == dict(zip(names, (16, 128, 64, 1, 8, 4), strict=True)) and table["64"]["BLOCK_SIZE_N"] == 64
    assert "nearest" in str(done)


def test_hipblaslt_override_refuses_collisions(tmp_path):
    from lapwing.tune.amd import override

    same = linear(8, 32, 64, "bf16")
    rows = [row(same, "hipblaslt", {"solution_index": 5}), row(linear(9, 32, 64, "bf16"), "hipblaslt", {"solution_index": 6})]
    rows += [row(linear(8, 32, 64, "bf16", bias="bf16"), "hipblaslt", {"solution_index": 7}), row(linear(10, 32, 64, "bf16"))]
    done = export(library(tmp_path, *rows), "hipblaslt", tmp_path / "override.txt")
    assert [g.n for g in done.written] == [9] and sorted(g.n for g, _ in done.left_out) == [8, 8, 10]
    assert "1587" in str(done)
    assert override.read(tmp_path / "override.txt") == {
        ("T", "N", "1", "32", "9", "64", "bf16_r", "bf16_r", "bf16_r", "f32_r"): 6,
    }


@pytest.mark.parametrize("format", ["tunableop", "inductor", "vllm", "hipblaslt"])
def test_nothing_to_write_leaves_nothing(tmp_path, format, capsys):
    """No file is written if nothing can be exported; the exit code tells a script."""
    for name, comparisons in (("a", [row(linear(1, 8, 8), "fake")]), ("b", [])):
        lib = library(tmp_path / name, *comparisons)
        done = export(lib, format, tmp_path / "new" / "out")
        assert not done.paths and not done.notes and str(done).startswith(f"nothing written: 0 of {len(comparisons)} products")
        assert main(["tune", "export", str(lib.path), "--format", format, "-o", str(tmp_path / "new" / "out")]) == 1
        assert "nothing written" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
