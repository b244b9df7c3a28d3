"""Read logs of many kinds as one list of products with counts. Each kind of log has its own file."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..gemm import Call
from .cublas import CublasLtReader, CublasReader
from .hipblaslt import HipblasltReader
from .log import BadLine, Log, add_up, merge, not_below
from .profiler import read_trace
from .sink import Sink, Unreadable, is_file, lines, open_log, peek, pieces
from .table import TableReader, shape_like
from .tunableop import TunableOpReader

__all__ = ["NOTHING", "BadLine", "Log", "merge", "read"]

# TunableOp comes first: its lines may end with an entry that looks like hipBLASLt's
_READERS = (TunableOpReader, HipblasltReader, CublasLtReader, CublasReader, TableReader)
_JSON = re.compile(r'\s*(?:\{\s*(?:"|\}|$)|\[\s*(?:\{\s*"|\]|$))')
_TWO_SIZES = re.compile(r"\s*\d+\s*[x×*]\s*\d+(?:\s.{0,200})?", re.IGNORECASE)
RANKS = ("sum", "max")
NOTHING = ("this line has no product", "this file has no product")


def read(*sources: str | os.PathLike[str], ranks: str = "sum") -> Log:
    """Read the matrix products of any number of logs.

    Parameters
    ----------
    sources
        Files, or text: lines of a log, or products in words such as ``"6144x16x4096 bf16 TN"``. The kind of each file is
        recognised from its lines: hipBLASLt (masks 32, 64, 128), TunableOp (untuned or results), traces of torch.profiler
        (``.json``, ``.json.gz``), cuBLASLt, cuBLAS, tables with a heading. Files are never changed.
    ranks
        How to combine the counts of a product in several files: ``"sum"``, or ``"max"`` if each file is one rank of the same
        program and you want the work of one rank.

    Returns
    -------
    Log
        ``calls`` (each product once) and ``problems`` (each line that was not understood, and why).

    Examples
    --------
    >>> from lapwing.tune.readers import read
    >>> log = read("6144x16x4096 bf16 TN count=32")
    >>> print(log.calls[0].gemm, log.calls[0].count)
    BBS_TN 6144x16x4096 32
    """
    if ranks not in RANKS:
        raise ValueError(f"read: ranks is {ranks!r}\nhint: use {' or '.join(RANKS)}")
    counted: list[Call] = []
    listed: list[Call] = []
    above: list[Call] = []
    problems: list[BadLine] = []
    architectures: set[str] = set()
    for source in sources:
        sink = _read_one(source)
        some, others = sink.close()
        if not (some or others or sink.above or sink.problems):
            sink.bad(0, "", NOTHING[1])
        counted += some
        listed += others
        above += sink.above
        problems += sink.problems
        architectures |= sink.architectures
    below = add_up(counted, ranks)
    with_counts = Log(add_up((*below, *not_below(add_up(above, ranks), below))))
    without = Log(add_up(listed, ranks))
    # products that were only listed get their counts from the files with counts
    calls = merge(without, with_counts).calls if without.calls else with_counts.calls
    return Log(calls, tuple(problems), tuple(sorted(architectures)))


def _read_one(source: str | os.PathLike[str]) -> Sink:
    if isinstance(source, str) and not is_file(source) and ("\n" in source or shape_like(source) or _log_like(source)):
        sink = Sink("text")
        _read_lines(enumerate(source.splitlines(), 1), sink)
        return sink
    sink = Sink(os.fspath(source))
    if isinstance(source, str) and _TWO_SIZES.fullmatch(source) and not is_file(source):
        sink.bad(0, "", 'the file does not exist, and a product in words has three sizes: "256x64x512 f32 NN"')
        return sink
    try:
        with open_log(Path(source)) as file:
            _read_bytes(file, sink)
    except Unreadable as error:
        sink.bad(0, "", str(error))
    return sink


def _read_bytes(file: io.BufferedReader, sink: Sink) -> None:
    head = peek(file)
    if not head:
        sink.bad(0, "", "is empty")
    elif b"\0" in head:
        sink.bad(0, "", "is not text" + (" of UTF-8" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else ""))
    elif _JSON.match(head.decode("utf-8", "replace").lstrip("\ufeff")):
        read_trace(pieces(file, sink), sink)
    else:
        _read_lines(lines(file, sink), sink)


def _read_lines(numbered: Iterable[tuple[int, str]], sink: Sink) -> None:
    readers = [kind(sink) for kind in _READERS]
    for number, line in numbered:
        if not line.strip() or line.lstrip().startswith("#") or line.strip() in ("---", "..."):
            continue
        try:
            if not any(reader.take(number, line) for reader in readers):
                sink.bad(number, line, NOTHING[0])
        except ValueError as error:
            sink.bad(number, line, str(error))
    for reader in readers:
        reader.close()


def _log_like(text: str) -> bool:
    return any(mark in text for mark in ("function:", "hipblaslt-bench ", "TunableOp_", "][Trace]["))
