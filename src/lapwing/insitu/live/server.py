"""The live view as a local web page.

It listens on 127.0.0.1 only, answers GET for a fixed list of names, and only if the request names a loopback host: a page of
another site whose name points to this address (DNS rebinding) is refused.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from functools import lru_cache
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from . import words
from .reader import Reader, View, open_picture

_CLIENTS = 32  # connections served at once; each one needs a thread
_IDLE = 10  # seconds after which a silent connection is closed; the page asks every second
# any port: the page may be reached through a tunnel
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_FILES = {"/page.js": "text/javascript; charset=utf-8", "/page.css": "text/css; charset=utf-8"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 10\r\n\r\n"


class Server(ThreadingHTTPServer):
    """Serves the view of one folder; port 0 chooses a free port."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self._reader = Reader(folder)
        self._lock = Lock()  # several viewers share one reader
        self._free = BoundedSemaphore(_CLIENTS)
        super().__init__(("127.0.0.1", port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(1)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except Exception:  # no more threads; Ctrl-C here is no Exception, and the thread then releases its own place
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def view(self) -> View:
        with self._lock:
            return self._reader.read()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a viewer that disconnects during an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def serve(folder: Path, port: int = 0) -> int:
    """Serve until Ctrl-C."""
    with Server(folder, port) as server:
        print(f"{folder} is shown at {server.url}  (stop with Ctrl-C)", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nstopped", flush=True)
    return 0


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "lapwing"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = _IDLE

    def do_GET(self) -> None:
        refused = self._refused()
        if refused:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", refused.encode())
            return
        try:
            path = urlsplit(self.path).path
        except ValueError:  # for example "http://["
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain; charset=utf-8", b"this is not a valid address\n")
            return
        if path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page(self.server.view()).encode())
        elif path in _FILES:
            self._answer(HTTPStatus.OK, _FILES[path], own_file(path[1:]))
        elif path == "/state.json":
            self._answer(HTTPStatus.OK, "application/json", state(self.server.view()))
        elif path.startswith("/pictures/") and (data := open_picture(self.server.folder, unquote(path[len("/pictures/") :]))):
            self._answer(HTTPStatus.OK, "image/png", data)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"there is no such page\n")

    do_HEAD = do_GET

    def _refused(self) -> str:
        host, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        if len(host) != 1 or not _LOOPBACK.fullmatch(host[0].strip()):
            return "this page answers requests to localhost only\n"
        if origin is not None and not _LOOPBACK.fullmatch(origin.partition("://")[2]):
            return "this page answers its own requests only\n"
        return ""

    def _answer(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the page sends a request every second."""


@lru_cache
def own_file(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


def page(view: View) -> str:
    """The whole page. The numbers are part of it, so they can be read without JavaScript."""
    text = own_file("page.html").decode()
    parts = fragments(view) | {"folder": escape(str(view.folder))}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)


def state(view: View) -> bytes:
    """The data that the page requests every second: numbers and pictures as HTML, and arrays to draw."""
    s = view.status
    known = s.get("analyses")
    powers = {
        str(name): words.numbers(values.get("power"))
        for name, values in (known.items() if isinstance(known, dict) else ())
        if isinstance(values, dict) and values.get("power")
    }
    content = {
        "state": view.state,
        "fragments": fragments(view),
        "sigma": words.numbers(s.get("sigma")),
        "power": powers,
        "history": s.get("history"),
        "drawings": s.get("drawings"),
    }
    return json.dumps(content, allow_nan=False).encode()


def fragments(view: View) -> dict[str, str]:
    """Pieces of HTML by the id of the element that shows them."""
    said, message = words.headline(view)
    step = next((f"step {value}" for name, value in words.facts(view) if name == "step"), "")
    return {
        "state": f'<span class="pill {escape(view.state)}">{escape(said)}</span> <span class="muted">{escape(step)}</span>',
        "message": escape(message),
        "facts": "".join(
            f"<div{_alarm(name, value)}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in words.facts(view)
        ),
        "analyses": _table(view),
        "error": escape(words.errors(view)),
        "pictures": _pictures(view),
    }


def _alarm(name: str, value: str) -> str:
    return ' class="alarm"' if name == "errors" and value not in ("0", "-") else ""


def _table(view: View) -> str:
    rows = words.analyses(view)
    if not rows:
        return ""
    lines = []
    for row in rows:
        share = f'<meter max="1" value="{row.share:.4f}"></meter> {100 * row.share:.1f} %'
        cells = [f'<th scope="row">{escape(row.name)}</th>', f'<td class="number">{escape(row.ms)}</td>', f"<td>{share}</td>"]
        cells += [f'<td class="number">{row.errors}</td>', f"<td>{escape(row.note)}</td>"]
        lines.append(f"<tr{' class=alarm' if row.errors else ''}>{''.join(cells)}</tr>")
    names = (("analysis", ""), ("per step", " class=number"), ("share of the time", ""), ("errors", " class=number"), ("", ""))
    head = "".join(f"<th{kind}>{name}</th>" for name, kind in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _pictures(view: View) -> str:
    return "".join(
        f'<figure><a href="/pictures/{escape(p.name)}"><img src="/pictures/{escape(p.name)}?{p.version}"'
        f' alt="{escape(p.name)}"></a><figcaption>{escape(p.name)}</figcaption></figure>'
        for p in view.pictures
    )
