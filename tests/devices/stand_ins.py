"""Executables that take the command lines of simulators and of adb, and compute x * x + x."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HEAD = f"""#!{sys.executable}
import os, pathlib, re, shutil, subprocess, sys, time
import struct
FAULT = os.environ.get("STAND_IN_FAULT", "")
def computed(path):
    raw = pathlib.Path(path).read_bytes()
    values = struct.unpack(f"<{{len(raw) // 4}}f", raw)
    return struct.pack(f"<{{len(values)}}f", *(x * x + x for x in values))
if FAULT == "dies":
    os.abort()
if FAULT == "hangs":
    time.sleep(600)
"""

FVP = """
arguments = sys.argv[1:]
settings = dict(a.split("=", 1) for f, a in zip(arguments, arguments[1:]) if f == "-C")
(cwd,) = (v for k, v in settings.items() if k.endswith("semihosting-cwd"))
(line,) = (v for k, v in settings.items() if k.endswith("semihosting-cmd_line"))
words = line.split()
assert words[:5] == ["executor_runner", "-m", "program.pte", "-o", "out"], words
assert pathlib.Path(arguments[arguments.index("-a") + 1]).is_file()
os.chdir(cwd)
assert pathlib.Path("program.pte").read_bytes()[4:8] == b"ET12"
print("I [executorch:arm_perf_monitor.cpp] NPU ACTIVE: 17 cycles")
print("I [executorch:arm_perf_monitor.cpp] NPU TOTAL: 40 cycles")
if FAULT == "fault":
    print("Hard fault. irq=-13")
elif FAULT != "silent":
    pathlib.Path("out-0.bin").write_bytes(computed(words[words.index("-i") + 1])[: 8 if FAULT == "short" else None])
"""

NSYS_RUNNER = """
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert set(arguments) == {"--model", "--inputs", "--output", "--firmware", "--nsys", "--nsys_config"}, arguments
for name in ("--model", "--firmware", "--nsys", "--nsys_config"):
    assert pathlib.Path(arguments[name]).is_file(), name
(given,) = arguments["--inputs"].split(",")
folder = pathlib.Path(arguments["--output"], pathlib.Path(given).name)
folder.mkdir()
if FAULT == "error":
    sys.exit("Internal Neutron NPU driver error 8 in model prepare!")
if FAULT != "silent":
    (folder / "0000.bin").write_bytes(computed(given))
"""

ADB = """
arguments = sys.argv[1:]
if arguments[:1] == ["-s"]:
    if arguments[1] != "emulator-5554":
        sys.exit(f"adb: device '{arguments[1]}' not found")
    arguments = arguments[2:]
disk = os.environ["STAND_IN_DISK"]
real = lambda path: path.replace("/data/local/tmp", disk)
command, rest = arguments[0], arguments[1:]
if command == "shell":
    sys.exit(subprocess.run(["sh", "-c", real(rest[0])]).returncode)
if FAULT == "full" and command == "push" and rest[1].endswith("request"):
    sys.exit("adb: error: failed to copy: No space left on device")
source, target = (rest[0], real(rest[1])) if command == "push" else (real(rest[0]), rest[1])
shutil.copy2(source, target)
print(f"{source}: 1 file {command}ed")
"""


def executable(path: Path, body: str) -> str:
    """Write a stand-in; its behaviour depends on the variable STAND_IN_FAULT."""
    path.write_text(_HEAD + body)
    os.chmod(path, 0o755)
    return str(path)
