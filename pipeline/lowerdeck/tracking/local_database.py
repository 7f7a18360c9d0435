"""Reads a local MLflow database with sqlite3: importing MLflow takes ten times as long as reading a thousand runs.

Whatever is not exactly as the pinned MLflow writes it is left to MLflow.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from lowerdeck.tracking.address import database_file, run_address
from lowerdeck.tracking.recorded_run import KIND_TAG, NAME_TAG, Condition, RecordedRun

SCHEMA = "dc11669786a5"
"""Alembic's revision of the tables that MLflow 3.17.2 makes."""
_TIMEOUT_S = 3.0
"""How long a process that is writing may lock the database; MLflow then waits longer."""
_WORKSPACES = ("MLFLOW_ENABLE_WORKSPACES", "MLFLOW_WORKSPACE")
_CHOSEN = """
    FROM runs WHERE experiment_id = :experiment AND lifecycle_stage = 'active'
    AND NOT EXISTS (SELECT 1 FROM tags WHERE tags.run_uuid = runs.run_uuid AND tags.key = :kind)
    AND CASE :asked
        WHEN 'all' THEN 1
        WHEN 'id' THEN CASE WHEN :is_prefix THEN substr(run_uuid, 1, length(:value)) ELSE run_uuid END = :value
        ELSE EXISTS (
            SELECT 1 FROM tags WHERE tags.run_uuid = runs.run_uuid AND tags.key = :tag
            AND CASE WHEN :is_prefix THEN substr(tags.value, 1, length(:value)) ELSE tags.value END = :value
        ) END
"""
_RUNS = f"SELECT run_uuid, name, status, start_time, artifact_uri {_CHOSEN} ORDER BY start_time IS NULL, start_time, run_uuid"  # noqa: E501
_OF_RUNS = f"WHERE run_uuid IN (SELECT run_uuid {_CHOSEN})"
_PARAMS = f"SELECT run_uuid, key, value FROM params {_OF_RUNS}"  # noqa: S608
_TAGS = f"SELECT run_uuid, key, value FROM tags {_OF_RUNS}"  # noqa: S608
_METRICS = f"SELECT run_uuid, key, value, is_nan FROM latest_metrics {_OF_RUNS}"  # noqa: S608
_LATEST = """
    SELECT tags.value FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
    WHERE experiment_id = ? AND lifecycle_stage = 'active' AND tags.key = ?
    ORDER BY start_time IS NULL, start_time DESC, runs.run_uuid LIMIT 1
"""

_LOCATION = "SELECT artifact_location FROM experiments WHERE name = ? AND workspace = 'default'"
_LOCATIONS = (
    *(("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location")),
    *(("model_versions", "source"), ("model_versions", "storage_location")),
)
"""Tables and columns with addresses of files."""


class UnreadableError(Exception):
    """MLflow itself must read this database, and knows what may be wrong with it."""


@contextmanager
def opened(uri: str) -> Iterator[LocalDatabase]:
    """The database at `uri`, for reading; all that a block reads is of one moment.

    Raises:
        UnreadableError: it is none in a local file, or is locked, damaged, incomplete or of another version of MLflow.
    """
    file = database_file(uri)
    if file is None or "?" in uri or any(os.environ.get(name) for name in _WORKSPACES):
        raise UnreadableError(uri)
    try:
        address = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_TIMEOUT_S, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            if connection.execute("SELECT version_num FROM alembic_version").fetchall() != [(SCHEMA,)]:
                raise UnreadableError(uri)
            yield LocalDatabase(connection=connection, uri=uri)
    except sqlite3.Error as error:
        raise UnreadableError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class LocalDatabase:
    """A database that is open for reading."""

    connection: sqlite3.Connection
    uri: str

    def experiment(self, name: str) -> tuple[str, str] | None:
        """Id and lifecycle stage of an experiment; None if there is none of this name."""
        query = "SELECT experiment_id, lifecycle_stage FROM experiments WHERE name = ? AND workspace = 'default'"
        found = self.connection.execute(query, (name,)).fetchone()
        return None if found is None else (str(found[0]), found[1])

    def search(self, experiment_id: str, condition: Condition | None) -> list[RecordedRun]:
        """The builds that meet `condition`, oldest first."""
        arguments = {"experiment": int(experiment_id), "kind": KIND_TAG, **_arguments(condition)}
        params, tags, metrics = (self._by_run(query, arguments) for query in (_PARAMS, _TAGS, _METRICS))
        return [
            RecordedRun(
                run_id=run_id,
                name=name or tags[run_id].get(NAME_TAG, ""),
                status=status,
                start_time_ms=start_time,
                params=params[run_id],
                metrics=metrics[run_id],
                tags=tags[run_id],
                artifact_uri=artifact_uri or "",
                address=run_address(self.uri, experiment_id, run_id),
            )
            for run_id, name, status, start_time, artifact_uri in self.connection.execute(_RUNS, arguments)
        ]

    def _by_run(self, query: str, arguments: Mapping[str, Any]) -> defaultdict[str, dict[str, Any]]:
        """Values by key, for each run."""
        found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for run_id, key, value, *is_nan in self.connection.execute(query, arguments):
            found[run_id][key] = math.nan if any(is_nan) else value
        return found

    def latest_tag(self, experiment_id: str, tag: str) -> str | None:
        """The value of `tag` of the most recent run that has it."""
        found = self.connection.execute(_LATEST, (int(experiment_id), tag)).fetchone()
        return None if found is None else str(found[0])

    def artifact_uri(self, run_id: str) -> str:
        """Location of the files of a run; empty if the database has no such run."""
        found = self.connection.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
        return "" if found is None else found[0] or ""


def _arguments(condition: Condition | None) -> dict[str, Any]:
    """The values of the placeholders of _CHOSEN that a condition sets."""
    if condition is None:
        return {"asked": "all", "tag": None, "value": None, "is_prefix": False}
    asked = "id" if condition.tag is None else "tag"
    return {"asked": asked, "tag": condition.tag, "value": condition.value, "is_prefix": condition.is_prefix}


def move_files(uri: str, experiment: str, present: Callable[[str], str]) -> None:
    """Store where files are now, if those of `experiment` are no longer where the database says.

    MLflow itself never changes the address of an experiment, and would write to the former one.

    Args:
        uri: The database, which nobody else may write to in the meantime.
        experiment: Its name.
        present: Address in the database -> the present one.
    """
    try:
        with opened(uri) as database:
            found = database.connection.execute(_LOCATION, (experiment,)).fetchone()
    except UnreadableError:
        return
    if found is None or present(found[0] or "") == found[0]:
        return
    connected = closing(sqlite3.connect(str(database_file(uri))))
    with suppress(sqlite3.OperationalError), connected as connection, connection:  # nobody writes to it if it may not
        for table, column in _LOCATIONS:
            stored = connection.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()  # noqa: S608
            changed = [(now, before) for (before,) in stored if (now := present(before)) != before]
            connection.executemany(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", changed)  # noqa: S608
