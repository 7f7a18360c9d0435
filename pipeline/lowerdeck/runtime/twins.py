"""Finds the host twin of a delegate and makes sure that it is the delegate's own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.formats.pte import Delegate
from lowerdeck.runtime.interpreter import Twin

NEUTRON, ETHOS_U = "NeutronBackend", "EthosUBackend"
BACKENDS = (NEUTRON, ETHOS_U)
"""Backend ids that have host twins."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What convert wrote about a program: which file it is, what it takes and gives, every partition's twin."""

    program_sha256: str
    twins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """SHA-256 of a payload -> file name of its twin and the twin's SHA-256."""
    inputs: tuple[ProgramTensor, ...] = ()
    """What the method `forward` takes."""
    outputs: tuple[ProgramTensor, ...] = ()
    """What it gives."""


def read_manifest(path: Path) -> Manifest:
    """The manifest that convert wrote.

    Raises:
        LowerdeckError: it is missing, or no manifest.
    """
    try:
        stored = json.loads(path.read_bytes())
        twins = {
            str(partition["payload_sha256"]): (str(partition["twin"]), str(partition["twin_sha256"]))
            for partition in stored["partitions"]
            if partition["twin"] is not None
        }
        return Manifest(
            program_sha256=str(stored["program"]["sha256"]),
            twins=twins,
            inputs=tuple(map(_program_tensor, stored["inputs"])),
            outputs=tuple(map(_program_tensor, stored["outputs"])),
        )
    except OSError as error:
        raise LowerdeckError(
            f"the manifest {path} cannot be read: {error.strerror}; `dvc repro convert` makes it"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise LowerdeckError(f"{path} is no manifest of the stage convert: {type(error).__name__} {error}") from error


def _program_tensor(stored: dict[str, Any]) -> ProgramTensor:
    return ProgramTensor(**(stored | {name: tuple(stored[name]) for name in ("shape", "dim_order")}))


@dataclass(frozen=True, kw_only=True)
class TwinFinder:
    """Opens twins for one program."""

    manifest: Manifest | None
    folder: Path | None
    """Where the twins are that the manifest names."""
    resolver: str
    num_threads: int

    def __call__(self, delegate: Delegate) -> Twin:
        """The twin of `delegate`.

        Raises:
            LowerdeckError: there is none, or the one that is there belongs to another payload.
            ValueError: the payload is damaged.
        """
        if delegate.backend == NEUTRON:
            from lowerdeck.runtime.neutron_twin import NeutronTwin, embedded_model

            model = embedded_model(delegate.payload)
            if model is None:
                model = self._stored(delegate, ".tflite")
            return NeutronTwin(delegate.payload, model, self.resolver, self.num_threads)
        # A TOSA graph is executed alike whichever backend it was made for, also one that was added by somebody else.
        if delegate.backend == ETHOS_U or self._stored_suffix(delegate) == ".tosa":
            from lowerdeck.runtime.ethos_u_twin import EthosUTwin

            return EthosUTwin(self._stored(delegate, ".tosa"))
        raise LowerdeckError(
            f"this host cannot execute partitions for {delegate.backend!r}: ExecuTorch's runtime as installed does not "
            f"have that backend, and host twins exist for {', '.join(BACKENDS)}"
        )

    def _stored_suffix(self, delegate: Delegate) -> str | None:
        twins = {} if self.manifest is None else self.manifest.twins
        stored = twins.get(hashlib.sha256(delegate.payload).hexdigest())
        return None if stored is None else Path(stored[0]).suffix

    def _stored(self, delegate: Delegate, suffix: str) -> bytes:
        """The twin that convert kept beside the program."""
        payload = hashlib.sha256(delegate.payload).hexdigest()
        what = f"the partition for {delegate.backend} with payload {payload[:12]}"
        if self.manifest is None or self.folder is None:
            raise LowerdeckError(
                f"{what} holds device code only: this host needs its twin, which convert keeps beside the program. "
                "Pass both the manifest and the folder of twins of the build that made it"
            )
        if payload not in self.manifest.twins:
            known = ", ".join(digest[:12] for digest in self.manifest.twins) or "none"
            raise LowerdeckError(
                f"{what} has no twin in the manifest, which has twins for {known}: the manifest belongs to another "
                "build"
            )
        name, wanted = self.manifest.twins[payload]
        if Path(name).name != name or Path(name).suffix != suffix:
            raise LowerdeckError(
                f"the manifest names {name!r} as twin of {what}; a file name that ends in {suffix} is expected"
            )
        return _verified(self.folder / name, wanted)


def _verified(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LowerdeckError(
            f"the host twin {path} cannot be read: {error.strerror}; `dvc repro convert` makes it"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise LowerdeckError(
            f"the host twin {path} has SHA-256 {found[:12]}, the manifest expects {sha256[:12]}: it was altered or "
            "belongs to another build. `dvc repro -f convert` makes it again"
        )
    return content
