"""Finds the host twin of a delegate and verifies that the two belong together.

A backend whose partitions have twins has a module backends/NAME/twin.py with `DELEGATE_ID`, the name of its delegate in
programs, and `open_twin` (see TwinModule). Searching the source text imports only the module that is needed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.contracts.runtime_images import KERNEL_DEFINITIONS
from lowerdeck.formats.pte import Delegate
from lowerdeck.formats.regular_files import check_regular
from lowerdeck.registry.components import string_constant
from lowerdeck.runtime.interpreter import StoredTwin, Twin

_BACKENDS = f"{__name__.partition('.')[0]}.backends"


class TwinModule(Protocol):
    """The interface of backends/NAME/twin.py, in addition to `DELEGATE_ID`."""

    def open_twin(self, payload: memoryview, stored: StoredTwin, *, resolver: str, num_threads: int) -> Twin:
        """The twin of a delegate's payload.

        Args:
            payload: The delegate's payload.
            stored: Returns the twin that convert stored, by its suffix.
            resolver: Which of LiteRT's kernels execute LiteRT models: a key of backends.neutron.twin.RESOLVERS.
            num_threads: Number of threads for kernels that use them.
        """
        ...


@cache
def twin_modules() -> Mapping[str, str]:
    """Delegate id -> name of the module that opens its twins, without importing any."""
    paths = sorted(Path(__file__).parents[1].glob("backends/*/twin.py"))
    return {string_constant(path, "DELEGATE_ID"): f"{_BACKENDS}.{path.parent.name}.twin" for path in paths}


def open_delegate_twin(
    delegate: Delegate, stored: StoredTwin, suffix: str | None, *, resolver: str, num_threads: int
) -> Twin:
    """Open the twin of a delegate.

    Args:
        delegate: A delegate of the program.
        stored: Returns the twin that convert stored, by its suffix.
        suffix: Suffix of that twin; None where there is none.
        resolver: Which of LiteRT's kernels execute LiteRT models: a key of backends.neutron.twin.RESOLVERS.
        num_threads: Number of threads for kernels that use them.

    Raises:
        ProgramError: this host cannot execute it.
        LowerdeckError: there is none.
        ValueError: the payload is damaged.
    """
    if delegate.backend in twin_modules():
        module: Any = importlib.import_module(twin_modules()[delegate.backend])
        opened: TwinModule = module
        return opened.open_twin(delegate.payload, stored, resolver=resolver, num_threads=num_threads)
    # The TOSA reference model executes any backend's TOSA graphs, so a new backend needs no module.
    if suffix == ".tosa":
        from lowerdeck.runtime.tosa_twin import TosaTwin

        return TosaTwin(stored(".tosa"))
    raise ProgramError(
        f"this host cannot execute partitions for {delegate.backend!r}: the installed ExecuTorch runtime lacks "
        f"that backend, and host twins exist for {', '.join(twin_modules())}"
    )


def open_made_twin(delegate: Delegate, stored: Mapping[bytes, bytes], *, resolver: str, num_threads: int) -> Twin:
    """Open the twin of a delegate that this process has compiled.

    Args:
        delegate: A delegate of the program.
        stored: Payload of a delegate -> its host twin.
        resolver: See `open_delegate_twin`, also for what is raised.
        num_threads: See `open_delegate_twin`.
    """
    twin = stored.get(bytes(delegate.payload))

    def read(suffix: str) -> bytes:
        if twin is None:
            raise LowerdeckError(f"a partition for {delegate.backend} has no host twin")
        return twin

    return open_delegate_twin(delegate, read, ".tosa", resolver=resolver, num_threads=num_threads)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Convert's description of a program: its digest, inputs and outputs, and the twins of partitions."""

    program_sha256: str
    twins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """SHA-256 of a payload -> file name of its twin and the twin's SHA-256."""
    kernels: dict[str, dict[str, bool]] = field(default_factory=dict)
    """SHA-256 of a payload -> for sets of LiteRT's kernels whether convert saw them agree with the quantized model."""
    inputs: tuple[ProgramTensor, ...] = ()
    """Inputs of the method `forward`."""
    outputs: tuple[ProgramTensor, ...] = ()
    kernel_definitions: tuple[str, ...] = ()
    """Compile definitions that kernels of its operators need."""


def read_manifest(path: Path) -> Manifest:
    """The manifest that convert wrote.

    Raises:
        LowerdeckError: it is missing or malformed.
    """
    try:
        stored = json.loads(check_regular(path).read_bytes())
        twins = {
            str(partition["payload_sha256"]): (str(partition["twin"]), str(partition["twin_sha256"]))
            for partition in stored["partitions"]
            if partition["twin"] is not None
        }
        definitions = tuple(map(str, stored.get("kernel_definitions", ())))  # earlier manifests have none
        if unknown := set(definitions) - KERNEL_DEFINITIONS.keys():
            raise LowerdeckError(
                f"{path} needs kernels built with {', '.join(sorted(unknown))}, which this version does not know; it "
                f"knows {', '.join(KERNEL_DEFINITIONS)}. Execute the program with the version that built it"
            )
        return Manifest(
            program_sha256=str(stored["program"]["sha256"]),
            twins=twins,
            kernels={
                str(partition["payload_sha256"]): {
                    str(name): bool(found["agrees"]) for name, found in partition.get("kernels", {}).items()
                }
                for partition in stored["partitions"]
            },
            inputs=tuple(map(_program_tensor, stored["inputs"])),
            outputs=tuple(map(_program_tensor, stored["outputs"])),
            kernel_definitions=definitions,
        )
    except OSError as error:
        raise LowerdeckError(
            f"the manifest {path} cannot be read: {error.strerror}; `dvc repro convert` makes it"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise LowerdeckError(
            f"{path} is not a manifest of the stage convert: {type(error).__name__} {error}"
        ) from error


def _program_tensor(stored: dict[str, Any]) -> ProgramTensor:
    return ProgramTensor(**(stored | {name: tuple(stored[name]) for name in ("shape", "dim_order")}))


@dataclass(frozen=True, kw_only=True)
class TwinFinder:
    """Opens twins for one program."""

    manifest: Manifest | None
    folder: Path | None
    """Folder of the twins that the manifest names."""
    resolver: str
    num_threads: int

    def __call__(self, delegate: Delegate) -> Twin:
        """The twin of `delegate`.

        Raises:
            LowerdeckError: there is none, or the stored one does not match the manifest.
            ValueError: the payload is damaged.
        """
        return open_delegate_twin(
            delegate,
            partial(self._stored, delegate),
            self._stored_suffix(delegate),
            resolver=self._resolver(delegate),
            num_threads=self.num_threads,
        )

    def _resolver(self, delegate: Delegate) -> str:
        """The chosen resolver, unless its kernels compute something else than the quantized model and others agree."""
        known = {} if self.manifest is None else self.manifest.kernels
        agrees = known.get(hashlib.sha256(delegate.payload).hexdigest(), {})
        others = (name for name, agreed in agrees.items() if agreed)
        return self.resolver if agrees.get(self.resolver, True) else next(others, self.resolver)

    def stored_name(self, delegate: Delegate) -> str | None:
        """The file name of the twin that convert stored for `delegate`; None where there is none."""
        twins = {} if self.manifest is None else self.manifest.twins
        stored = twins.get(hashlib.sha256(delegate.payload).hexdigest())
        return None if stored is None else stored[0]

    def _stored_suffix(self, delegate: Delegate) -> str | None:
        name = self.stored_name(delegate)
        return None if name is None else Path(name).suffix

    def _stored(self, delegate: Delegate, suffix: str) -> bytes:
        """The twin that convert stored next to the program."""
        payload = hashlib.sha256(delegate.payload).hexdigest()
        what = f"the partition for {delegate.backend} with payload {payload[:12]}"
        if self.manifest is None or self.folder is None:
            raise LowerdeckError(
                f"{what} has device code only: this host needs its twin, which convert stores next to the program. "
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
        content = check_regular(path).read_bytes()
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
