"""lapwing demo: two factorisations, a small race against NumPy, and a picture, in less than 20 seconds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from .. import planner
from .._version import __version__
from ..bench.case import Case, Entry, Row
from ..bench.check import check_factor
from ..bench.environment import HOW_TO_GET, Environment, counted, environment
from ..bench.matrices import make_matrix
from ..bench.measure import measure
from ..bench.plot import can_plot
from ..bench.table import seconds_in_words
from ..core.native import how_to_build, native
from ..ops.cholesky import cholesky
from .colour import Say, printer
from .progress import Progress
from .usage import program, sentence

# orders and batches: each NumPy call takes 5 to 20 ms
_RACE = ((4, 20_000), (8, 10_000), (16, 4_000), (32, 1_000), (64, 200), (128, 40), (256, 10))
_QUICK = ((4, 2_000), (16, 500))
_PICTURE = Path("lapwing-demo.png")
_SECONDS = 8.0  # for the race; sizes for which no time is left are not run, which happens on a busy machine only
_FEWEST = 5  # repeats that a figure must have to be believed: an idle machine has time for ten
_BAR = 22  # characters
_COLOURS = {"float32": "#2a9d8f", "float64": "#264653"}


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "two factorisations, a small race against NumPy, and a picture"
    parser = commands.add_parser("demo", help=text, description=sentence(text) + ". Takes less than 20 seconds.")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, a few seconds")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    say = printer()
    where = environment()
    usable = [e.name for e in planner.engines() if e.usable_on]
    say(f"lapwing {__version__}", "bold cyan")
    say(f"on {where.cpu} ({where.instructions}, {counted(where.threads, 'thread')})\nengines: {', '.join(usable)}\n")
    if native is None:
        say(f"hint: {how_to_build()}\n", "yellow")
    right = all([_factor(Case(500), say), _factor(Case(8, 10_000, "float32"), say)])
    say("\nThe race: Cholesky factors of many small matrices, NumPy against lapwing\n", "bold")
    sizes = _QUICK if options.quick else _RACE
    rows = _race(sizes, say)
    say()
    if can_plot():
        _draw(rows, where, _PICTURE, busy=len(rows) < 2 * len(sizes))
        say(f"A picture to keep: ./{_PICTURE}", "bold")
    else:
        say(f"No picture: matplotlib is not installed ({HOW_TO_GET['matplotlib']})", "yellow")
    lapwing = program()
    say("\nTry next:", "bold")
    for command, text in (
        ("info", "what works here, and what is missing"),
        ("explain eigh --shape 1000x64x64", "which engine runs a call, and why"),
        ("bench cholesky --peers", "all libraries here, in full"),
        ("insitu demo", "analyse a solver while it runs"),
    ):
        say(f"  {lapwing} {command:<33} {text}")
    return 0 if right and not any(row.wrong for row in rows) else 1


def _factor(case: Case, say: Say) -> bool:
    a = make_matrix(case)
    say(f"lapwing.cholesky(a)   a: {case.dtype} {' x '.join(map(str, case.shape))}")
    check = check_factor(a, cholesky(a))
    engine = planner.plan(case.problem).engine
    say(f"  engine {engine}; {'right' if check.ok else 'WRONG'}: {check}", "green" if check.ok else "bold red")
    return check.ok


def _race(sizes: tuple[tuple[int, int], ...], say: Say) -> list[Row]:
    entries = [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")]
    cases = [Case(n, batch, dtype) for n, batch in sizes for dtype in ("float32", "float64")]
    say(f"{'matrices':>20}  {'dtype':8} {'NumPy':>9} {'lapwing':>9} {'faster':>8}")
    progress = Progress(len(cases))
    rows: list[Row] = []
    begun = monotonic()
    for case in cases:
        left = _SECONDS - (monotonic() - begun)
        if left <= 0:
            say(f"no time was left for {counted(len(cases) - len(rows), 'case')}: is the machine busy?", "yellow")
            break
        progress.step(str(case))
        rows.append(measure(case, entries, repeat=10, limit=left / (len(cases) - len(rows)), fewest=2, floor=False))
        progress.clear()
        _say_row(rows[-1], say)
    if any(_doubtful(row) for row in rows):
        say("~ these times vary by more than 2x, or have few repeats: other programs use the cores", "yellow")
    return rows


def _doubtful(row: Row) -> bool:
    return row.unsteady or any(len(timing.seconds) < _FEWEST for timing in (*row.ours, *row.peers))


def _say_row(row: Row, say: Say) -> None:
    case = row.case
    name = f"{case.batch:>7,} of {case.n} x {case.n}"
    if row.wrong or row.lapwing is None or row.speedup is None:
        why = "; ".join(
            [*(f"{entry}: {check}" for entry, check in row.checks if not check.ok), *(a.reason for a in row.absent)]
        )
        say(f"{name:>20}  {case.dtype:8} {'WRONG' if row.wrong else 'not measured'}: {why}", "bold red")
        return
    peer = min(row.peers, key=lambda timing: timing.minimum)
    # a bar in the logarithm of the ratio: full at 100 times
    bar = "#" * max(0, min(_BAR, round(_BAR * math.log10(max(row.speedup, 1.0)) / 2)))
    times = f"{row.speedup:.1f}x{'~' if _doubtful(row) else ''}"
    say(
        f"{name:>20}  {case.dtype:8} {seconds_in_words(peer.minimum):>9} {seconds_in_words(row.lapwing.minimum):>9} "
        f"{times:>8}  {bar}",
        "yellow" if _doubtful(row) else "green" if row.speedup >= 1 else "red",
    )


def _draw(rows: Sequence[Row], where: Environment, path: Path, *, busy: bool) -> None:
    """The race as one picture that explains itself: what ran, where, how much faster, and that the answers are right.

    On a busy machine the title names no figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, NullFormatter

    shown = [row for row in rows if row.speedup is not None]
    orders = sorted({row.case.n for row in shown})
    best = max((row.speedup or 0.0 for row in shown if not _doubtful(row)), default=0.0)
    figure = Figure(figsize=(11, 6.2))
    FigureCanvasAgg(figure)  # the drawing itself, whatever the program has set up
    axis = figure.add_axes((0.075, 0.15, 0.9, 0.6))
    for place, dtype in enumerate(_COLOURS):
        some = [row for row in shown if row.case.dtype == dtype]
        x = [orders.index(row.case.n) + (place - 0.5) * 0.38 for row in some]
        bars = axis.bar(x, [(row.speedup or 1) - 1 for row in some], 0.35, bottom=1, color=_COLOURS[dtype], zorder=3)
        words = [f"{row.speedup:.{1 if (row.speedup or 0) < 9.95 else 0}f}x{'~' if _doubtful(row) else ''}" for row in some]
        axis.bar_label(bars, words, fontsize=9, padding=3, color="#333333")
        for bar, row in zip(bars, some, strict=True):
            bar.set_alpha(0.4 if _doubtful(row) else 1.0)
    axis.set_yscale("log")
    axis.axhline(1, color="#e76f51", linewidth=1.5, zorder=4)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "NumPy" if value == 1 else f"{value:g}x"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    batches = {row.case.n: row.case.batch for row in shown}
    axis.set_xticks(range(len(orders)), [f"{n} x {n}\n{batches[n]:,} matrices" for n in orders], fontsize=9)
    axis.tick_params(which="both", length=0)
    axis.grid(axis="y", color="#e6e6e6", zorder=0)
    axis.set_xlim(-0.5, len(orders) - 0.5)
    axis.margins(y=0.14)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    marks = [Patch(color=colour, label=dtype) for dtype, colour in _COLOURS.items()]  # never pale, as a first bar may be
    axis.legend(handles=marks, loc="lower right", bbox_to_anchor=(1, 1.02), frameon=False, fontsize=11, ncols=2)
    title = f"lapwing.cholesky: up to {best:.0f}x faster than NumPy" if best >= 1.5 else "lapwing.cholesky and NumPy"
    title = "lapwing.cholesky and NumPy on a busy machine" if busy else title
    figure.text(0.045, 0.925, title, fontsize=22, fontweight="bold", color="#264653", va="center")
    threads = counted(where.threads, "thread")
    about = f"Many small matrices at once, one call each. {where.cpu}, {threads}. Every answer checked: below 10 n eps."
    figure.text(0.045, 0.86, about, fontsize=11, color="#555555", va="center")
    note = "pale, ~: times vary, or have few repeats   " if any(_doubtful(row) for row in shown) else ""
    credit = f"{note}lapwing {__version__}   measured here by: lapwing demo"
    figure.text(0.975, 0.03, credit, fontsize=9, color="#888888", ha="right")
    figure.savefig(path, dpi=150, facecolor="white")
