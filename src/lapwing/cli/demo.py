"""lapwing demo: two factorisations, a small race against NumPy, and a picture, in less than a minute."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import planner
from ..bench.case import Case, Entry
from ..bench.check import check_factor
from ..bench.environment import HOW_TO_GET, counted, environment
from ..bench.matrices import make_matrix
from ..bench.measure import measure
from ..bench.plot import can_plot, plot_speedup
from ..bench.table import UNSTEADY, Table
from ..core.native import how_to_build, native
from ..ops.cholesky import cholesky
from .progress import Progress
from .usage import program, python, sentence

_RACE = ((4, 50_000), (8, 20_000), (16, 5_000), (32, 2_000), (64, 500), (128, 100), (256, 20))
_QUICK = ((4, 2_000), (16, 500))
_PICTURE = Path("lapwing-demo.png")


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "two factorisations, a small race against NumPy, and a picture"
    parser = commands.add_parser("demo", help=text, description=sentence(text) + ". Takes less than a minute.")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, a few seconds")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    where = environment()
    usable = [e.name for e in planner.engines() if e.usable_on]
    threads = counted(where.threads, "thread")
    print(f"lapwing on {where.cpu} ({where.instructions}, {threads}); engines: {', '.join(usable)}\n")
    if native is None:
        print(f"hint: {how_to_build()}\n")
    right = all([_factor(Case(500)), _factor(Case(8, 10_000, "float32"))])
    print("\nAgainst numpy.linalg.cholesky, side by side in one run:\n")
    right &= _race(_QUICK if options.quick else _RACE, threads)
    lapwing = program()
    print(
        "\nTry next:\n"
        f"  {lapwing} info                                         what works here, and what is missing\n"
        f"  {lapwing} explain cholesky --shape 1000x64x64          which engine, and why\n"
        f"  {lapwing} bench cholesky --sizes 4,32,256 --batch 1000 --peers --plot bench.png\n"
        f'  {python()} -c "import lapwing; help(lapwing.cholesky)"'
    )
    return 0 if right else 1


def _factor(case: Case) -> bool:
    a = make_matrix(case)
    call = f"lapwing.cholesky(a)   a: {case.dtype} {' x '.join(map(str, case.shape))}"
    check = check_factor(a, cholesky(a))
    print(f"{call}\n  engine {planner.plan(case.problem).engine}; {'right' if check.ok else 'WRONG'}: {check}")
    return check.ok


def _race(sizes: tuple[tuple[int, int], ...], threads: str) -> bool:
    entries = [Entry("lapwing", "numpy", "auto"), Entry("numpy", "numpy")]
    cases = [Case(n, batch, dtype) for dtype in ("float32", "float64") for n, batch in sizes]
    table = Table(["numpy"])
    print(table.header())
    progress = Progress(len(cases), quiet=True)
    rows = []
    for case in cases:
        progress.step(str(case))
        rows.append(measure(case, entries, repeat=10, limit=1.5))
        progress.clear()
        print(table.line(rows[-1]), flush=True)
    print(f"\n{table.legend()}")
    if any(row.unsteady for row in rows):
        print(UNSTEADY)
    if can_plot():
        counts = f"batches of {sizes[0][1]:,} (n = {sizes[0][0]}) to {sizes[-1][1]:,} (n = {sizes[-1][0]}) matrices"
        plot_speedup(rows, _PICTURE, f"Cholesky: lapwing against NumPy, {threads}\n{counts}", "NumPy")
        print(f"\nA picture is in ./{_PICTURE}")
    else:
        print(f"\nNo picture: matplotlib is not installed ({HOW_TO_GET['matplotlib']})")
    return not any(row.wrong for row in rows)
