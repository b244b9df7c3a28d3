"""The command line: exit codes, messages, files."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import lapwing as lw
from lapwing import planner
from lapwing.__main__ import main
from lapwing.bench import plot
from lapwing.bench.case import Row, Timing
from lapwing.bench.check import Check
from lapwing.bench.libraries import installed
from lapwing.bench.operations import operation_of
from lapwing.bench.record import Grid
from lapwing.bench.table import UNSTEADY
from lapwing.cli import bench as bench_command
from lapwing.cli import launch as launch_command
from lapwing.cli import progress
from lapwing.cli import record as record_command
from lapwing.cli.progress import Progress
from lapwing.cli.usage import program
from lapwing.core.native import native
from lapwing.core.records import load_record

needs_native = pytest.mark.skipif(native is None, reason="the native core was not built")


def test_info_says_what_is_here(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"lapwing     {lw.__version__}" in text
    for name in ("versions", "devices", "engines", "missing", "folders and records", "batched", "cusolver", "numpy"):
        assert name in text


def test_info_imports_no_framework():
    code = (
        "import sys; from lapwing.__main__ import main; main(['info']);"
        "print([m for m in ('torch', 'jax', 'tensorflow', 'cupy', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_explain_prints_the_plan(capsys):
    arguments = ["explain", "cholesky", "--shape", "1000x64x64", "--dtype", "float32", "--upper"]
    assert main(arguments) == 0
    plan = lw.explain(lw.cholesky, lw.spec((1000, 64, 64), "float32"), upper=True)
    assert capsys.readouterr().out.startswith(str(plan))


def test_explain_of_systems_and_decompositions(capsys):
    assert main(["explain", "solve", "--shape", "1000x8x8", "--assume", "pos", "--columns", "3"]) == 0
    plan = lw.explain(lw.solve, lw.spec((1000, 8, 8)), lw.spec((1000, 8, 3)), assume="pos")
    out = capsys.readouterr().out  # long lines are folded
    assert out.split() == str(plan).split() and max(map(len, out.splitlines())) <= 100
    for operation in ("inv", "slogdet", "qr", "svd", "svdvals", "lstsq", "polar"):
        assert main(["explain", operation, "--shape", "50x50"]) == 0
        assert operation in capsys.readouterr().out or operation in ("lstsq", "polar", "inv")


def test_explain_points_at_the_grid(capsys):
    assert main(["explain", "solve", "--shape", "100x100", "--devices", "8x8"]) == 2
    assert "'8x8' is not a whole number\nhint: --grid 8x8 is a grid of devices" in capsys.readouterr().err


def test_explain_tells_of_an_engine_that_is_not_here(capsys):
    assert main(["explain", "cholesky", "--shape", "64x64", "--device", "cuda"]) == 0
    text = capsys.readouterr().out
    plan = lw.explain(lw.cholesky, lw.spec((64, 64), "float64", "cuda"))
    assert ("not usable on this machine" in text) != bool(not planner.refusal(plan.engine, plan.problem))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "cholesky", "--shape", "4x5"], "must be square, got shape (4, 5)"),
        (["explain", "cholesky", "--shape", "4"], "got shape (4,)"),
        (["explain", "cholesky", "--shape", "axb"], "shape 'axb' is not a list of sizes"),
        (["explain", "cholesky", "--shape", "-4x4"], "expected one argument"),
        (["explain", "cholesky", "--shape", "4x4", "--dtype", "int32"], "dtype int32 is not supported"),
        (["explain", "cholesky", "--shape", "4x4", "--engine", "nosuch"], "engine='nosuch' is not known"),
        (["explain", "cholesky", "--shape", "4x4", "--device", "moon"], "--device 'moon' is not known"),
        (["explain", "nosuch", "--shape", "4x4"], "'nosuch'"),
        (["explain", "cholesky"], "--shape"),
        (["explain", "qr", "--shape", "4x4", "--columns", "0"], "--columns is for solve, lstsq"),
        (["bench", "cholesky", "--sizes", "10,x"], "--sizes '10,x' is not a list of positive numbers"),
        (["bench", "cholesky", "--sizes", "0"], "--sizes '0' is not a list of positive numbers"),
        (["bench", "cholesky", "--dtype", "float16"], "dtype 'float16' is not known"),
        (["bench", "cholesky", "--batch", "0"], "--batch 0 is not a positive number"),
        (["bench", "cholesky", "--repeat", "-1"], "--repeat -1 is not a positive number"),
        (["bench", "cholesky", "--threads", "0"], "--threads 0 is not a positive number"),
        (["bench", "cholesky", "--peers", "matlab"], "peer 'matlab' is not known"),
        (["bench", "cholesky", "--engine", "cusolver"], "engine='cusolver' cannot take this call"),
        (["bench", "cholesky", "--framework", "numpy", "--device", "cuda"], "numpy arrays live on the host"),
        (["bench", "cholesky", "--record", "--sizes", "4"], "--record measures its own grid; --sizes has no effect"),
        (["bench", "cholesky", "--record", "--batch", "1"], "--record measures its own grid; --batch has no effect"),
        (["bench", "cholesky", "--record", "--peers"], "--record measures its own grid; --peers has no effect"),
        (["bench", "cholesky", "--record", "--repeat", "0"], "--repeat 0 is not a positive number"),
        (["bench", "cholesky", "--quick"], "it works only with --record; --quick has no effect"),
        (["bench", "cholesky", "--output", "x.json"], "it works only with --record; --output has no effect"),
        (["bench", "cholesky", "--json", "nosuch/x.json"], "--json nosuch/x.json: there is no folder nosuch"),
        (["bench", "cholesky", "--plot", "nosuch/x.png"], "--plot nosuch/x.png: there is no folder nosuch"),
        (["bench", "cholesky", "--plot", "x.nosuch"], "--plot x.nosuch: the name must end in one of .png, .pdf, .svg"),
        (["bench", "cholesky", "--json", "."], "--json .: cannot write this file"),
        (["nosuch"], "'nosuch'"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(arguments, message, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[0].startswith("lapwing: ") and message in lines[0]
    assert len(lines) < 2 or lines[1].startswith("hint: ")
    assert all(line.startswith("      ") for line in lines[2:])  # only a hint with a long list has more lines


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_version_and_help(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 0
    assert "lapwing" in capsys.readouterr().out


def test_bench_writes_json_and_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["bench", "cholesky", "--sizes", "5,20", "--repeat", "2", "--dtype", "float32,double", "--batch", "3"]
    arguments += ["--peers", "numpy", "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    table = [line for line in shown.out.splitlines() if line.startswith("float")]
    assert [line.split()[:3] for line in table] == [
        ["float32", "5", "3"], ["float32", "20", "3"], ["float64", "5", "3"], ["float64", "20", "3"],
    ]  # fmt: skip
    assert not shown.err  # progress is for terminals
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["command"].startswith("lapwing bench cholesky --sizes 5,20") and data["date"]
    row = data["rows"][0]
    assert (row["n"], row["batch"], row["dtype"], row["device"]) == (5, 3, "float32", "cpu")
    assert row["checks"]["lapwing"]["ok"] and row["checks"]["lapwing"]["residual"] <= 10
    assert len(row["lapwing"][0]["seconds"]) == len(row["peers"][0]["seconds"]) == 2
    assert row["speedup"] == pytest.approx(row["peers"][0]["minimum"] / row["lapwing"][0]["minimum"])


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_bench_through_a_framework(name, capsys):
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    arguments = [
        "bench",
        "cholesky",
        "--sizes",
        "3",
        "--repeat",
        "1",
        "--framework",
        name,
        "--matrix",
        "known",
        "--upper",
    ]
    assert main(arguments) == 0
    assert f"through {name} on cpu" in capsys.readouterr().out


@pytest.mark.skipif(not installed("jax"), reason="jax is not installed")
def test_bench_through_jax_with_a_limit_on_threads():
    """In a process of its own: --threads starts one, and float64 in JAX is a switch for the whole process."""
    command = [sys.executable, "-m", "lapwing", "bench", "cholesky", "--sizes", "3", "--repeat", "1"]
    command += ["--framework", "jax", "--threads", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "through jax on cpu" in answer.stdout and "float64" in answer.stdout
    assert "1 thread)" in answer.stdout


def test_bench_ends_with_1_on_a_wrong_answer(monkeypatch, capsys):
    wrong = replace(operation_of("cholesky"), through=lambda *_: lambda a: a.copy())
    monkeypatch.setattr("lapwing.bench.measure.operation_of", lambda name: wrong)
    assert main(["bench", "cholesky", "--sizes", "4", "--repeat", "1"]) == 1
    assert "WRONG ANSWER from lapwing" in capsys.readouterr().out


def test_bench_without_matplotlib_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_command, "can_plot", lambda: False)
    assert main(["bench", "cholesky", "--sizes", "4", "--repeat", "1", "--plot", str(tmp_path / "x.png")]) == 2
    shown = capsys.readouterr()
    assert "hint: pip install matplotlib" in shown.err and shown.out == ""


def test_bench_refuses_what_does_not_fit(monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "_free_memory", lambda: 20 * 2**30)
    assert main(["bench", "cholesky", "--sizes", "4,200000"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("lapwing: n=200000 float64 needs 3 copies of 298 GiB for each of numpy; 20 GiB are free here\n")
    assert shown.out == ""


def test_bench_ends_in_one_line_without_memory(monkeypatch, capsys):
    def fail(*_, **__):
        raise MemoryError("Unable to allocate 298 GiB")

    monkeypatch.setattr(bench_command, "measure", fail)
    assert main(["bench", "cholesky", "--sizes", "4"]) == 2
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "lapwing: not enough memory: Unable to allocate 298 GiB",
        "hint: use smaller sizes, or fewer at a time",
    ]


def test_bench_says_once_that_times_vary(monkeypatch, capsys):
    def measured(case, *_, **__):
        return Row(case, "batched", (("lapwing", Check(0.5, True)),), (Timing("lapwing", (1e-3, 3e-3, 3e-3)),))

    monkeypatch.setattr(bench_command, "measure", measured)
    assert main(["bench", "cholesky", "--sizes", "4,8"]) == 0
    text = capsys.readouterr().out
    assert text.count(" 1 ms~") == 2 and text.count(UNSTEADY) == 1


def test_without_the_native_core():
    code = (
        "import sys; sys.modules['lapwing._native'] = None\n"
        "from lapwing.__main__ import main\n"
        "main(['info']); main(['bench', 'cholesky', '--sizes', '4', '--repeat', '1'])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "; no native core, " in answer.stdout and "(no native core, " in answer.stdout
    # every engine but "reference"
    assert answer.stdout.count("the native core was not built, see below") == len(planner.ALL) - 1
    assert answer.stdout.count("lapwing's source folder: pip install --force-reinstall --no-deps .") == 2


@pytest.mark.parametrize("started", [".venv/bin/lapwing", "/elsewhere/lapwing"])
def test_the_program_is_named_as_it_was_started(started, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", [started])
    assert program() == started
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "lapwing")])
    assert program() == "./lapwing"
    monkeypatch.setattr(sys, "argv", ["__main__.py"])
    assert program() == f"{sys.executable} -m lapwing"


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_command, "measure", stop)
    assert main(["bench", "cholesky", "--sizes", "4"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "lapwing: stopped"


@needs_native
def test_record_is_written_and_used(monkeypatch, tmp_path, capsys):
    grid = Grid((4, 16), (1, 8), ("float64",), seconds=0.1)
    monkeypatch.setattr(record_command, "grid_for", lambda *_, **__: grid)
    monkeypatch.setenv("LAPWING_CACHE", str(tmp_path))
    try:
        assert main(["bench", "cholesky", "--record", "--repeat", "2"]) == 0
        (path,) = (tmp_path / "records").glob("*.json")
        record = load_record(path)
        assert {(m.n, m.batch) for m in record.measurements} == {(4, 1), (4, 8), (16, 1), (16, 8)}
        assert record.hardware == planner.hardware_of("cpu") and record.versions["lapwing"] == lw.__version__
        text = capsys.readouterr().out
        assert "the rules that follow" in text and str(path) in text and "delete that file to undo" in text
        assert str(path) in lw.explain(lw.cholesky, lw.spec((4, 4))).reason
        assert main(["info"]) == 0
        assert path.name in capsys.readouterr().out
    finally:
        monkeypatch.undo()
        planner.reload_records()


@needs_native
@pytest.mark.parametrize("output", [[], ["--output", "/nosuch/r.json"]])
def test_record_is_not_measured_when_it_cannot_be_written(output, monkeypatch, capsys):
    monkeypatch.setenv("LAPWING_CACHE", "")
    monkeypatch.delattr(record_command, "measure_record")
    assert main(["bench", "cholesky", "--record", *output]) == 2
    shown = capsys.readouterr()
    assert ("there is no folder /nosuch" if output else "there is no safe folder for your records") in shown.err
    assert shown.out == ""


@needs_native
def test_record_to_another_file(monkeypatch, tmp_path, capsys):
    grid = Grid((4,), (1,), ("float32",), seconds=0.1)
    monkeypatch.setattr(record_command, "grid_for", lambda *_, **__: grid)
    assert main(["bench", "cholesky", "--record", "--repeat", "1", "--output", str(tmp_path / "r.json")]) == 0
    assert load_record(tmp_path / "r.json").measurements[0].dtype == "float32"
    assert "delete" not in capsys.readouterr().out


def test_demo(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--quick"]) == 0
    text = capsys.readouterr().out
    assert text.count("right: residual") == 2 and "Try next" in text
    if plot.can_plot():
        assert (tmp_path / "lapwing-demo.png").read_bytes().startswith(b"\x89PNG")


class Terminal(io.StringIO):
    def __init__(self, yes):
        super().__init__()
        self.yes = yes

    def isatty(self):
        return self.yes

    text = property(io.StringIO.getvalue)


def test_progress_is_a_bar_on_a_terminal_and_silent_elsewhere():
    for terminal, every, expected in (
        (True, None, "\r\x1b[K[" + "." * 24 + "] 1/2 a"),
        (False, None, ""),
        (False, 0.0, "1/2 a\n"),
    ):
        stream = Terminal(terminal)
        Progress(2, stream, every=every).step("a")
        assert stream.text == expected


def test_a_warning_removes_the_bar_first():
    stream = Terminal(True)
    Progress(2, stream).step("a")
    warning = logging.LogRecord("lapwing", logging.WARNING, "", 0, "text", (), None)
    assert logging.lastResort.filter(warning)
    assert stream.text.endswith("1/2 a\r\x1b[K")


def test_a_long_name_does_not_wrap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal(True)
    Progress(2, stream).step("x" * 200)
    assert len(stream.text) == len("\r\x1b[K") + 39


def test_a_step_that_takes_long_shows_its_seconds(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.01)
    for terminal in (True, False):
        stream = Terminal(terminal)
        with progress.Waiting("drawing", stream):
            deadline = time.monotonic() + 10
            while terminal and "drawing" not in stream.text and time.monotonic() < deadline:
                time.sleep(0.01)
        assert ("\r\x1b[Kdrawing ... 0 s" in stream.text) == terminal
        assert stream.text.endswith("\r\x1b[K") == terminal


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run(
        [sys.executable, "-m", "lapwing", "info"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert "Traceback" not in answer.stderr


ECHO = """#!/bin/sh
[ "$1" = --version ] && echo "$VERSION" || { echo "arguments: $*"; echo "threads: $OMP_NUM_THREADS"; }
"""


@pytest.mark.parametrize(
    ("version", "where", "passed", "threads"),
    [
        ("HYDRA build details", ["--hosts", "a,b:2"], "-n 3 -hosts a,b:2", 6),
        ("mpirun (Open MPI) 5.0.3", ["--hosts", "a, b:2"], "-n 3 --host a,b:2 -x OMP_NUM_THREADS", 6),
        ("HYDRA build details", ["-n", "2", "--hostfile", "hosts"], "-n 2 -f hosts", 12),
        ("HYDRA build details", ["--hostfile", "hosts"], "-n 6 -f hosts", 4),
        ("mpirun (Open MPI) 4.1.2", ["--hostfile", "slots"], "-n 6 --hostfile slots -x OMP_NUM_THREADS", 4),
    ],
)
def test_launch_passes_hosts_to_mpiexec(version, where, passed, threads, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERSION", version)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch_command, "usable_cores", lambda: 12)
    (tmp_path / "mpiexec").write_text(ECHO)
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "hosts").write_text("# the machines\nfirst:4\n\nsecond:2  # a small one\n")
    (tmp_path / "slots").write_text("first slots=4\nsecond slots=2\n")
    assert main(["launch", "--mpiexec", "./mpiexec", *where, "--", "program", "x"]) == 0
    text = capfd.readouterr().out
    assert f"arguments: {passed}" in text and text.splitlines()[0].endswith("program x")
    assert f"threads: {threads}" in text.splitlines()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["--hosts", "a,,b"], "'' is not a host, nor host:places"),
        (["--hosts", "a:0"], "'a:0' is not a host"),
        (["--hosts", "a:x"], "'a:x' is not a host"),
        (["--hostfile", "nosuch"], "--hostfile nosuch: No such file"),
        (["--hostfile", "empty"], "names no host"),
        (["--hosts", "a", "--hostfile", "empty"], "not allowed with argument --hosts"),
    ],
)
def test_launch_refuses_wrong_hosts(where, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("# nothing\n")
    assert main(["launch", *where, "--", "true"]) == 2
    assert message in capsys.readouterr().err


def test_help_keeps_capital_letters(capsys):
    for command, words in (("launch", "Start a script on many MPI ranks"), ("demo", "a small race against NumPy")):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert words in " ".join(capsys.readouterr().out.split())


# ---- kernels -----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_kernels(monkeypatch):
    """A pack of two kernels, not of thousands."""
    native = pytest.importorskip("lapwing._native")
    if reason := native.missing("compiler"):
        pytest.skip(reason)
    options = "-DLW_DTYPE={} -DLW_UPPER=0 -DLW_V=16 -DLW_KERNEL=0 -DLW_N=3 -DLW_THREADS=256"
    kernels = {("cholesky.cu", options.format(dtype)) for dtype in (0, 1)}
    monkeypatch.setattr("lapwing.cli.kernels.common_kernels", lambda architecture: kernels)
    return sorted(kernels)


def test_kernels_build_list_and_info(two_kernels, monkeypatch, tmp_path, capsys):
    """With the real run-time compiler: no GPU is needed."""
    folder, more = tmp_path / "packs", tmp_path / "more.txt"
    monkeypatch.setenv("LAPWING_KERNELS", str(folder))
    more.write_text("triangle.cu -DLW_DTYPE=0 -DLW_UPPER=0 -DLW_V=4\nno_longer_there.cu -DLW_N=1\n")
    build = ["kernels", "build", "--arch", "sm_80", "--output", str(folder), "--list", str(more), "--jobs", "1"]
    with monkeypatch.context() as patch:  # Ctrl-C after the first kernel
        patch.setattr("lapwing.cli.kernels._SECONDS", 40.0)
        done = iter([None])
        patch.setattr(Progress, "step", lambda *_: next(done, 1) and signal.raise_signal(signal.SIGINT))
        assert main(build) == 130
    said = capsys.readouterr().out
    assert "sm_80: 3 kernels, 0 of them in" in said
    assert "compiling 3 in a process may take 2 minutes; Ctrl-C keeps those that are done" in said
    assert main(build) == 0
    assert "sm_80: 3 kernels, 1 of them in" in capsys.readouterr().out
    # what is there already is kept
    assert main(build) == 0
    assert "sm_80: 3 kernels, 3 of them in" in capsys.readouterr().out
    assert main(["kernels", "list"]) == 0
    said = capsys.readouterr().out
    assert f"{folder}/sm_80.pack: sm_80, 3 kernels, " in said
    assert "of another version" not in said
    assert main(["kernels", "info", str(folder / "sm_80.pack"), "--all"]) == 0
    said = capsys.readouterr().out
    assert "cholesky.cu         2" in said
    assert " ".join(two_kernels[0]) in said


def test_kernels_wrong_usage(monkeypatch, tmp_path, capsys):
    pytest.importorskip("lapwing._native")
    (tmp_path / "other").write_text("text")
    for arguments, text in (
        (["build", "--arch", "sm_12"], "--arch 'sm_12' is not known\nhint: use one of sm_80, sm_90, sm_100, sm_120"),
        (["build", "--arch", "sm_80,sm_90", "--output", "a.pack"], "a pack holds one architecture, not sm_80, sm_90\nhint:"),
        (["build", "--jobs", "0"], "--jobs 0 is not a positive number"),
        (["info", str(tmp_path / "nothing")], "there is no file"),
        (["info", str(tmp_path / "other")], "is not a kernel pack"),
    ):
        assert main(["kernels", *arguments]) == 2
        assert text in capsys.readouterr().err
    monkeypatch.setenv("LAPWING_KERNELS", "")
    assert main(["kernels", "list"]) == 0
    assert "no kernel packs: kernels are compiled when they are first used\nhint: " in capsys.readouterr().out


def test_kernels_of_common_calls():
    """Every common call is served for every architecture; the calls name the operations that a GPU has."""
    native = pytest.importorskip("lapwing._native")
    from lapwing.cli.kernel_calls import GPUS, calls, kernels_for
    from lapwing.core.native import CUDA

    names = native.operations()
    on_a_gpu = {names[operation] for operation, device, _ in native.methods() if device == CUDA}
    assert {operation for operation, _, _ in calls(20)} == on_a_gpu, "a new operation needs its calls in kernel_calls.py"
    for gpus in GPUS.values():
        for gpu in gpus:
            for n in (1, 5, 20, 33, 128, 1024, 20_000):
                dtype = "float32" if n < 20_000 else "complex128"  # what needs the most shared memory
                for call in calls(n):
                    assert kernels_for(call, dtype, gpu), (call, gpu)
