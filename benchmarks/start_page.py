"""From nothing to a gated `.pte` of an own model, as docs/start.md says: lines that are typed, and minutes that pass.

    python -m benchmarks.start_page [--folder DIR]

builds the wheel, downloads it with all that it needs, and then plays the page: a new virtual environment, the
installation without an index, an empty folder, and every command, whose output is compared with what the page quotes.
The download alone is not counted. Ends with 1 beyond the goals. It takes about 12 GB of disk, which are free again
afterwards, and needs Python 3.11 with venv, git, and an index of packages for pip.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from docs.reader import Reader, blocks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start.md"
MAX_TYPED_LINES = 10
MAX_MINUTES = 5.0
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
_INSTALL = "pip install "


def main() -> int:
    """Play the page and print what it took as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="make it in a new folder here, and keep it")
    parser.add_argument("--wheels", type=Path, help="folder with what an earlier run downloaded: nothing is downloaded")
    options = parser.parse_args()
    place = options.folder
    folder = Path(tempfile.mkdtemp(prefix="start-page-", dir=place))
    try:
        measured = play(folder, options.wheels)
    finally:
        if place is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(measured, indent=2))
    return 0 if measured["lines"] <= MAX_TYPED_LINES and measured["minutes"] <= MAX_MINUTES else 1


def play(folder: Path, downloaded: Path | None = None) -> dict[str, Any]:
    """Play the page below `folder`, which is empty, with the wheels in `downloaded`, if there are any.

    Returns:
        `lines` typed, `minutes` beyond the download, what of it was `install_minutes`, `download_minutes`, the
        `seconds` of every line, and `processor_minutes`, which other work on the machine changes less.

    Raises:
        PageError: a command did something else than the page says.
    """
    typed = [command for block in blocks(PAGE) if block.language == "console" for command, _ in block.commands()]
    (install,) = (command for command in typed if command.startswith(_INSTALL))
    wheels, start = downloaded or folder / "wheels", time.monotonic()
    for older in wheels.glob("lowerdeck-*.whl"):
        older.unlink()
    _build_wheel(wheels)
    (built,) = wheels.glob("lowerdeck-*.whl")
    wanted = install.removeprefix(_INSTALL).strip("'").replace("lowerdeck", str(built), 1)
    if downloaded is None:
        subprocess.run([*_PIP, "wheel", "--wheel-dir", str(wheels), wanted], check=True)
    download_s = time.monotonic() - start
    reader, seconds = Reader(folder / "empty", _environment(folder, wheels)), {}
    activated, before = "", _cpu_s()
    for block in blocks(PAGE):
        for command, printed in block.commands() if block.language == "console" else ():
            start = time.monotonic()
            # Every line is a shell of its own here, and activating lasts in the reader's.
            reader.type(activated + command, printed)
            seconds[command] = round(time.monotonic() - start, 1)
            if "activate" in command:
                activated = f"{command}; "
    if not (reader.folder / "build" / "convert" / "program.pte").is_file():
        raise AssertionError("the page did not build a program")
    return {
        "lines": len(typed),
        "minutes": round(sum(seconds.values()) / 60, 2),
        "processor_minutes": round((_cpu_s() - before) / 60, 2),
        "install_minutes": round(seconds[install] / 60, 2),
        "download_minutes": round(download_s / 60, 2),
        "environment_gb": round(_size_bytes(folder / "home") / 1e9, 2),
        "seconds": seconds,
    }


def _build_wheel(place: Path) -> None:
    """The wheel of the files that git knows, so that nothing is left in the repository."""
    with tempfile.TemporaryDirectory() as copy:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                Path(copy, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, Path(copy, name))
        subprocess.run([*_PIP, "wheel", "--no-deps", "--wheel-dir", str(place), copy], check=True)


def _environment(folder: Path, wheels: Path) -> dict[str, str]:
    """The variables of a user who has nothing but Python and git, and whose pip finds the downloaded files only."""
    home = folder / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    who = {f"GIT_{role}_{what}": "reader" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PRE": "1"}
    python = folder / "bin"
    python.mkdir()
    (python / "python3.11").symlink_to(getattr(sys, "_base_executable", sys.executable))
    path = os.pathsep.join((str(python), "/usr/local/bin", "/usr/bin", "/bin"))
    return {**kept, **who, **pip, "HOME": str(home), "PATH": path, "COLUMNS": "120"}


def _cpu_s() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink() and path.is_file())


if __name__ == "__main__":
    sys.exit(main())
