"""`lowerdeck check-runtime`: whether a runtime can execute a program, both files from anywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.contracts.runtime_images import RuntimeImage


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("check-runtime", help=HELP["check-runtime"])
    command.description = "Exits with 1, naming every missing operator, where the runtime cannot execute the program."
    command.add_argument("program", type=Path, metavar="PROGRAM.pte")
    command.add_argument("image", type=Path, metavar="IMAGE.yaml", help="`lowerdeck devices image NAME` prints one")
    command.set_defaults(run=_check)


def read_image(path: Path) -> RuntimeImage:
    """The description of a runtime in a YAML file.

    Raises:
        ConfigurationError: it cannot be read, or is no such description.
    """
    from lowerdeck.config.problems import raise_problems, validate
    from lowerdeck.config.yaml_text import read_mapping
    from lowerdeck.contracts.runtime_images import RuntimeImage

    image, problems = validate(RuntimeImage, read_mapping(path), "")
    raise_problems(problems)
    assert isinstance(image, RuntimeImage)
    return image


def _check(options: argparse.Namespace) -> None:
    from dataclasses import replace

    from lowerdeck.artifacts import paths
    from lowerdeck.cli.on_device import kernel_definitions_of
    from lowerdeck.devices.compatibility import check_runtime
    from lowerdeck.formats.pte_requirements import requirements
    from lowerdeck.formats.regular_files import check_regular

    image = read_image(options.image)
    try:
        required = requirements(check_regular(options.program).read_bytes())
    except OSError as error:
        raise LowerdeckError(f"the program {options.program} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LowerdeckError(f"{options.program} is damaged, or not a program of ExecuTorch 1.x: {error}") from error
    definitions = kernel_definitions_of(options.program.with_name(paths.MANIFEST.name))
    check_runtime(replace(required, kernel_definitions=definitions), image)
    delegates = ", ".join(required.delegates) or "no delegates"
    print(f"{image.name} {image.version} has all {len(required.operators)} operators and {delegates} of the program")
