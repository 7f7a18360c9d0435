"""`lowerdeck ui` and `lowerdeck plots-template`: the pages of MLflow and of DVC."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError


def add(commands: Any) -> None:
    """Add both commands to the parser of `lowerdeck`."""
    ui = commands.add_parser("ui", help=HELP["ui"])
    ui.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    ui.add_argument("--port", type=int, default=5000, help="port to listen on (default: %(default)s)")
    ui.set_defaults(run=_ui)
    template = commands.add_parser("plots-template", help=HELP["plots-template"])
    template.set_defaults(run=_plots_template)


def _ui(options: argparse.Namespace) -> None:
    from lowerdeck.tracking import recorded_build, ui

    location = ui.locate(recorded_build.tracking_config(), with_view=True)
    address = location.address(options.host, options.port)
    if location.has_server:
        print(f"The builds are recorded on a server: {address}")
        return
    _check_port_free(options.host, options.port)
    print(f"In a few seconds: {address}   (Ctrl-C ends it)", flush=True)
    ui.serve(location, options.host, options.port)


def _check_port_free(host: str, port: int) -> None:
    import socket

    try:
        with closing(socket.socket()) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise LowerdeckError(f"cannot listen on {host}, port {port}: {error}; choose another with `--port`") from None


def _plots_template(options: argparse.Namespace) -> None:
    from lowerdeck.pages import dvc_plots_template

    print(f"`dvc plots show` works without a network now: {dvc_plots_template.install()}")
