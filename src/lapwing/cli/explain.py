"""lapwing explain: say which engine a call would use, and what it would cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import lapwing

from ..core.problem import spec
from ..core.request import ASSUME
from ..distributed.layout import Layout
from ..distributed.tiles import best_grid
from ..ops.explain import explain
from .usage import UsageError, add_device, add_subset, check_positive, fitted, parse_shape, parse_subset, sentence

_OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(lapwing, name)
    for name in lapwing.__all__
    if hasattr(getattr(lapwing, name), "problem") and not name.endswith("_ex")
}
# the operations that have each option
_TAKES = {
    option: tuple(name for name, function in _OPERATIONS.items() if option in (function.__kwdefaults__ or {}))
    for option in ("upper", "subset", "assume")
}
_TAKES["columns"] = ("solve", "lstsq")


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "which engine a call would use, why, and what it would cost"
    parser = commands.add_parser(
        "explain", help=text, description=sentence(text) + ". Runs nothing. Figures for many devices come from a model."
    )
    parser.add_argument("operation", choices=list(_OPERATIONS), metavar="operation", help=f"one of {', '.join(_OPERATIONS)}")
    parser.add_argument("--shape", required=True, help="64x64, or 1000x64x64 for a batch")
    parser.add_argument("--dtype", default="float64", help="float32, float64, complex64 or complex128 (default: float64)")
    add_device(parser)
    parser.add_argument("--engine", default="auto", help='"auto" (default), or a name from lapwing info')
    parser.add_argument("--upper", action="store_true", help="use the upper triangle")
    parser.add_argument("--assume", choices=ASSUME, help="what may be assumed about the matrix")
    parser.add_argument("--columns", type=int, help="right-hand sides of solve and lstsq (default: 1)")
    parser.add_argument("--devices", type=_count, help="number of devices that hold the matrix (GPUs, or ranks on CPUs)")
    parser.add_argument("--grid", help="the same as a grid of devices: 8x8")
    parser.add_argument("--tile", type=int, help="order of the tiles over that grid (default: the engine's own)")
    add_subset(parser)
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        grid = "x" in text and all(part.isdigit() for part in text.split("x"))
        instead = f"--grid {text} is a grid of devices" if grid else "for example --devices 4"
        raise UsageError(f"--devices {text!r} is not a whole number\nhint: {instead}") from None


def run(options: argparse.Namespace) -> int:
    shape = parse_shape(options.shape)
    for name, operations in _TAKES.items():
        value = getattr(options, name)
        if value is not None and value is not False and options.operation not in operations:
            raise UsageError(f"--{name} is for {', '.join(operations)}\nhint: leave it out, or explain one of these")
    keywords: dict[str, Any] = {"upper": True} if options.upper else {}
    if options.assume:
        keywords["assume"] = options.assume
    if options.subset is not None:
        keywords["subset"] = parse_subset(options.subset)
    try:
        arrays = [spec(shape, options.dtype, options.device, _sharding(options, shape))]
        if options.operation in _TAKES["columns"]:
            columns = 1 if options.columns is None else options.columns
            arrays.append(spec((*shape[:-1], columns), options.dtype, options.device))
        plan = explain(_OPERATIONS[options.operation], *arrays, engine=options.engine, **keywords)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error).removeprefix("spec: ")) from error
    print(fitted(str(plan), 16))
    return 0


def _sharding(options: argparse.Namespace, shape: tuple[int, ...]) -> Any:
    """From --devices, --grid and --tile: None, a number, a grid, or a layout."""
    grid = None if options.grid is None else parse_shape(options.grid)
    if grid is not None and (len(grid) != 2 or 0 in grid):
        raise UsageError(f"--grid {options.grid!r} is not a grid\nhint: write it as 8x8")
    check_positive(options, "devices", "tile")
    if grid is not None and options.devices is not None and grid[0] * grid[1] != options.devices:
        raise UsageError(f"--grid {options.grid} does not match --devices {options.devices}\nhint: leave --devices out")
    if options.tile is not None:
        if options.devices is None and grid is None:
            raise UsageError("--tile is for a matrix over many devices\nhint: add --devices or --grid")
        if len(shape) != 2:
            raise UsageError(f"a sharded matrix has two sizes, not {len(shape)}: {options.shape}\nhint: --shape 4096x4096")
        return Layout.cyclic((shape[0], shape[1]), options.tile, grid or best_grid(options.devices, *shape))  # type: ignore[arg-type]
    return grid or options.devices
