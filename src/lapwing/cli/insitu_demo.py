"""lapwing insitu demo: the Burgers example, compiled, run and compared with the published numbers."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .progress import Progress, Waiting
from .usage import UsageError, program

PACKAGE = Path(__file__).resolve().parents[1]
EXAMPLE = PACKAGE / "insitu" / "examples" / "burgers"
LIBRARY = PACKAGE / "liblapwing_insitu.so"
COMPILERS = ("g++", "c++", "clang++")
STEPS = 2001
_COLUMNS = 94  # of a command's line, without the "$ " before it and the " \\" behind it
# the value that the original prints after its last step, and the singular values of its history
VALUE = "0.0733873"
SIGMA = (471.259287, 104.637607, 26.8645742, 8.45897393)
_NINE_DIGITS = 2e-9  # relative: half a unit of the ninth digit, and a margin for the streamed values


def add_parser(commands: argparse._SubParsersAction) -> None:
    text = "build and run the Burgers example, and compare it with the published numbers"
    parser = commands.add_parser("demo", help=text, description=text.capitalize() + ". Takes a few seconds.")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="work in this new folder (default: a temporary one; pictures are left here)"
    )
    parser.add_argument("--no-show", action="store_true", help="do not open the pictures on the screen")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    folder = _folder(options.keep)
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    print(f"Burgers' equation, {STEPS} steps, analysed while it runs\nfolder: {folder}\n", flush=True)
    command = _compiled(folder) or _in_python(folder)
    print(f"\n$ {_shown(command)}", flush=True)
    code, output = _stream(command, folder)
    right = _compare(code, output)
    _pictures(folder / "insitu", output, show=not options.no_show, leave=options.keep is None)
    print(f"\nTo see the live view of this run: {program()} insitu watch {_shown([folder / 'insitu'])} [--web]")
    return 0 if right else 1


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="lapwing-burgers-"))
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep {keep}: it exists already\nhint: choose a new or empty folder")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


# ------------------------------------------------------------------------------------------------------ a compiled program


def _compiled(folder: Path) -> list[Any] | None:
    """Compile the C++ solver and return its command; None, with the reason printed, if that fails."""
    compiler = shlex.split(os.environ.get("CXX", "")) or [next((c for c in COMPILERS if shutil.which(c)), "")]
    reason = _obstacle(compiler[0])
    if not reason:
        flags = ["-std=c++17", "-O3", "-ffp-contract=off", "burgers.cpp", "-o", "burgers"]
        library = [f"-I{PACKAGE / 'insitu' / 'include'}", f"-L{PACKAGE}", f"-Wl,-rpath,{PACKAGE}", "-llapwing_insitu"]
        command = [*compiler, *flags, *library]
        print(f"$ {_shown(command)}", flush=True)
        with Waiting("compiling"):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode == 0:
            return [folder / "burgers"]
        reason = f"the compiler failed:\n{done.stderr.strip()}"
    print(f"The C++ solver cannot be used: {reason}")
    return None


def _obstacle(compiler: str) -> str:
    """Why the C++ solver cannot be built or run here, with a hint; empty if it can."""
    if not compiler or not shutil.which(compiler):
        return "there is no C++ compiler\nhint: install g++, or set CXX to a compiler"
    if not LIBRARY.exists():
        return (
            f"{LIBRARY.name} is missing: lapwing was installed without a C++ compiler"
            "\nhint: reinstall lapwing, now that there is a compiler"
        )
    if not shared_python():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"this Python has no shared libpython{version}.so to load into a solver"
            f"\nhint: install it (Debian: libpython{version}), or use a Python that was built with --enable-shared"
        )
    return ""


def shared_python() -> Path | None:
    """The libpython of this interpreter; the C library searches the same folders."""
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}.so"
    folders = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL")]
    folders += [f"{prefix}/{lib}" for prefix in (sys.base_prefix, sys.base_exec_prefix) for lib in ("lib", "lib64")]
    candidates = (Path(folder, name + end) for folder in folders if folder for end in (".1.0", ""))
    return next((path for path in candidates if path.is_file()), None)


def _in_python(folder: Path) -> list[Any]:
    name = "burgers_jax.py" if find_spec("jax") else "burgers_numpy.py"
    print(f"The same solver in {'JAX' if 'jax' in name else 'NumPy'} runs instead.")
    return [sys.executable, folder / name]


# ----------------------------------------------------------------------------------------------------------------- the run


def _stream(command: list[Any], folder: Path) -> tuple[int, str]:
    """Run the solver and show its output line by line, with a progress bar if there is a terminal."""
    words = [str(word) for word in command]
    lines = []
    with subprocess.Popen(
        words, cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as started:
        assert started.stdout
        bar = _Bar(folder / "insitu")
        try:
            for line in started.stdout:
                lines.append(line)
                bar.line(line)
        except BaseException:
            started.terminate()
            raise
        finally:
            bar.close()
    return started.returncode, "".join(lines)


class _Bar:
    """A progress bar below the output of the run; the number of steps comes from its live view."""

    def __init__(self, folder: Path) -> None:
        from ..insitu.live.reader import Reader

        self._reader = Reader(folder)
        self._progress = Progress(STEPS)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True) if self._progress.terminal else None
        if self._thread:
            self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            step = self._reader.read().status.get("steps", 0)
            with self._lock:
                self._progress.done = max(min(int(step), STEPS) - 1, 0)
                self._progress.step("steps")

    def line(self, text: str) -> None:
        with self._lock:
            self._progress.clear()
            print(text, end="", flush=True)

    def close(self) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()
            self._progress.clear()


def _environment() -> dict[str, str]:
    """The environment of the solver: this interpreter, the live view on, and none of the user's own in situ settings."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("LAPWING_INSITU")}
    known |= {"LAPWING_INSITU_PYTHON": sys.executable, "LAPWING_INSITU_LIVE": "1", "PYTHONUNBUFFERED": "1"}
    known.setdefault("JAX_PLATFORMS", "cpu")
    if str(PACKAGE.parent) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        known["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE.parent), known.get("PYTHONPATH")]))
    return known


# ------------------------------------------------------------------------------------------------------------- the results


def _compare(code: int, output: str) -> bool:
    print("\nCompared with the published run:")
    good = code == 0
    if code:
        print(f"  WRONG   the solver ended with status {code}")
    value = next(iter(re.findall(r"solution array: *(\S+)", output)), "nothing")
    good &= _line("u[10]", value, VALUE, value == VALUE)
    sigma = next(iter(re.findall(r"singular values (.*)", output)), "").split()
    for i, wanted in enumerate(SIGMA):
        printed = sigma[i] if i < len(sigma) else "nothing"
        good &= _line(f"sigma {i + 1}", printed, f"{wanted:.9g}", _close(printed, wanted))
    errors = re.findall(r"t = ([\d.]+): off the exact solution by ([\d.e+-]+)", output)
    if errors:
        last = errors[-1]
        print(f"  error against the exact (Cole-Hopf) solution at t = {last[0]}: {last[1]} (a shock on a coarse mesh)")
    return good


def _line(name: str, value: str, wanted: str, good: bool) -> bool:
    print(f"  {'right' if good else 'WRONG'}   {name:<8} {value:<12} published {wanted}")
    return good


def _close(printed: str, wanted: float) -> bool:
    try:
        return abs(float(printed) - wanted) <= _NINE_DIGITS * wanted
    except ValueError:
        return False


def _pictures(folder: Path, output: str, show: bool, leave: bool) -> None:
    pictures = sorted(folder.glob("*.png"))
    if leave:  # the run was in a temporary folder
        pictures = [_copied(path) for path in pictures]
    if not pictures:
        hint = " (pip install matplotlib)" if "matplotlib" in output else ""
        print(f"\nThere are no pictures{hint}")
        return
    print("\nPictures:", *(f"  {_near(path)}" for path in pictures), sep="\n")
    viewer = shutil.which("xdg-open")
    if show and viewer and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        for path in pictures:
            subprocess.Popen([viewer, str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _copied(path: Path) -> Path:
    """Copy a picture to the current folder, where it is found again; if that cannot be written, it stays where it is."""
    try:
        return Path(shutil.copyfile(path, Path.cwd() / f"lapwing-insitu-{path.name}"))
    except OSError:
        return path


def _near(path: Path) -> str:
    return f"./{path.name}" if path.parent == Path.cwd() else str(path)


def _shown(command: list[Any]) -> str:
    """The command as a shell takes it, in lines of at most 100 columns where its words allow it."""
    words = [shlex.quote(str(word)) for word in command]
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > _COLUMNS:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)
