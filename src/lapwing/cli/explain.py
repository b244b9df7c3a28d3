"""lapwing explain: which engine a call would use, and what it would cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..core.problem import spec
from ..ops.cholesky import cholesky
from ..ops.eigh import eigh, eigvalsh
from ..ops.explain import explain
from .usage import UsageError, add_device, add_subset, parse_shape, parse_subset

__all__ = ["add_parser", "run"]

_OPERATIONS: dict[str, Callable[..., Any]] = {"cholesky": cholesky, "eigh": eigh, "eigvalsh": eigvalsh}


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "which engine a call would use, why, and what it would cost"
    parser = commands.add_parser("explain", help=text, description=text.capitalize() + ". Nothing is run.")
    parser.add_argument("operation", choices=list(_OPERATIONS))
    parser.add_argument("--shape", required=True, help="64x64, or 1000x64x64 for a batch")
    parser.add_argument("--dtype", default="float64", help="float32, float64, complex64 or complex128 (default: float64)")
    add_device(parser)
    parser.add_argument("--engine", default="auto", help='"auto" (default), or a name from lapwing info')
    parser.add_argument("--upper", action="store_true", help="the upper triangle")
    add_subset(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    shape = parse_shape(options.shape)
    if options.subset is not None and options.operation == "cholesky":
        raise UsageError("--subset is for eigh and eigvalsh")
    part = {} if options.subset is None else {"subset": parse_subset(options.subset)}
    try:
        array = spec(shape, options.dtype, options.device)
        plan = explain(_OPERATIONS[options.operation], array, upper=options.upper, engine=options.engine, **part)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error).removeprefix("spec: ")) from error
    print(plan)
    return 0
