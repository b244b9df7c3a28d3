"""lapwing explain: which engine a call would use, and what it would cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..core.problem import spec
from ..ops.cholesky import cholesky
from ..ops.eigh import eigh, eigvalsh
from ..ops.explain import explain
from ..ops.lstsq import lstsq
from ..ops.qr import qr
from ..ops.solve import ASSUME, inv, slogdet, solve
from ..ops.svd import polar, svd, svdvals
from .usage import UsageError, add_device, add_subset, parse_shape, parse_subset

__all__ = ["add_parser", "run"]

_OPERATIONS: dict[str, Callable[..., Any]] = {
    op.__name__: op for op in (cholesky, eigh, eigvalsh, solve, inv, slogdet, qr, svd, svdvals, lstsq, polar)
}
# which of them know the option
_TAKES = {
    "upper": ("cholesky", "eigh", "eigvalsh", "solve", "inv", "slogdet"),
    "subset": ("eigh", "eigvalsh"),
    "assume": ("solve", "inv", "slogdet"),
    "columns": ("solve", "lstsq"),
}


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "which engine a call would use, why, and what it would cost"
    parser = commands.add_parser("explain", help=text, description=text.capitalize() + ". Nothing is run.")
    parser.add_argument("operation", choices=list(_OPERATIONS))
    parser.add_argument("--shape", required=True, help="64x64, or 1000x64x64 for a batch")
    parser.add_argument("--dtype", default="float64", help="float32, float64, complex64 or complex128 (default: float64)")
    add_device(parser)
    parser.add_argument("--engine", default="auto", help='"auto" (default), or a name from lapwing info')
    parser.add_argument("--upper", action="store_true", help="the upper triangle")
    parser.add_argument("--assume", choices=ASSUME, help="what is known of the matrix, for solve, inv and slogdet")
    parser.add_argument("--columns", type=int, help="right-hand sides of solve and lstsq (default: 1)")
    add_subset(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    shape = parse_shape(options.shape)
    for name, operations in _TAKES.items():
        given = getattr(options, name)
        if given is not None and given is not False and options.operation not in operations:
            raise UsageError(f"--{name} is for {', '.join(operations)}")
    known: dict[str, Any] = {"upper": True} if options.upper else {}
    if options.assume:
        known["assume"] = options.assume
    if options.subset is not None:
        known["subset"] = parse_subset(options.subset)
    try:
        arrays = [spec(shape, options.dtype, options.device)]
        if options.operation in _TAKES["columns"]:
            columns = 1 if options.columns is None else options.columns
            arrays.append(spec((*shape[:-1], columns), options.dtype, options.device))
        plan = explain(_OPERATIONS[options.operation], *arrays, engine=options.engine, **known)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error).removeprefix("spec: ")) from error
    print(plan)
    return 0
