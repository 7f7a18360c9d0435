"""`lowerdeck doctor`: what a target needs, what of it is there, and the command that gets the rest."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.cli.completion import complete_with
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PARAMS = Path("params.yaml")
CONF = Path("conf")
_BUILD_BYTES = 2_000_000_000
"""Free space for builds: a sweep's store and DVC's cache of the torchvision classifiers take about as much."""
_PROBE_S = 60.0
_MARKS = {True: "ok", False: "missing", None: "optional"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the checklist."""

    what: str
    ok: bool | None
    """None: it is missing, and a build does not need it."""
    found: str
    fix: str = ""
    """The command, or what else to do; empty where nothing has to be done."""


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("doctor", help=HELP["doctor"])
    target = command.add_argument(
        "--target", metavar="OPTION", help="of conf/target (default: the one that params.yaml chooses)"
    )
    complete_with(target, "conf --names target")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    from lowerdeck.config.choices import read_params, selected_values

    params = read_params(PARAMS) if PARAMS.is_file() else {}
    if options.target is not None:
        params = params | {"target": options.target, "flavor": "default"}
    values = selected_values(params, CONF)
    checks = list(_checks(params, values))
    if options.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        print("\n".join(_lines(checks, values["target"]["name"])))
    missing = [check.what for check in checks if check.ok is False]
    if missing:
        raise LowerdeckError(f"{values['target']['name']} cannot be built yet: {', '.join(missing)}")


def _lines(checks: list[Check], target: str) -> Iterator[str]:
    yield f"What {target} needs:\n"
    width = max(len(check.what) for check in checks)
    for check in checks:
        yield f"{_MARKS[check.ok]:8}  {check.what:{width}}  {check.found}"
        if check.fix and check.ok is not True:
            yield f"{'':8}  {'':{width}}  -> {check.fix}"


def _checks(params: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Check]:
    from lowerdeck import backends

    yield _python()
    yield from _packages(backends.source(values["target"]["backend"]).extra)
    yield _program("git", "apt-get install git", needed=True)
    yield from _workspace()
    yield from _flavor(params, values)
    yield _tracking(values)
    yield _disk()
    if values["target"]["backend"] != "xnnpack":
        yield _program("arm-none-eabi-gcc", "apt-get install gcc-arm-none-eabi", needed=None)


def _python() -> Check:
    import importlib.metadata

    wanted = importlib.metadata.metadata("lowerdeck")["Requires-Python"]
    version = ".".join(map(str, sys.version_info[:3]))
    from packaging.specifiers import SpecifierSet

    fix = f"make a virtual environment with Python {wanted}"
    return Check(what="Python", ok=version in SpecifierSet(wanted), found=version, fix=fix)


def _packages(extra: str | None) -> Iterator[Check]:
    """The pinned packages, of which another version was seen to behave differently, and those that the target needs."""
    from lowerdeck.fingerprints.versions import requirements

    listed = {requirement.name: _package(requirement) for requirement in requirements() if requirement.specifier}
    if extra is not None:
        fix = f"pip install 'lowerdeck[{extra}]'"
        listed |= {requirement.name: _package(requirement, fix) for requirement in requirements(extra)}
    yield from listed.values()


def _package(requirement: Requirement, fix: str | None = None) -> Check:
    import importlib.metadata

    try:
        found = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    fits = bool(found) and requirement.specifier.contains(found.partition("+")[0], prereleases=True)
    wanted = found if fits else f"{found or 'not installed'}; {requirement.specifier or 'any version'} is needed"
    return Check(what=requirement.name, ok=fits, found=wanted, fix=fix or f"pip install '{requirement}'")


def _program(name: str, fix: str, needed: bool | None) -> Check:
    place = shutil.which(name)
    return Check(what=name, ok=True if place else (False if needed else None), found=place or "not on PATH", fix=fix)


def _workspace() -> Iterator[Check]:
    """The folder: whether it is a workspace, and of which version."""
    from lowerdeck.workspace import contents

    if contents.CODE.is_dir() and not contents.CODE.is_symlink():
        yield Check(what="workspace", ok=True, found="has its own copy of the package")
        return
    if not contents.RECORD.is_file():
        yield Check(what="workspace", ok=False, found=f"{Path.cwd()} is none", fix="lowerdeck init")
        return
    version, installed = contents.read_record(Path()).version, contents.installed_version()
    same = version == installed
    found = f"version {version}" if same else f"version {version}, while {installed} is installed"
    yield Check(what="workspace", ok=same or None, found=found, fix="lowerdeck upgrade")


def _flavor(params: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Check]:
    """The converter that the target and params.yaml choose, and what lacks where its programs run on the host only."""
    from lowerdeck import backends
    from lowerdeck.config.flavor_status import status

    name = str(params.get("flavor", "default"))
    name = str(values["target"]["default_flavor"]) if name == "default" else name
    found = status(name, CONF, {**params, "flavor": name}, _PROBE_S)
    if found.installed:
        where = "; its programs run on the host only, not on the NPU" if found.host_only else ""
        yield Check(what=f"flavor {name}", ok=True, found=f"{found.converter} {found.version}{where}")
    else:
        fix = "docs/flavors.md says how to get it"
        yield Check(what=f"flavor {name}", ok=False, found=str(found.problem), fix=fix)
    if found.host_only:
        fix = backends.source(values["target"]["backend"]).device_converter
        yield Check(what="converter for the device", ok=None, found=f"not flavor {name}", fix=fix)


def _tracking(values: Mapping[str, Any]) -> Check:
    """Whether the MLflow database or server can be reached; a build keeps its results if not."""
    from lowerdeck.config.problems import raise_problems, validate
    from lowerdeck.config.schema import TrackingConfig
    from lowerdeck.tracking.address import database_file, redact_credentials, tracking_uri

    config, problems = validate(TrackingConfig, values["tracking"], "tracking")
    raise_problems(problems)
    if not config.enabled:
        return Check(what="MLflow", ok=True, found="not used (tracking.enabled is false)")
    uri = tracking_uri(config)
    if file := database_file(uri):
        return Check(what="MLflow", ok=True, found=f"{file}{'' if file.is_file() else ', which the first build makes'}")
    problem = _unreachable(uri)
    return Check(
        what="MLflow", ok=not problem, found=f"{redact_credentials(uri)}{problem}", fix="unset MLFLOW_TRACKING_URI"
    )


def _unreachable(uri: str) -> str:
    """Why the server at `uri` does not answer; empty if it does, or is no server."""
    import urllib.error
    import urllib.request

    if not uri.startswith(("http://", "https://")):
        return ""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5):  # noqa: S310  the scheme was checked
            return ""
    except (urllib.error.URLError, OSError, ValueError) as error:
        return f": {error}"


def _disk() -> Check:
    free = shutil.disk_usage(Path()).free
    return Check(
        what="disk", ok=free > _BUILD_BYTES, found=f"{free / 1e9:.1f} GB free", fix="lowerdeck clean --older-than 7d"
    )
