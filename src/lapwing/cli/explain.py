"""lapwing explain: which engine a call would use, and what it would cost."""

from __future__ import annotations

import argparse

from ..core.problem import spec
from ..ops.cholesky import cholesky
from ..ops.explain import explain
from .usage import UsageError, add_device, parse_shape

__all__ = ["add_parser", "run"]

_OPERATIONS = {"cholesky": cholesky}


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "which engine a call would use, why, and what it would cost"
    parser = commands.add_parser("explain", help=text, description=text.capitalize() + ". Nothing is run.")
    parser.add_argument("operation", choices=list(_OPERATIONS))
    parser.add_argument("--shape", required=True, help="64x64, or 1000x64x64 for a batch")
    parser.add_argument("--dtype", default="float64", help="float32, float64, complex64 or complex128 (default: float64)")
    add_device(parser)
    parser.add_argument("--engine", default="auto", help='"auto" (default), or a name from lapwing info')
    parser.add_argument("--upper", action="store_true", help="the upper triangle")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    shape = parse_shape(options.shape)
    try:
        array = spec(shape, options.dtype, options.device)
        plan = explain(_OPERATIONS[options.operation], array, upper=options.upper, engine=options.engine)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error).removeprefix("spec: ")) from error
    print(plan)
    return 0
