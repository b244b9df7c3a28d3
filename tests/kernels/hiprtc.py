"""AMD's run-time compiler without a GPU, and what its code objects say about registers.

The compiler runs in a process of its own: its LLVM and those of JAX, torch and TensorFlow do not get on in one. The process
serves all sources, since starting it takes as long as compiling a small one.
"""

import atexit
import contextlib
import ctypes
import ctypes.util
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile

NAMES = ("libhiprtc.so", "libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")


def library():
    """The library, or None where it is not installed."""
    for name in NAMES:
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(found, "hiprtcCreateProgram"):
            return found
    return None


def is_installed():
    return _ask(None)


def compile_source(text, headers, name, options):
    """(code object, what the compiler said)"""
    return _ask((text, headers, name, options))


def header():
    """What hipRTC puts before every source, as Debian's library for it has it."""
    library = ctypes.CDLL("libhiprtc-builtins.so.5")
    size = ctypes.c_uint.in_dll(library, "__hipRTC_header_size").value
    return bytes((ctypes.c_char * size).in_dll(library, "__hipRTC_header")).rstrip(b"\0").decode()


def compile_newer(source, options, architecture, lanes, folder):
    """(metadata of each kernel, what the compiler said) by the clang in zig: hipRTC 5.2 does not know newer architectures."""
    (folder / "header.h").write_text(header())
    command = f"-m ziglang clang -x hip --cuda-device-only -nogpulib -nogpuinc -std=c++17 -O3 --offload-arch={architecture}"
    own = f"-D__HIPCC_RTC__ -D__AMDGCN_WAVEFRONT_SIZE={lanes} -DLW_WAVE={lanes} -Wno-pass-failed -S -o"
    files = ["out.s", "-include", "header.h", "-I", source.parent, source]
    done = subprocess.run(
        [sys.executable, *command.split(), *options.split(), *own.split(), *files], cwd=folder, capture_output=True, text=True
    )
    text = (folder / "out.s").read_text() if done.returncode == 0 else ""
    found = re.findall(r"\.name: +(\w+)\n *\.private_segment_fixed_size: (\d+)(?:\n .*)*?\n *\.wavefront_size: (\d+)", text)
    about = {name: {".private_segment_fixed_size": int(size), ".wavefront_size": int(wave)} for name, size, wave in found}
    return about, done.stderr.strip()


_process = None


def _ask(what):
    global _process
    if _process is None or _process.poll() is not None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 the process writes to it until it ends
        _process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        _process.said = said
        atexit.register(_end, _process)
    try:
        pickle.dump(what, _process.stdin)
        _process.stdin.flush()
        return pickle.load(_process.stdout)
    except (BrokenPipeError, EOFError):
        _end(_process)
        _process.said.seek(0)
        text = _process.said.read().decode(errors="replace")[-2000:]
        raise AssertionError(f"the compiler ended with status {_process.returncode}: {text}") from None


def _end(process):
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    process.wait()


def _compile(rtc, text, headers, name, options):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    strings = ctypes.c_char_p * len(headers)
    texts, names = strings(*[t.encode() for t in headers.values()]), strings(*[n.encode() for n in headers])
    assert rtc.hiprtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), len(headers), texts, names) == 0
    words = options.split()
    status = rtc.hiprtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*[w.encode() for w in words]))
    rtc.hiprtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    rtc.hiprtcGetProgramLog(program, log)
    code = b""
    if status == 0:
        rtc.hiprtcGetCodeSize(program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        rtc.hiprtcGetCode(program, room)
        code = room.raw
    rtc.hiprtcDestroyProgram(ctypes.byref(program))
    return code, log.value.decode(errors="replace").strip()


def kernels(code):
    """Metadata of each kernel: a dict by name, from the note NT_AMDGPU_METADATA."""
    (sections,) = struct.unpack_from("<Q", code, 40)
    (count,) = struct.unpack_from("<H", code, 60)
    for i in range(count):
        _, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", code, sections + 64 * i)
        if kind != 7:  # SHT_NOTE
            continue
        at = offset
        while at < offset + size:
            name_size, text_size, note = struct.unpack_from("<III", code, at)
            start = at + 12 + (name_size + 3) // 4 * 4
            if note == 32:
                whole, _ = _unpack(code, start)
                return {kernel[".name"]: kernel for kernel in whole["amdhsa.kernels"]}
            at = start + (text_size + 3) // 4 * 4
    return {}


def _unpack(data, at):
    """(value, place behind it) of MessagePack as far as the metadata use it."""
    tag = data[at]
    sized = {
        0xC4: "B",
        0xC5: ">H",
        0xC6: ">I",
        0xD9: "B",
        0xDA: ">H",
        0xDB: ">I",
        0xDC: ">H",
        0xDD: ">I",
        0xDE: ">H",
        0xDF: ">I",
    }
    numbers = {
        0xCA: ">f",
        0xCB: ">d",
        0xCC: "B",
        0xCD: ">H",
        0xCE: ">I",
        0xCF: ">Q",
        0xD0: "b",
        0xD1: ">h",
        0xD2: ">i",
        0xD3: ">q",
    }
    if tag < 0x80 or tag >= 0xE0:
        return tag if tag < 0x80 else tag - 256, at + 1
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at + 1
    if tag in numbers:
        return struct.unpack_from(numbers[tag], data, at + 1)[0], at + 1 + struct.calcsize(numbers[tag])
    if tag in sized:
        count, at = struct.unpack_from(sized[tag], data, at + 1)[0], at + 1 + struct.calcsize(sized[tag])
        kind = "map" if tag >= 0xDE else "list" if tag >= 0xDC else "text"
    else:
        count, kind, at = (
            (tag & 0x1F, "text", at + 1) if tag >= 0xA0 else (tag & 0x0F, "list" if tag >= 0x90 else "map", at + 1)
        )
    if kind == "text":
        return data[at : at + count].decode(errors="replace"), at + count
    values = []
    for _ in range(count * (2 if kind == "map" else 1)):
        value, at = _unpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind == "map" else values), at


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the compiler prints must not be taken for an answer
    found = library()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(found is not None if request is None else _compile(found, *request), answers)
        answers.flush()
