"""Write the YAML that AMD's tools need, without a YAML library."""

from __future__ import annotations

import re
from typing import Any

# words that YAML would read as another type
_OTHER = re.compile(r"(?i)^(true|false|null|yes|no|on|off|~|[-+.\d].*|)$")
_PLAIN = re.compile(r"[A-Za-z_][\w ./:-]*$")


def write(value: Any, indent: int = 0) -> str:
    """Block style; lists of numbers and words are on one line."""
    return "\n".join(_lines(value, indent)) + "\n"


def flow(value: Any) -> str:
    """Flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(value)


def _lines(value: Any, indent: int) -> list[str]:
    pad = " " * indent
    lines: list[str] = []
    if isinstance(value, dict):
        for key, item in value.items():
            if _short(item):
                lines.append(f"{pad}{_scalar(key)}: {flow(item)}")
            else:
                # a list in a dict begins at the column of the dict, as in AMD's files
                inner = _lines(item, indent if isinstance(item, (list, tuple)) else indent + 2)
                lines += [f"{pad}{_scalar(key)}:", *inner]
    else:
        for item in value:
            if _short(item):
                lines.append(f"{pad}- {flow(item)}")
            else:
                first, *rest = _lines(item, indent + 2)
                lines += [f"{pad}- {first.lstrip()}", *rest]
    return lines


def _short(value: Any) -> bool:
    if isinstance(value, dict):
        return not value
    if isinstance(value, (list, tuple)):
        return all(not isinstance(x, (dict, list, tuple)) for x in value)
    return True


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if "\n" in text or "\0" in text:
        raise ValueError(f"a word in YAML has a line break: {text!r}")
    return text if _PLAIN.match(text) and not _OTHER.match(text) and ": " not in text else "'" + text.replace("'", "''") + "'"
