"""Environments of their own for converter releases, each with its option in conf/flavor."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowerdeck import backends
from lowerdeck.artifacts.files import write_text
from lowerdeck.contracts.errors import LowerdeckError

ENVIRONMENTS = "~/.local/share/lowerdeck/flavors"
"""Folder of the environments, which params.yaml opens as a whole."""
_RELEASE = re.compile(r"([A-Za-z][\w-]*)==([0-9][\w.]*)")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release of a converter that a package index has."""

    backend: str
    converter: str
    """A value of `flavor.converter`, e.g. `vela`."""
    package: str
    """E.g. `ethos-u-vela`."""
    version: str

    @property
    def option(self) -> str:
        """Name of its option in conf/flavor, e.g. `vela_5_0_0`."""
        return f"{self.converter}_{self.version.replace('.', '_')}"

    def option_text(self, python: str) -> str:
        """Content of its option; `python` is the interpreter of its environment."""
        return (
            f"# {self.package} {self.version}, made by `lowerdeck flavors add {self.converter}=={self.version}`.\n"
            f"name: {self.option}\nbackend: {self.backend}\nconverter: {self.converter}\n"
            f'version: "{self.version}"\ntimeout_s: 600.0\noptions:\n  python: {python}\n'
        )


def release(text: str) -> Release:
    """The release that `text` names, e.g. `vela==5.0.0`.

    Raises:
        LowerdeckError: it has another form, or no backend installs such a converter.
    """
    packages = {
        name: (backend, name, package)
        for backend in backends.available()
        for converter, package in backends.source(backend).packages.items()
        for name in (converter,)
    }
    by_name = packages | {package: found for found in packages.values() for package in found[2:]}
    matched = _RELEASE.fullmatch(text)
    if matched is None or matched[1] not in by_name:
        known = ", ".join(f"{name}==VERSION" for name in sorted(packages))
        raise LowerdeckError(f"{text!r} is not a release that can be installed; allowed: {known}")
    backend, converter, package = by_name[matched[1]]
    return Release(backend=backend, converter=converter, package=package, version=matched[2])


def install(wanted: Release, folder: Path, index_url: str | None, report: Callable[[str], None]) -> Path:
    """Make the environment of a release in `folder`, unless it is there; returns its interpreter.

    Args:
        wanted: The release.
        folder: The environment's own folder.
        index_url: Package index; None for pip's own choice.
        report: Shows a line to the user.

    Raises:
        LowerdeckError: venv or pip fails; what was begun is removed.
    """
    python = folder / "bin" / "python"
    if python.is_file():
        report(f"{folder} is there already")
        return python
    index = [] if index_url is None else ["--index-url", index_url]
    requirement = f"{wanted.package}=={wanted.version}"
    report(f"making {folder} with {requirement}")
    try:
        _run([sys.executable, "-P", "-m", "venv", str(folder)], "no virtual environment could be made")
        pip = [str(python), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *index, requirement]
        _run(pip, f"pip could not install {requirement}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return python


def write_option(wanted: Release, python: str, conf_dir: Path) -> Path:
    """Write the release's option of conf/flavor; returns its path.

    Raises:
        LowerdeckError: another file has its name.
    """
    path, text = conf_dir / "flavor" / f"{wanted.option}.yaml", wanted.option_text(python)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise LowerdeckError(f"{path} exists with other content; remove or rename it")
    write_text(path, text)
    return path


def _run(command: list[str], failed: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-5:])
        raise LowerdeckError(f"{failed} (exit code {done.returncode}):\n{said}")
