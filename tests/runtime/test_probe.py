"""lowerdeck.runtime.probe: programs of others can neither end the process that opens them nor occupy it forever."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerdeck.artifacts import paths
from lowerdeck.cli.run_program import run_program
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import read_pte
from lowerdeck.runtime import probe
from tests.marks import quick_first
from tests.runtime.lowering import Lowered


def crashes(call: Callable[[], Any]) -> bool:
    """Whether `call` ends its process, a fork of this one, by a signal."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.alarm(60)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            call()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def tamper(build: Lowered, crash: Callable[[bytes], Any]) -> None:
    """Alter bytes of the only twin or payload until `crash` of it ends a process, and correct all digests."""
    manifest = json.loads((build.folder / paths.MANIFEST).read_text())
    (partition,) = manifest["partitions"]
    payload = bytes(read_pte(build.program.read_bytes())[0].delegates[0].payload)
    twin = None if partition["twin"] is None else build.folder / paths.TWINS / partition["twin"]
    content = payload if twin is None else twin.read_bytes()
    for seed in range(60):
        generator, altered = random.Random(seed), bytearray(content)
        for _ in range(generator.choice([1, 4, 16])):
            altered[generator.randrange(len(altered))] = generator.randrange(256)
        if crashes(lambda altered=bytes(altered): crash(altered)):  # type: ignore[misc]
            break
    else:
        pytest.fail("none of 60 alterations crashes")
    if twin is None:
        program = build.program.read_bytes().replace(payload, bytes(altered))
        build.program.write_bytes(program)
        manifest["program"]["sha256"] = hashlib.sha256(program).hexdigest()
        partition["payload_sha256"] = hashlib.sha256(altered).hexdigest()
    else:
        twin.write_bytes(altered)
        partition["twin_sha256"] = hashlib.sha256(altered).hexdigest()
    (build.folder / paths.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.slow
def test_a_tampered_tosa_graph_under_a_corrected_digest(
    copied: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowerdeck.formats.tosa_graph import read_tosa_graph
    from lowerdeck.runtime.tosa_twin import read_ports

    build = copied("ethos_u")
    build.open()
    monkeypatch.setenv("PATH", "")  # the reference model would start gdb where it crashes

    def execute(graph: bytes) -> None:
        import tosa_reference_model

        inputs, _ = read_ports(read_tosa_graph(graph))
        tosa_reference_model.run(graph, [torch.zeros(port.shape, dtype=port.dtype).numpy() for port in inputs])

    tamper(build, execute)
    with pytest.raises(
        LowerdeckError, match=r"partition 0 for EthosUBackend, whose host twin is .*partition_0\.tosa: it "
    ):
        build.open(is_own_build=False)
    with pytest.raises(LowerdeckError, match=r"partition_0\.tosa"):
        run_program(build.program)


@pytest.mark.slow
def test_a_tampered_xnnpack_payload_under_a_corrected_digest(copied: Callable[[str], Lowered]) -> None:
    build = copied("xnnpack")
    intact = build.program.read_bytes()
    payload = bytes(read_pte(intact)[0].delegates[0].payload)
    build.open()

    def execute(altered: bytes) -> None:
        from lowerdeck.runtime.native import NativeEngine

        program = intact.replace(payload, altered)
        methods = read_pte(program)
        NativeEngine(program, methods, probe=False).run("forward", [torch.zeros_like(x) for x in build.samples[0]])

    tamper(build, execute)
    with pytest.raises(
        LowerdeckError, match=r"crashed \(SIG\w+\) on the program .* partitions for XnnpackBackend may be"
    ):
        build.open(is_own_build=False)


@pytest.mark.parametrize("target", quick_first(["neutron", "ethos_u", "xnnpack"]))
def test_a_trial_run_has_a_time_limit(
    copied: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.01)
    with pytest.raises(LowerdeckError, match=r"within 0\.01 s in a trial run on zeros"):
        copied(target).open(is_own_build=False)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["neutron", "ethos_u"])
def test_an_intact_program_of_others_computes_the_same(copied: Callable[[str], Lowered], target: str) -> None:
    build = copied(target)
    own, other = build.open(), build.open(is_own_build=False)
    assert torch.equal(own(*build.samples[0])[0], other(*build.samples[0])[0])


def test_a_build_of_ones_own_is_not_tried(copied: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch) -> None:
    build = copied("ethos_u")
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.01)
    monkeypatch.chdir(build.folder)
    assert run_program(paths.PROGRAM).executor.startswith("interpreter with host twins: TOSA")
    monkeypatch.chdir(build.folder.parent)
    with pytest.raises(LowerdeckError, match="in a trial run on zeros"):
        run_program(build.program)


def test_a_full_memory_is_no_damage_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "python"
    worker.write_text("#!/bin/sh\necho 'what():  std::bad_alloc' >&2\nkill -ABRT $$\n")
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    with pytest.raises(MemoryError, match="no memory left"):
        probe.probe_native(b"", [])
    with pytest.raises(MemoryError, match="no memory left"):
        probe.probe_twins(tmp_path / "program.pte", None, None, "optimized", 1, [])
