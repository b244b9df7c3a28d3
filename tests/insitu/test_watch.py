"""lapwing insitu watch: the terminal, the page and who may read it; a real browser where there is one."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lapwing import insitu
from lapwing.__main__ import main
from lapwing.insitu.live import terminal, words
from lapwing.insitu.live.reader import Reader, View
from lapwing.insitu.live.server import Handler, Server

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
SPITE = '<script>alert(1)</script>"\x1b[2J'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a run that has ended, with modes of one and two dimensions, an error and a picture."""
    out = tmp_path_factory.mktemp("run")
    x = np.linspace(0, 2 * np.pi, 300)

    @insitu.on_step
    def spiteful(ctx, u):
        raise ValueError(SPITE)

    analyses = [insitu.POD("u", rank=4), insitu.POD("v", rank=3), insitu.Spectrum("u"), spiteful]
    with insitu.Hub(analyses, output=out, live=True, quiet=True) as hub:
        hub._live._period = hub._live._pause = 0.05
        for n in range(150):
            v = np.outer(np.sin(x[::5] - 0.1 * n), np.cos(x[::6] + 0.2 * n))
            hub.step(n, 0.01 * n, u=np.sin(x - 0.1 * n) + 0.1 * np.cos(3 * x + n), v=v)
            time.sleep(0.002)
    (out / "Field.png").write_bytes(PNG)
    return out


# `python -m lapwing`, but heeding Ctrl-C: a shell that puts the tests into the background has all of them ignore it
LAPWING = [
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from lapwing.__main__ import main; sys.exit(main())",
]


def status_file(folder: Path, **values: object) -> Path:
    now = time.time()
    made = {"format": 1, "state": "running", "heartbeat": now, "beat": 1, "pid": 1, "step": 5, "time": 0.5, "period": 0.5}
    folder.mkdir(exist_ok=True)
    (folder / "status.json").write_text(json.dumps(made | values))
    return folder


# -------------------------------------------------------------------------------------------------------------- the reader


def test_nothing_there_yet_is_said(tmp_path):
    look = Reader(tmp_path / "later")
    assert look.read().state == "waiting" and "there is no folder" in look.read().message
    (tmp_path / "later").mkdir()
    assert look.read().state == "waiting" and "live=True or LAPWING_INSITU_LIVE=1" in look.read().message
    status_file(tmp_path / "later")
    assert look.read().state == "running"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 99}', "[" * 100_000, "\xff"])
def test_a_strange_file_is_no_crash(tmp_path, text):
    (tmp_path / "status.json").write_text(text, encoding="latin-1")
    view = Reader(tmp_path).read()
    assert view.state == "waiting" and ("cannot be read" in view.message or "another version" in view.message)


def test_heartbeat_by_the_clock_first_and_by_change_later(tmp_path):
    status_file(tmp_path, heartbeat=time.time() - 60)
    look = Reader(tmp_path)
    view = look.read()
    assert view.state == "silent" and 59 < view.age < 70 and "no sign of life for 6" in view.message
    status_file(tmp_path, heartbeat=time.time() - 59, beat=2)  # the other machine's clock is late, but it goes
    assert look.read().state == "running"
    look._seen -= 30
    assert look.read().state == "silent"
    status_file(tmp_path, heartbeat=time.time() + 1e6, beat=3)
    assert Reader(tmp_path).read().state == "running", "a clock that is ahead"
    status_file(tmp_path, state="finished", heartbeat=1.0)
    assert Reader(tmp_path).read().state == "finished"
    status_file(tmp_path, heartbeat=time.time() - 60, period=40)
    assert Reader(tmp_path).read().state == "running", "a run that is asked rarely"


@pytest.mark.parametrize(
    "values",
    [
        {"sigma": "x", "analyses": [1], "history": 3, "drawings": {"a": 1}, "energy": "high", "step": None, "time": []},
        {"sigma": [None, "a", 1e308, -1, 0], "analyses": {"a": 3, "b": {"ms": "x", "errors": None, "pictures": 3}}},
        {"drawings": [3, {"kind": "lines"}, {"kind": "lines", "lines": [[None], 3], "labels": 3}], "last_error": 7, "size": 2},
    ],
)
def test_strange_values_are_shown_somehow(tmp_path, values):
    view = Reader(status_file(tmp_path, **values)).read()
    assert "running" in terminal.render(view)
    with serving(tmp_path) as server:
        assert get(server, "/")[0] == 200 and get(server, "/state.json")[0] == 200


# ------------------------------------------------------------------------------------------------------------- the terminal


def test_once(folder, capsys):
    assert main(["insitu", "watch", str(folder), "--once"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "finished",
        "step",
        "149",
        "energy captured",
        "POD 2",
        "singular values",
        "mode 1",
        "last error",
        "Field.png",
    ):
        assert expected in text
    assert "\x1b" not in text and "switched off: ValueError" in text
    assert main(["insitu", "watch", str(folder / "nosuch"), "--once"]) == 1
    assert "there is no folder" in capsys.readouterr().out


def test_lines_where_there_is_no_terminal(tmp_path, capsys):
    out = tmp_path / "out"

    def later():
        for change in (lambda: out.mkdir(), lambda: status_file(out), lambda: status_file(out, step=6, beat=2, errors=1)):
            time.sleep(0.25)
            change()
        time.sleep(0.25)
        status_file(out, state="stopped", message="it is enough", beat=3)

    thread = threading.Thread(target=later)
    thread.start()
    assert main(["insitu", "watch", str(out), "--interval", "0.05"]) == 0
    thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("waiting: there is no folder") and lines[1].startswith("waiting: no status.json")
    assert lines[2].startswith("running: step 5") and lines[3].startswith("running: step 6") and "errors 1" in lines[3]
    assert "stopped" in lines[4] and "it is enough" in lines[5]


def test_a_failed_run_ends_with_1(tmp_path, capsys):
    status_file(tmp_path, state="failed", message="broken")
    assert main(["insitu", "watch", str(tmp_path)]) == 1


def test_a_real_terminal_is_redrawn_and_left_as_it_was(folder, tmp_path):
    status_file(tmp_path, heartbeat=time.time() + 60, period=30)  # on a busy machine the viewer takes its time to start
    parent, child = pty.openpty()
    command = [*LAPWING, "insitu", "watch", str(tmp_path), "--interval", "0.1"]
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("NO_COLOR", None)
    started = subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=environment)
    os.close(child)
    seen = b""

    def wait_for(text: bytes, limit: float = 30.0) -> None:
        nonlocal seen
        end = time.monotonic() + limit
        while text not in seen and time.monotonic() < end:
            if select.select([parent], [], [], 0.1)[0]:
                try:
                    seen += os.read(parent, 65536)
                except OSError:
                    break
        assert text in seen, seen

    try:
        wait_for(b"\x1b[32mrunning")
        wait_for(b"A\r\x1b[1mlapwing insitu")  # back to the top, and once more
        started.send_signal(signal.SIGINT)
        wait_for(b"\x1b[?25h")
        assert started.wait(20) == 0 and b"Traceback" not in seen
    finally:
        started.kill()
        started.wait()
        os.close(parent)


def test_a_terminal_obeys_no_texts_of_the_run(folder):
    view = Reader(folder).read()
    assert "\x1b" in view.status["last_error"]
    text = terminal.render(view, io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert "\x1b" not in text and "alert(1)" in text
    plain = terminal.render(view, io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert plain.isascii() and "#####" in plain


@pytest.mark.parametrize("columns", [20, 80, 300])
def test_no_line_is_too_wide(folder, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    view = Reader(folder).read()
    body = terminal.render(View(Path("out"), view.state, view.message, view.age, view.status)).splitlines()
    assert max(map(len, body)) <= max(min(columns, 120), 40)


def test_energy_has_the_digits_that_tell():
    shown = [words.percent(x) for x in (1.0, 0.0, 0.5, 0.9876, 0.999877, 1 - 1.23e-9, 1 - 1e-15)]
    assert shown == ["100.00 %", "0.00 %", "50.00 %", "98.76 %", "99.988 %", "99.99999988 %", "> 99.99999999 %"]


# ----------------------------------------------------------------------------------------------------------------- the page


class serving:
    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)

    def __enter__(self) -> Server:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        return self.server

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    result = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return result


def test_the_page_has_the_numbers_without_javascript(folder):
    with serving(folder) as server:
        status, headers, data = get(server, "/")
        text = data.decode()
        assert status == 200 and headers["content-type"].startswith("text/html")
        for expected in ("finished", "149", "energy captured", "POD", "spiteful", "Field.png", "<noscript>"):
            assert expected in text
        assert "alert(1)" in text and "<script>alert" not in text and "\x1b" not in text
        assert "default-src 'none'" in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"
        # nothing comes from elsewhere
        for path in ("/", "/page.js", "/page.css"):
            assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", get(server, path)[2])
        state = json.loads(get(server, "/state.json")[2])
        assert state["state"] == "finished" and len(state["sigma"]) == 4 and "<script>" not in json.dumps(state["fragments"])
        assert [d["kind"] for d in state["drawings"]] == ["lines", "images"] and list(state["power"]) == ["Spectrum"]
        assert get(server, "/", "HEAD")[2] == b"" and get(server, "/", "POST")[0] == 501


def test_only_known_files_are_given(folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    (tmp_path / "secret.png").write_bytes(PNG + b"secret")
    (out / "link.png").symlink_to(tmp_path / "secret.png")
    (out / "text.png").write_text("no picture")
    (out / ".hidden.png").write_bytes(PNG)
    (out / "folder.png").mkdir()
    os.mkfifo(out / "pipe.png")
    with serving(out) as server:
        status, headers, data = get(server, "/pictures/Field.png?7")
        assert (status, headers["content-type"], data) == (200, "image/png", PNG)
        shown = json.loads(get(server, "/state.json")[2])
        assert re.findall('alt="([^"]+)"', shown["fragments"]["pictures"]) == ["Field.png", "text.png"]
        for path in (
            *(
                "/pictures/link.png",
                "/pictures/text.png",
                "/pictures/.hidden.png",
                "/pictures/folder.png",
                "/pictures/pipe.png",
            ),
            *("/pictures/../secret.png", "/pictures/..%2fsecret.png", "/pictures/%2e%2e/secret.png", "/pictures//etc/passwd"),
            *(
                "/pictures/",
                "/status.json",
                "/insitu-rank0.log",
                "/../secret.png",
                "/page.html",
                "/server.py",
                "/pictures/a\x00.png",
            ),
            *("//evil.example/", "/pictures/Field.png%00", "/pictures/Field.png%0a", "http://evil.example/pictures/x.png"),
        ):
            connection = socket.create_connection(server.server_address, 10)
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            answer = b"".join(iter(lambda c=connection: c.recv(65536), b""))
            connection.close()
            assert answer.split()[1] in (b"404", b"400"), (path, answer[:80])
            assert b"secret" not in answer and b"root:" not in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:80"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:1234"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": ""}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "evil.example:127.0.0.1"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
    ],
    ids=str,
)
def test_only_loopback_names_are_answered(folder, headers, status):
    with serving(folder) as server:
        for path in ("/", "/state.json", "/pictures/Field.png", "/page.js"):
            found, sent, data = get(server, path, **headers)
            assert found == status and (status == 200 or b"localhost only" in data or b"its own requests only" in data)
            assert "access-control-allow-origin" not in sent


def exchange(server, request: bytes) -> bytes:
    with socket.create_connection(server.server_address, timeout=10) as client:
        client.sendall(request)
        return client.recv(1 << 16)


def test_addresses_that_cannot_be_parsed(folder, capsys):
    with serving(folder) as server:
        for target in (b"http://[", b"http://[x]/", b"http://localhost/state.json", b"/%ff", b"?"):
            answer = exchange(server, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400" if b"[" in target else b"HTTP/1.1 "), answer
        assert exchange(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\n\r\n").startswith(b"HTTP/1.1 403")
    assert not capsys.readouterr().err


def until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.slow
def test_many_idle_clients_hold_few_threads(folder, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 0.4)
    before = threading.active_count()
    with serving(folder) as server:
        with contextlib.ExitStack() as clients:
            for _ in range(100):
                clients.enter_context(socket.create_connection(server.server_address))
                assert threading.active_count() <= before + 34
            until(lambda: threading.active_count() <= before + 1)
            assert get(server, "/state.json")[0] == 200, "the idle ones were closed"
        until(lambda: threading.active_count() <= before + 1)
        while server._free.acquire(blocking=False):
            pass
        assert get(server, "/state.json")[0] == 503, "all places are taken"


def test_numbers_that_are_not_json(folder, tmp_path):
    """A file written by something else: the page must still be able to read the answer."""
    text = (folder / "status.json").read_text()
    strange = ', "sigma": [NaN, 1e999, 2.5], "history": {"step": [-Infinity, 3]}}'
    (tmp_path / "status.json").write_text(text[:-1] + strange)
    assert Reader(tmp_path).read().status["sigma"] == [None, None, 2.5]
    with serving(tmp_path) as server:
        status, _, data = get(server, "/state.json")
    found = json.loads(data, parse_constant=lambda name: pytest.fail(name))
    assert status == 200 and found["sigma"] == [2.5] and found["history"]["step"] == [None, 3]


def test_it_listens_on_loopback_only(folder):
    with serving(folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        found = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port = f":{server.server_address[1]:04X}"
        assert next(a for a in found if a.endswith(port)).startswith("0100007F")


def test_several_viewers_at_once(folder):
    with serving(folder) as server:
        idle = [socket.create_connection(server.server_address, 10) for _ in range(5)]  # say nothing
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(get(server, "/state.json")[0])) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert answers == [200] * 20
        for connection in idle:
            connection.close()


def test_ctrl_c_ends_the_page(tmp_path):
    command = [*LAPWING, "insitu", "watch", str(tmp_path / "later"), "--web"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        line = started.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert b"there is no folder" in connection.getresponse().read()
        connection.close()
        started.send_signal(signal.SIGINT)
        rest, _ = started.communicate(timeout=20)
        assert started.returncode == 0 and "Traceback" not in rest
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def test_ctrl_c_while_a_request_starts_is_not_lost(folder, monkeypatch):
    def answered_then_interrupted(server, request, client_address):
        server.process_request_thread(request, client_address)
        raise KeyboardInterrupt

    monkeypatch.setattr(socketserver.ThreadingMixIn, "process_request", answered_then_interrupted)
    with Server(folder) as server, socket.create_connection(server.server_address, 10) as viewer:
        viewer.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(KeyboardInterrupt):
            server.handle_request()


def test_a_port_that_is_taken_is_one_line(folder):
    with serving(folder) as server:
        command = [
            sys.executable,
            "-m",
            "lapwing",
            "insitu",
            "watch",
            str(folder),
            "--web",
            "--port",
            str(server.server_address[1]),
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1 and "in use" in done.stderr and len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["watch"], "FOLDER"),
        (["watch", "out", "--port", "80"], "--port needs --web"),
        (["watch", "out", "--web", "--port", "99999"], "--port 99999 is not between 0 and 65535"),
        (["watch", "out", "--web", "--once"], "--once and --web cannot be combined"),
        (["watch", "out", "--interval", "0"], "--interval 0 is not between"),
        (["watch", __file__], "is not a folder"),
        (["demo", "--keep", str(Path(__file__).parent)], "it exists already"),
        ([], "a command is missing"),
        (["nosuch"], "there is no command 'nosuch'"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert main(["insitu", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("lapwing: ") and message in shown.err.splitlines()[0]


def test_flags_for_builds_are_those_of_the_module(capsys):
    from lapwing.insitu.__main__ import main as flags

    assert main(["insitu", "--cflags", "--cmakedir"]) == 0
    found = capsys.readouterr().out
    assert flags(["--cflags", "--cmakedir"]) == 0 and capsys.readouterr().out == found and found.startswith("-I")
    assert flags(["watch", "nosuch-folder", "--once"]) == 1 and "there is no folder" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------------- a browser


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("there is no chromium (Debian: apt-get install chromium)")
    return found


def chromium(profile: Path, *arguments: str) -> str:
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += [f"--user-data-dir={profile}", "--virtual-time-budget=4000", "--enable-logging=stderr", "--v=0"]
    done = subprocess.run([browser(), *flags, *arguments], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    refused = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not refused, refused
    return done.stdout


def test_in_a_browser(folder, tmp_path):
    """The page asks again and again, and draws modes, spectrum, times and pictures."""
    browser()
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    (out / "Field.png").write_bytes(real_png())
    asked = []
    with serving(out) as server:
        view = server.view
        server.view = lambda: (asked.append(1), view())[1]
        dom = chromium(tmp_path / "profile", "--dump-dom", server.url)
        shot = tmp_path / "shot.png"
        chromium(tmp_path / "profile", f"--screenshot={shot}", "--window-size=1200,1600", server.url)
    assert len(asked) >= 5, "polled"
    drawn = dom.split('id="drawings"')[1].split('id="charts"')[0]
    assert "modes of u (POD)" in drawn and drawn.count('class="curve') == 4
    assert drawn.count("<canvas") == 6 and drawn.count('class="bar"') == 3, "each picture has its colour bar"
    charts = dom.split('id="charts"')[1].split('id="analyses"')[0]
    assert charts.count("<rect") == 4, "a bar for each singular value"
    for title in ("singular values", "milliseconds per step", "power spectrum (Spectrum)"):
        assert title in charts
    assert 'class="pill finished"' in dom and re.search(r'<img src="/pictures/Field.png\?\d+"', dom)
    assert "NaN" not in drawn + charts and "<script>alert" not in dom and "&lt;script&gt;alert(1)" in dom
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 30_000


def test_in_a_browser_while_it_runs_and_when_it_is_gone(tmp_path):
    browser()
    status_file(
        tmp_path / "out", sigma=[2.0, 1.0], energy=0.5, history={"step": [], "solver_ms": [], "analysis_ms": [], "energy": []}
    )
    steps = iter(range(5, 1000))
    with serving(tmp_path / "out") as server:
        view = server.view

        def moving() -> View:
            step = next(steps)
            status_file(
                tmp_path / "out", step=step, beat=step, sigma=[2.0, 1.0 / step], analyses={"a": {"ms": 1.0, "errors": 0}}
            )
            return view()

        server.view = moving
        dom = chromium(tmp_path / "profile", "--dump-dom", server.url)
    shown = int(re.search(r"<dt>step</dt><dd>(\d+)</dd>", dom)[1])
    assert shown >= 7, "the page has moved on"
    assert 'class="pill running"' in dom and f"2: {1 / shown:.9g}"[:8] in dom


def real_png() -> bytes:
    """One red pixel."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return PNG[:8] + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00")) + chunk(b"IEND", b"")
