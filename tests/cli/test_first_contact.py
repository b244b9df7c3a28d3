"""What a stranger meets first: lapwing alone, colours, the width of tables, and errors that say what to do."""

from __future__ import annotations

import io
import sys

import pytest

from lapwing.__main__ import main
from lapwing.cli import colour, insitu_demo
from lapwing.cli.tune_output import Live

WRONG = """
bogus | info extra | explain | explain bogus --shape 3x3 | explain cholesky --shape 3xx | explain cholesky --shape 3x4
explain eigh --shape 4x4 --subset x | explain cholesky --shape 4x4 --assume pos | explain qr --shape 4x4 --dtype int8
bench | bench bogus | bench cholesky --sizes 0 | bench cholesky --sizes x | bench cholesky --dtype int8 | bench qr --subset :3
bench cholesky --engine bogus --sizes 4 | bench cholesky --peers bogus --sizes 4 | bench cholesky --matrix bogus
bench cholesky --rhs 3 | bench solve --rhs 0 | bench qr --upper | bench cholesky --repeat 0 | bench cholesky --json no/x.json
bench cholesky --plot x.txt | bench qr --record | bench solve --precision mixed --dtype float32 | bench cholesky --threads 0
bench map --upper | bench map --seconds 0 | bench map --output no | bench map --merge no.json | bench eigh --sizes 4 --subset 9:
bench solve --condition 0.5 | bench solve --assume symmetric --condition 3 | bench cholesky --batch 0
demo --bogus | insitu | insitu bogus | insitu watch | insitu watch . --port 1 | insitu watch . --web --once
insitu watch . --interval 0 | insitu watch . --web --port 99999 | insitu demo --keep .
kernels | kernels info no.pack | kernels build --arch sm_1 | launch | launch -n 0 x.py | launch -n 2 no.py | launch -n 2 --
launch -n 2 --threads 0 x.py | launch -n 2 --mpiexec no x.py | launch -n 2 --hostfile no x.py | run | run no.py | run -m
tune | tune bogus | tune all | tune all 1x2x3 | tune read no.log | tune configure 1x2x3 -w w --backend bogus
tune run no | tune compare no | tune report no | tune export no --format vllm -o x | tune merge no -o x | tune widen no
tune solvers bogus | tune record | tune record -- no-such-program | tune amd | tune amd gather no | tune amd merge no no no
""".replace("\n", "|").split("|")


@pytest.mark.parametrize("words", [line.strip() for line in WRONG if line.strip()])
def test_every_error_ends_with_what_to_do(words, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    assert main(words.split()) in (1, 2), words
    last = capfd.readouterr().err.strip().splitlines()
    hints = [i for i, line in enumerate(last) if line.startswith(("hint: ", "lapwing: hint: "))]
    assert hints and len(last) - hints[-1] <= 2, last  # a hint may have two lines
    assert max(map(len, last)) <= 100 + len(str(tmp_path)), last


@pytest.mark.parametrize(
    "command", ["", "explain", "bench", "launch", "run", "kernels build", "insitu watch", "tune all", "tune amd"]
)
def test_help_fits_on_the_screen(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_lapwing_alone_says_where_to_begin(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lapwing ") and "lapwing demo" in out and "lapwing --help" in out
    assert max(map(len, out.splitlines())) <= 80 and len(out.splitlines()) <= 16


def test_what_is_suggested_can_be_typed(capsys):
    from lapwing.__main__ import _parser
    from lapwing.cli.usage import _EXAMPLES

    main([])
    shown = [line[:44] for line in capsys.readouterr().out.splitlines() if line.startswith("  lapwing ")]
    assert len(shown) >= 5
    for line in [*shown, *_EXAMPLES.values()]:
        _parser().parse_args(line.partition(", the")[0].split()[1:])
    assert {parser for parser in _EXAMPLES if not _EXAMPLES[parser].startswith(parser)} == set()


@pytest.mark.parametrize(
    ("words", "meant"),
    [("bnech", "bench"), ("bench choleski", "cholesky"), ("bench qr --szies 4", "--sizes"), ("tune al", "all")],
)
def test_a_slip_is_understood(words, meant, capsys):
    assert main(words.split()) == 2
    assert f"\nhint: did you mean {meant}? " in capsys.readouterr().err


def test_doctor_tells_what_is_broken_from_what_is_not_installed(monkeypatch, capsys):
    from lapwing.cli import doctor

    monkeypatch.setattr(doctor, "installed_version", lambda name: "1.0" if name == "cupy" else "")
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import of it fails
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("BAD  cupy"))
    assert "does not import" in lines[place] and lines[place + 1].strip().startswith("cure: pip install cupy")
    place = lines.index("-    jax         not installed")
    assert lines[place + 1].strip() == "to use it: pip install jax"
    assert sum(line.startswith("BAD") for line in lines) == 1 and any(line.startswith("ok   native core") for line in lines)


def test_a_file_that_cannot_be_written_is_named(monkeypatch, capfd):
    from lapwing.cli import info

    def full(options):
        raise OSError(28, "No space left on device", "/full/x")

    monkeypatch.setattr(info, "run", full)
    assert main(["info"]) == 1
    assert "/full/x: No space left on device\nhint: " in capfd.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_only_on_a_terminal(environment, coloured, monkeypatch):
    pytest.importorskip("rich", reason="colours need rich")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    colour.printer()("word [x]", "green")
    assert ("\x1b[" in stream.getvalue()) == coloured and "word [x]" in stream.getvalue()
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    colour.printer()("word", "green")
    assert stream.getvalue() == "word\n"


def test_steps_of_tune_have_a_bar_on_a_terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    Live().step("7/12 BBS_TN_0: comparing")
    assert "[############............] 7/12 BBS_TN_0" in stream.getvalue()


def test_pictures_of_the_solver_are_left_here(monkeypatch, tmp_path, capsys):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "modes.png").write_bytes(b"picture")
    monkeypatch.chdir(tmp_path)
    insitu_demo._pictures(tmp_path / "work", "", show=False, leave=True)
    assert (tmp_path / "lapwing-insitu-modes.png").read_bytes() == b"picture"
    assert "  ./lapwing-insitu-modes.png" in capsys.readouterr().out


def test_the_demo_doubts_figures_of_few_repeats(monkeypatch):
    from lapwing.bench.case import Case, Entry
    from lapwing.bench.measure import measure
    from lapwing.cli import demo

    row = measure(Case(4, 10), [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")], repeat=2, fewest=2, floor=False)
    assert demo._doubtful(row)
    monkeypatch.setattr(demo, "_FEWEST", 2)
    assert demo._doubtful(row) == row.unsteady


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_legend_of_every_table_fits(on_gpu):
    from lapwing.bench.table import WIDEST, Table
    from lapwing.cli.bench import _OPERATIONS

    lines = [line for name in _OPERATIONS for line in Table.legend(on_gpu=on_gpu, operation=name).splitlines()]
    assert WIDEST <= 100 and max(map(len, lines)) <= WIDEST
