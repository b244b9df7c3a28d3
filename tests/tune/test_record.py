"""Record: any program, however it ends, with its own input, output and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from lapwing.tune.gemm import Call, Gemm
from lapwing.tune.readers import read
from lapwing.tune.readers.recording import collect, record

FIXTURES = Path(__file__).parent / "fixtures"
F32 = ["f32"] * 4
FORWARD = Gemm(96, 10, 64, "T", "N", *F32, bias="f32")
PLAIN = Gemm(96, 10, 64, "T", "N", *F32)
BACKWARD = Gemm(64, 96, 10, "N", "N", *F32)
SQUARE = Gemm(10, 10, 64, "T", "N", *F32)
SCALED = {
    Gemm(16, 16, 32, "T", "N", "f8e4m3", "f8e4m3", scale_a="tensor", scale_b="tensor", fast_accum=fast): 1 + fast
    for fast in (False, True)
}
BATCHED = Gemm(6, 4, 5, "N", "N", *F32, batch=3, alpha=2.0, beta=0.5)

PROGRAM = """
import os, signal, sys, threading
import sitecustomize
assert sitecustomize.mine == "kept" and not any("hook" in entry for entry in sys.path), sys.path
import torch
torch.set_num_threads(1)
x, linear = torch.randn(10, 64), torch.nn.Linear(64, 96)
for _ in range(3):
    linear(x).sum().backward()
threading.setprofile(lambda *_: None)  # as a program with a profiler of its own does
thread = threading.Thread(target=lambda: [torch.mm(x, x.t()) for _ in range(5)]); thread.start(); thread.join()
with torch.inference_mode():
    linear(x), x @ x.t(), torch.nn.functional.linear(x, linear.weight)
# other operators pay nothing: there is no mode, and only products have a kernel of ours
from torch.utils._python_dispatch import _get_current_dispatch_mode
assert _get_current_dispatch_mode() is None
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
watched = [name for name in ("aten::add.Tensor", "aten::relu", "aten::mm") if has_kernel(name, "BackendSelect")]
assert watched == ["aten::mm"], watched
torch.baddbmm(torch.zeros(3, 4, 6), torch.ones(3, 4, 5), torch.ones(3, 5, 6), beta=0.5, alpha=2)
torch.mm(x, x.t(), out=torch.empty(10, 10))
eight, one = torch.ones(16, 32).to(torch.float8_e4m3fn), torch.tensor(1.0)
for fast in (False, True, True):
    torch._scaled_mm(eight, eight.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)
if os.fork() == 0:  # another rank
    torch.mm(x, x.t())
    os._exit(0)
os.wait()
print("read", sys.stdin.readline().strip(), flush=True)
how = sys.argv[1]
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


@pytest.fixture
def program(tmp_path):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("mine = 'kept'\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def start(program: Path, how: str, *options: str) -> subprocess.Popen[str]:
    source = Path(__file__).parents[2] / "src"
    inner = os.pathsep.join([str(program.parent / "site"), str(source)])
    command = [sys.executable, "-m", "lapwing", "tune", "record", "--watch", "torch", "-o", str(program.parent / f"{how}.csv")]
    return subprocess.Popen(
        [*command, *options, "--", sys.executable, str(program), how],
        env=os.environ | {"PYTHONPATH": inner, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_products_however_it_ends(program):
    """One program is killed, one ends by a signal to lapwing: neither can write anything. Both run at once, to save time."""
    killed, ended = start(program, "kill"), start(program, "wait")
    ended.stdin.write("hello\n")
    ended.stdin.flush()
    said = ended.stdout.readline()
    time.sleep(0.2)
    ended.send_signal(signal.SIGTERM)
    for running, code, before in ((killed, 137, ""), (ended, 143, said)):
        out, errors = running.communicate("hello\n" if running is killed else None, timeout=100)
        assert before + out == "read hello\n", (out, errors)
        assert running.returncode == code, errors
        log = read(program.parent / f"{'kill' if running is killed else 'wait'}.csv")
        assert {call.gemm: call.count for call in log.calls} == {
            FORWARD: 4,
            PLAIN: 1,
            BACKWARD: 3,
            SQUARE: 8,
            BATCHED: 1,
        } | SCALED, errors
        assert "7 products, 20 calls of 2 processes" in errors


def test_logs_of_libraries_without_torch(tmp_path, monkeypatch):
    """A program that is not Python gets the settings in its environment, and the logs that it writes are collected."""
    monkeypatch.setenv("HIPBLASLT_LOG_LEVEL", "1")
    before = dict(os.environ)
    script = f"""
        cat {FIXTURES}/cublas.log > $CUBLAS_LOGDEST_DBG
        cat {FIXTURES}/cublaslt.log > $(echo $CUBLASLT_LOG_FILE | sed s/%i/11/)
        cat {FIXTURES}/cublaslt.log > $(echo $CUBLASLT_LOG_FILE | sed s/%i/12/)
        echo GemmTunableOp_BFloat16_TN,tn_6144_16_4096_ld_4096_4096_6144 > ${{PYTORCH_TUNABLEOP_UNTUNED_FILENAME%.csv}}0.csv
        echo GemmTunableOp_BFloat16_TN,tn_7_16_4096_ld_4096_4096_7 >> ${{PYTORCH_TUNABLEOP_UNTUNED_FILENAME%.csv}}0.csv
        test "$CUBLASLT_LOG_LEVEL$PYTORCH_TUNABLEOP_TUNING$PYTORCH_TUNABLEOP_ENABLED$HIPBLASLT_LOG_MASK" = 201 || exit 9
    """
    done = record(["sh", "-c", script], watch="logs", keep=tmp_path / "raw")
    assert done.code == 0 and dict(os.environ) == before
    assert done.notes == ("hipBLASLt is not recorded: HIPBLASLT_LOG_LEVEL is set already",)
    counts = {call.gemm: call.count for call in done.log.calls}
    assert counts[Gemm(6144, 16, 4096, "T", "N")] == 2  # cuBLAS counted them, TunableOp listed them
    assert counts[Gemm(7, 16, 4096, "T", "N")] == 1
    assert counts[Gemm(2048, 32, 1024)] == 4  # two ranks
    assert len(done.log.problems) == 2 and (tmp_path / "raw" / "cublaslt-12.log").exists()
    with pytest.raises(ValueError, match="is not empty\nhint: name a new folder"):
        record(["true"], keep=tmp_path / "raw")
    with pytest.raises(ValueError, match="watch is 'much'"):
        record(["true"], watch="much")


def test_cublas_logs_live_without_a_gpu(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("CUBLAS", "PYTHONPATH"))]:
        monkeypatch.delenv(name)
    done = record([sys.executable, str(FIXTURES / "make_cublas_log.py")], watch="logs")
    if done.code == 3:
        pytest.skip("cuBLAS is not installed")
    assert done.code == 0 and done.processes == 1 and not done.log.problems
    expected = {call.gemm: call.count for call in read(FIXTURES / "cublas.log").calls}
    assert {call.gemm: call.count for call in done.log.calls} == expected


def test_cublas_and_cublaslt_of_one_process_count_once(tmp_path):
    line = (FIXTURES / "cublaslt.log").read_text().splitlines()[2].replace("2048", "64").replace("1024", "16")
    line = line.replace("beta=0", "beta=0.5")  # which cuBLAS does not know
    (tmp_path / "cublaslt-5.log").write_text(f"{line}\n{line}\n")
    text = (FIXTURES / "cublas.log").read_text()
    call = text[: text.index("I! cuBLAS", 10)].replace("6144", "64").replace("4096", "16").replace("val=16\n", "val=32\n", 1)
    call = (
        call.replace("OP_T(1)", "OP_N(0)")
        .replace("lda: type=int; val=16", "lda: type=int; val=64")
        .replace("k: type=int; val=32", "k: type=int; val=16")
    )
    (tmp_path / "cublas-5.log").write_text(call)
    log, processes = collect(tmp_path)
    assert processes == 1
    assert log.calls == (Call(Gemm(64, 32, 16, beta=0.5), 2, "recorded"),)


def test_a_broken_recording_still_gives_the_rest(tmp_path):
    (tmp_path / "torch-3.products").write_text('{"name": "aten::mm", "device": "cpu", "args": {"Input Dims": [[4, 5], [5')
    (tmp_path / "torch-3.counts").write_bytes(bytes(80))
    (tmp_path / "torch-4.products").write_text("")
    (tmp_path / "torch-4.counts").write_bytes(b"")
    log, _ = collect(tmp_path)
    assert log.calls == () and len(log.problems) == 1


@pytest.mark.parametrize(
    ("watch", "program", "hint"),
    [
        ("torch", [sys.executable, "-c", "pass"], "did not import torch; --watch logs"),
        ("all", [sys.executable, "-c", "pass"], "did not import torch"),
        ("torch", [sys.executable, "-I", "-c", "pass"], "uses PYTHONPATH"),
        ("torch", ["true"], "uses PYTHONPATH"),
        ("logs", ["true"], "--watch torch"),
    ],
)
def test_the_hint_of_an_empty_recording_leads_on(watch, program, hint):
    """It must not name what was just tried."""
    done = record(program, watch=watch)
    assert not done.log.calls and hint in done.hint and f"--watch {watch} " not in done.hint
    assert record(["true"], watch="all").hint.count("--watch") == 0
