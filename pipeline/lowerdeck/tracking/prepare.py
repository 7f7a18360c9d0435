"""Creates a build's local MLflow database, if it is missing, while convert keeps the other processor busy.

MLflow makes a new database by all migrations since its first release: a second or two that track would wait.
`lowerdeck repro` runs this module as a process of its own; what fails here is reported by track, which tries again.
"""

from __future__ import annotations

import time
from contextlib import suppress

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution import preload

_STARTS_WITHIN_S = 10.0


def create_database() -> None:
    """Create the database that build/config.yaml names, unless it exists, is none of this machine, or is not used."""
    from lowerdeck.config.schema import TrackingConfig
    from lowerdeck.execution.resolved_config import section
    from lowerdeck.tracking.address import database_file, tracking_uri
    from lowerdeck.tracking.store import opened

    config = section(TrackingConfig)
    database = database_file(tracking_uri(config)) if config.enabled else None
    if database is not None and not database.exists():
        with opened(config):
            pass


def main() -> None:
    """Create the database in a fork of the server that has imported MLflow for track."""
    preload.start(preload.TRACKING)
    address, deadline = preload.socket_address(preload.TRACKING), time.monotonic() + _STARTS_WITHIN_S
    while address is not None and not preload.answers(address) and time.monotonic() < deadline:
        time.sleep(0.05)
    if preload.run("lowerdeck.tracking.prepare", 60, preload.TRACKING) is None:
        with suppress(LowerdeckError, OSError):
            create_database()


if __name__ == "__main__":
    main()
