"""Checks within seconds whether an MLflow database or server responds; MLflow itself retries for minutes."""

from __future__ import annotations

import socket
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking.address import database_file, is_server, unavailable_message

TIMEOUT_S = 3.0
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def probe(uri: str) -> None:
    """Check that `uri` responds.

    Raises:
        LowerdeckError: it does not; raised within five seconds.
    """
    failures: list[str] = []

    def attempt() -> None:
        database = database_file(uri)
        try:
            if database is not None:
                _open_database(database)
            elif is_server(uri):
                _ask_server(uri)
            else:
                _connect(uri)
        except (OSError, sqlite3.Error) as error:  # exceptions of requests are OSErrors
            failures.append(_reason(error))

    # In a daemon thread, because name resolution and slow responses ignore the timeout.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S + 2)
    if thread.is_alive():
        failures.append("no answer")
    if failures:
        raise LowerdeckError(unavailable_message(uri, failures[0]))


def _open_database(database: Path) -> None:
    if database.exists():
        with closing(sqlite3.connect(database, timeout=TIMEOUT_S)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master")


def _ask_server(uri: str) -> None:
    import requests

    try:
        answer = requests.get(f"{uri.rstrip('/')}/health", timeout=TIMEOUT_S, allow_redirects=False)
    except requests.exceptions.SSLError:
        return  # the server exists, and MLflow has its own settings for certificates
    if answer.status_code >= 500:
        raise OSError(f"it answers with HTTP status {answer.status_code}")


def _connect(uri: str) -> None:
    parts = urlsplit(uri)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme.partition("+")[0])
    if parts.hostname and port:
        socket.create_connection((parts.hostname, port), timeout=TIMEOUT_S).close()


def _reason(error: BaseException) -> str:
    """The innermost message: HTTP libraries nest errors, and each repeats the inner one."""
    while True:
        inner = getattr(error, "reason", None) or next(iter(error.args), None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    if isinstance(error, TimeoutError) or "timed out" in str(error):
        return f"no answer within {TIMEOUT_S:.0f} s"
    return str(error).rpartition(": ")[2]
