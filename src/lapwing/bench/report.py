"""A run as a JSON file, written and read: everything that was measured, and where."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any

from .case import Absent, Case, Report, Row, Timing
from .check import LIMIT, Check
from .environment import Environment, Gpu, environment
from .peers import peer_text

SCHEMA = 1


def make_report(
    rows: Sequence[Row],
    *,
    bandwidth: float | None = None,
    notes: Sequence[str] = (),
    command: str = "",
    left_out: Sequence[str] = (),
) -> Report:
    texts: dict[str, dict[str, None]] = {}  # each library has one call per operation
    for row in rows:
        for t in row.peers:
            texts.setdefault(t.name, {})[peer_text(t.name, row.case)] = None
    return Report(
        command=command or command_in_words(sys.argv),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(),
        rows=tuple(rows),
        bandwidth=bandwidth,
        notes=tuple(notes),
        peer_calls=tuple((name, "; ".join(calls)) for name, calls in sorted(texts.items())),
        left_out=tuple(left_out),
    )


def command_in_words(command: Sequence[str]) -> str:
    """The command as typed, without absolute folders."""
    return shlex.join(Path(a).name if Path(a).is_absolute() else a for a in command)


def write_report(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(report), indent=1) + "\n")


def as_json(report: Report) -> dict[str, Any]:
    where = asdict(report.environment)
    where["versions"] = dict(report.environment.versions)
    return {
        "schema": SCHEMA,
        "kind": "lapwing bench",
        "command": report.command,
        "date": report.date,
        "environment": where,
        "copy_bytes_per_second": report.bandwidth,
        "peer_calls": dict(report.peer_calls),
        "notes": list(report.notes),
        "left_out": list(report.left_out),
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
                **({} if c.ok else {"trouble": str(c)}),
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
    times = {name: getattr(timing, name) for name in ("name", "minimum", "median", "seconds", "waited")}
    return {**times, "extrapolated": True} if timing.extrapolated else times


def read_report(path: Path) -> Report:
    """The report of a file that ``write_report`` made; ValueError for any other file."""
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA or data["kind"] != "lapwing bench":
            raise ValueError(f"schema {data['schema']} of {data['kind']!r}")
        where = {**data["environment"], "versions": tuple(data["environment"]["versions"].items())}
        where["gpus"] = tuple(Gpu(**gpu) for gpu in where["gpus"])
        return Report(
            command=data["command"],
            date=data["date"],
            environment=Environment(**where),
            rows=tuple(map(_read_row, data["rows"])),
            bandwidth=data["copy_bytes_per_second"],
            notes=tuple(data["notes"]),
            peer_calls=tuple(data["peer_calls"].items()),
            left_out=tuple(data.get("left_out", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a result file of lapwing bench ({type(error).__name__}: {error})") from error


def _read_row(row: dict[str, Any]) -> Row:
    known = {f.name: row[f.name] for f in fields(Case)}
    return Row(
        case=Case(**{**known, "part": known["part"] and tuple(known["part"])}),
        engine=row["engine"],
        checks=tuple((name, _read_check(check)) for name, check in row["checks"].items()),
        ours=tuple(map(_read_timing, row["lapwing"])),
        peers=tuple(map(_read_timing, row["peers"])),
        floor=row["floor_seconds"],
        absent=tuple(Absent(*each) for each in row["absent"].items()),
    )


def _read_check(check: dict[str, Any]) -> Check:
    residual = inf if check["residual"] is None else check["residual"]
    trouble = "" if check["ok"] else check.get("trouble", "wrong answer")
    return Check(residual, True, check["estimated"], check.get("orthogonality"), trouble)


def _read_timing(timing: dict[str, Any]) -> Timing:
    return Timing(timing["name"], tuple(timing["seconds"]), tuple(timing["waited"]), timing.get("extrapolated", False))
