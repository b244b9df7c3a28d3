"""As much YAML as AMD's tools need, written without a YAML library."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["flow", "write"]

# words that a YAML reader would take for something else
_OTHER = re.compile(r"(?i)^(true|false|null|yes|no|on|off|~|[-+.\d].*|)$")
_PLAIN = re.compile(r"[A-Za-z_][\w ./:-]*$")


def write(value: Any, indent: int = 0) -> str:
    """Block style; lists that hold only numbers and words stay on one line."""
    return "\n".join(_lines(value, indent)) + "\n"


def flow(value: Any) -> str:
    """On one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


def _lines(value: Any, indent: int) -> list[str]:
    pad = " " * indent
    made: list[str] = []
    if isinstance(value, dict):
        for key, item in value.items():
            if _short(item):
                made.append(f"{pad}{_scalar(key)}: {flow(item)}")
            else:
                # a list in a dict may stand at the dict's own column, as AMD's files have it
                inner = _lines(item, indent if isinstance(item, (list, tuple)) else indent + 2)
                made += [f"{pad}{_scalar(key)}:", *inner]
    else:
        for item in value:
            if _short(item):
                made.append(f"{pad}- {flow(item)}")
            else:
                first, *rest = _lines(item, indent + 2)
                made += [f"{pad}- {first.lstrip()}", *rest]
    return made


def _short(value: Any) -> bool:
    if isinstance(value, dict):
        return not value
    if isinstance(value, (list, tuple)):
        return all(not isinstance(x, (dict, list, tuple)) for x in value)
    return True


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    if "\n" in text or "\0" in text:
        raise ValueError(f"a word in YAML has a line break: {text!r}")
    return text if _PLAIN.match(text) and not _OTHER.match(text) and ": " not in text else "'" + text.replace("'", "''") + "'"
