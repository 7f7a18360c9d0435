"""Addresses of the MLflow database or server."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from lowerdeck.config.schema import TrackingConfig

WORKFLOW = "?workflowType=machine_learning"
"""Opens MLflow's pages for training; it would open those for language models."""
LOCAL_PAGES = "http://127.0.0.1:5000"
"""Where `lowerdeck ui` serves MLflow's pages by default."""
_SQLITE = "sqlite:///"
_OTHER_SCHEMA = "out-of-date database schema"
"""In what MLflow says about tables that an older or newer version made."""
_OF_RUN_OR_MODEL = re.compile(r"/([0-9a-f]{32}|models/m-[0-9a-f]{32})/artifacts(/|$)")
"""Where the part of an address begins that MLflow adds to that of an experiment."""


def tracking_uri(config: TrackingConfig) -> str:
    """The database or server to use, with the absolute path of a local database.

    MLFLOW_TRACKING_URI takes precedence over the configuration. Paths are relative to the project's folder.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or config.uri
    path, question_mark, query = uri.removeprefix(_SQLITE).partition("?")
    if not uri.startswith(_SQLITE) or not path:
        return uri
    # A question mark in the folder's name would begin the query, and a percent sign a character's code.
    folder = str(_project_folder()).replace("%", "%25").replace("?", "%3F")
    return f"{_SQLITE}{Path(folder, path)}{question_mark}{query}"


def artifact_location(config: TrackingConfig) -> str | None:
    """Where a new experiment of a local database stores its files; None for MLflow's default.

    Absolute, because MLflow resolves relative paths in the working folder of each command.
    """
    location = config.artifact_location
    if location is None or "://" in location:
        return location
    return (_project_folder() / location).resolve().as_uri()


def present_locations(config: TrackingConfig) -> Callable[[str], str]:
    """Address of files in a local database in the project -> where they are now.

    MLflow stores absolute addresses, but the project may have been renamed, moved or copied since, with the database
    and the files. Others are returned as they are.
    """
    database, present, given = database_file(tracking_uri(config)), artifact_location(config), config.artifact_location
    is_own = database is not None and database.resolve().is_relative_to(_project_folder())
    if not is_own or present is None or given is None or "://" in given:
        return lambda location: location
    below = quote(Path(given).as_posix())

    def present_location(location: str) -> str:
        own = _OF_RUN_OR_MODEL.search(location)
        root, rest = (location[: own.start()], location[own.start() :]) if own else (location.rstrip("/"), "")
        moved, stored = local_folder(f"{present}{rest}"), local_folder(location)
        is_below = root.endswith(f"/{below}")
        if not is_below or stored is None or moved is None or location.startswith(f"{present}/"):
            return location
        return moved.as_uri() if moved.is_dir() or not stored.is_dir() else location

    return present_location


def local_folder(location: str) -> Path | None:
    """The folder that `location` names on this machine; None if it names none by a whole `file` address."""
    parts = urlsplit(location)
    is_local = parts.scheme == "file" and not parts.netloc and not parts.query and not parts.fragment
    return Path(unquote(parts.path)) if is_local else None


def database_file(uri: str) -> Path | None:
    """The file of a local SQLite database; None for any other `uri`."""
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(unquote(path)) if uri.startswith(_SQLITE) and path else None


def is_server(uri: str) -> bool:
    """Whether `uri` names an MLflow server rather than a database."""
    return urlsplit(uri).scheme in ("http", "https")


def run_address(uri: str, experiment_id: str, run_id: str) -> str:
    """Address of a run's page, on the server or, for a database, while `lowerdeck ui` serves it."""
    base = redact_credentials(uri).rstrip("/") if is_server(uri) else LOCAL_PAGES
    return f"{base}/#/experiments/{experiment_id}/runs/{run_id}{WORKFLOW}"


def redact_credentials(uri: str) -> str:
    """`uri` without user name and password, for messages and tags."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def unavailable_message(uri: str, reason: str) -> str:
    """The message for a database or server that cannot be used."""
    if is_server(uri):
        advice = "Start the server or fix its address"
    elif _OTHER_SCHEMA in reason:
        upgrade = f"mlflow db upgrade {shlex.quote(redact_credentials(uri))}"
        advice = f"Another version of MLflow made it: copy it, and run `{upgrade}`, or set another tracking.uri"
    else:
        advice = "Its file and folder must be writable, on a disk with room"
    return _message(uri, f"cannot be used: {textwrap.shorten(reason, 300)}", advice)


def refused_message(uri: str, reason: str) -> str:
    """The message for a request that the database or server understood and refused."""
    return _message(uri, f"refuses what was asked of it: {textwrap.shorten(reason, 300)}", "Change what it names")


def _message(uri: str, what: str, advice: str) -> str:
    source = "MLFLOW_TRACKING_URI" if os.environ.get("MLFLOW_TRACKING_URI") else "tracking.uri"
    kind = "server" if is_server(uri) else "database"
    return (
        f"the MLflow {kind} {redact_credentials(uri)} (from {source}) {what}\n"
        f"Everything built so far remains. {advice}; a stage that failed here is all that the next `dvc repro` runs. "
        "`tracking: none` in params.yaml turns tracking off."
    )


def _project_folder() -> Path:
    """The folder that relative paths refer to.

    `dvc exp run --queue` and `--temp` build in temporary copies below .dvc/tmp/exps, and sweeps in sweeps/ID/work.
    Their records belong to the copied project.
    """
    here = Path.cwd()
    for folder in here.parents:
        if folder.parts[-3:] == (".dvc", "tmp", "exps"):
            return folder.parents[2]
        is_of_sweep = folder.name == "work" and folder.parts[-3:-2] == ("sweeps",)
        if is_of_sweep and (folder.parent / "sweep.json").is_file():
            return folder.parents[2]
    return here
