"""A run as a JSON file: everything that was measured, and where."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from .case import Report, Row, Timing
from .check import LIMIT
from .environment import environment
from .peers import peer_text

SCHEMA = 1


def make_report(rows: Sequence[Row], *, bandwidth: float | None = None, notes: Sequence[str] = (), command: str = "") -> Report:
    return Report(
        command=command or _command(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(),
        rows=tuple(rows),
        bandwidth=bandwidth,
        notes=tuple(notes),
    )


def _command() -> str:
    """The command as typed, without absolute folders."""
    return shlex.join(Path(a).name if Path(a).is_absolute() else a for a in sys.argv)


def write_report(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(report), indent=1) + "\n")


def as_json(report: Report) -> dict[str, Any]:
    where = asdict(report.environment)
    where["versions"] = dict(report.environment.versions)
    texts: dict[str, dict[str, None]] = {}  # each library has one call per operation
    for row in report.rows:
        for t in row.peers:
            texts.setdefault(t.name, {})[peer_text(t.name, row.case)] = None
    return {
        "schema": SCHEMA,
        "kind": "lapwing bench",
        "command": report.command,
        "date": report.date,
        "environment": where,
        "copy_bytes_per_second": report.bandwidth,
        "peer_calls": {name: "; ".join(calls) for name, calls in sorted(texts.items())},
        "notes": list(report.notes),
        "rows": [_row(row) for row in report.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **asdict(row.case),
        "engine": row.engine,
        "checks": {
            name: {
                "ok": c.ok,
                "residual": c.residual if isfinite(c.residual) else None,
                "allowed": LIMIT,
                "estimated": c.estimated,
                **({} if c.orthogonality is None else {"orthogonality": c.orthogonality}),
            }
            for name, c in row.checks
        },
        "lapwing": [_timing(t) for t in row.ours],
        "peers": [_timing(t) for t in row.peers],
        "absent": {a.name: a.reason for a in row.absent},
        "floor_seconds": row.floor,
        "gflops": row.gflops,
        "gbytes_per_second": row.gbytes,
        "best_peer": row.best_peer.name if row.best_peer else None,
        "speedup": row.speedup,
        "over_floor": row.over_floor,
    }


def _timing(timing: Timing) -> dict[str, Any]:
    return {name: getattr(timing, name) for name in ("name", "minimum", "median", "seconds", "waited")}
