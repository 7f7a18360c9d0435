"""MLflow's web pages for the builds of the configured experiment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking import view
from lowerdeck.tracking.address import WORKFLOW, database_file, is_server, redact_credentials, tracking_uri
from lowerdeck.tracking.reader import reading

if TYPE_CHECKING:
    from lowerdeck.config.schema import TrackingConfig

# Without a job runner (and with one worker) the pages are ready in seconds and use a sixth of the memory.
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PYTHONSAFEPATH": "1",  # for the server's own processes, too: no file of the workspace hides a module of theirs
}
RECORDING_ADVICE = "`dvc repro` builds and records; `dvc repro --force --single-item track` records an existing build"


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where the builds are recorded."""

    uri: str
    experiment_id: str
    has_view: bool = False
    """Whether the experiment has the table of `tracking.view`."""

    @property
    def has_server(self) -> bool:
        """Whether a server already serves the pages."""
        return is_server(self.uri)

    def address(self, host: str, port: int) -> str:
        """Address of the experiment's page, without a password; `host` and `port` apply if there is no server."""
        base = redact_credentials(self.uri).rstrip("/") if self.has_server else f"http://{host}:{port}"
        columns = f"&{view.QUERY}" if self.has_view else ""
        return f"{base}/#/experiments/{self.experiment_id}/runs{WORKFLOW}{columns}"

    @property
    def run_pages(self) -> str | None:
        """Addresses of runs up to their ids; None without a server."""
        base = redact_credentials(self.uri).rstrip("/")
        return f"{base}/#/experiments/{self.experiment_id}/runs/" if self.has_server else None


def locate(config: TrackingConfig, *, with_view: bool = False) -> Location:
    """Where the builds of the configured experiment are recorded.

    Args:
        config: Where builds are recorded.
        with_view: Let the experiment have the table of `tracking.view`.

    Raises:
        LowerdeckError: nothing was recorded there yet, or the database or server cannot be reached.
    """
    uri = tracking_uri(config)
    advice = RECORDING_ADVICE
    if not config.enabled:
        advice = f"tracking.enabled is false; choose `tracking: local` in params.yaml, then {advice}"
    nothing = (
        f"nothing has been recorded yet in the experiment {config.experiment!r} of {redact_credentials(uri)}: {advice}"
    )
    database = database_file(uri)
    if database is not None and not database.exists():
        raise LowerdeckError(nothing)  # opening it would create it
    with reading(config) as reader:
        experiment_id = reader.experiment_id()
        if experiment_id is None:
            raise LowerdeckError(nothing)
        found = Location(uri=uri, experiment_id=experiment_id)
        return replace(found, has_view=with_view and view.save(reader.store, experiment_id))


def serve(location: Location, host: str, port: int) -> NoReturn:
    """Replace this process with MLflow's web server, which Ctrl-C ends."""
    command = [sys.executable, "-P", "-m", "mlflow", "ui", "--backend-store-uri", location.uri, "--workers", "1"]
    command += ["--host", host, "--port", str(port)]
    # Not a child process: whatever ends this command also has to end the server.
    os.execve(command[0], command, os.environ | _ENVIRONMENT)  # noqa: S606
