"""The bundle for firmware, as a folder, and with the build's record as a zip file."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import replace_folder, require_file, write_bytes, write_json
from lowerdeck.firmware.record import recorded


def write_firmware(files: Mapping[str, bytes], failure: str | None = None) -> str:
    """Write the firmware bundle as a folder, and last its status.

    Args:
        files: Content by path.
        failure: Why the bundle could not be made, where `files` only say so.

    Returns:
        What was made, in a line for the terminal.
    """
    with replace_folder(paths.FIRMWARE) as folder:
        for name, content in files.items():
            write_bytes(folder / name, content)
    metadata = paths.FIRMWARE_METADATA.name
    budget = json.loads(files[metadata]).get("memory_budget") if metadata in files else None
    write_json(paths.FIRMWARE_STATUS, {"failure": failure, "memory_budget": budget and budget["metrics"]})
    if failure is not None:
        return f"there is no bundle for this program: {failure}"
    made = f"{len(files)} files in {paths.FIRMWARE}; track puts them into {paths.FIRMWARE_ZIP}"
    return "\nfirmware: ".join([made, *(budget["lines"] if budget else ())])


def write_firmware_zip(build_key: str, results: Sequence[tuple[str, str]], threshold: float | None = None) -> None:
    """Write the bundle with its record as a zip file.

    The files are stored uncompressed, because compressed bytes depend on the compressor's version, and times, modes and
    order are fixed. The zip file therefore has the same bytes everywhere.

    Args:
        build_key: See `firmware.record.recorded`.
        results: See there.
        threshold: See there.

    Raises:
        LowerdeckError: the stage firmware has not run.
    """
    require_file(paths.FIRMWARE_METADATA)
    found = (path for path in sorted(paths.FIRMWARE.rglob("*")) if path.is_file())
    files = {path.relative_to(paths.FIRMWARE).as_posix(): path.read_bytes() for path in found}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(recorded(files, build_key, results, threshold).items()):
            entry = zipfile.ZipInfo(f"{paths.FIRMWARE.name}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # Unix, a file that everybody may read
            archive.writestr(entry, content)
    write_bytes(paths.FIRMWARE_ZIP, buffer.getvalue())
