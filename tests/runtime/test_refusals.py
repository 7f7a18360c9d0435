"""What cannot be executed exactly is refused, with a message that says why and how to fix it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lowerdeck.artifacts import paths
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.runtime.loading import open_program
from tests.runtime.lowering import Lowered


def test_reference_flavor_needs_its_program_alone(lowered: Callable[..., Lowered]) -> None:
    build = lowered("neutron", "plain")
    alone, bound = open_program(build.program), build.open()
    assert torch.equal(alone(*build.samples[0])[0], bound(*build.samples[0])[0])


def test_ethos_u_needs_manifest_and_twins(lowered: Callable[..., Lowered]) -> None:
    with pytest.raises(LowerdeckError, match="Pass both the manifest and the folder of twins"):
        open_program(lowered("ethos_u", "plain").program)


def test_missing_twin(copied: Callable[[str], Lowered]) -> None:
    build = copied("ethos_u")
    (build.folder / paths.TWINS / "partition_0.tosa").unlink()
    with pytest.raises(LowerdeckError, match=r"partition_0\.tosa cannot be read.*dvc repro convert"):
        build.open()


def test_altered_twin(copied: Callable[[str], Lowered]) -> None:
    build = copied("ethos_u")
    twin = build.folder / paths.TWINS / "partition_0.tosa"
    twin.write_bytes(twin.read_bytes()[:-1] + b"!")
    with pytest.raises(LowerdeckError, match=r"the manifest expects .* altered or belongs to another build"):
        build.open()


def test_manifest_of_another_program(copied: Callable[[str], Lowered]) -> None:
    build = copied("neutron")
    build.program.write_bytes(build.program.read_bytes() + b"\0")
    with pytest.raises(LowerdeckError, match="the file was altered"):
        build.open()


def test_manifest_without_the_payload(copied: Callable[[str], Lowered]) -> None:
    build = copied("ethos_u")
    manifest = json.loads((build.folder / paths.MANIFEST).read_text())
    manifest["partitions"][0]["payload_sha256"] = "0" * 64
    (build.folder / paths.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(LowerdeckError, match="no twin in the manifest, which has twins for 000000000000"):
        build.open()


def test_manifest_cannot_point_elsewhere(copied: Callable[[str], Lowered]) -> None:
    build = copied("ethos_u")
    manifest = json.loads((build.folder / paths.MANIFEST).read_text())
    manifest["partitions"][0]["twin"] = "../twins/partition_0.tosa"
    (build.folder / paths.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(LowerdeckError, match=r"a file name that ends in \.tosa is expected"):
        build.open()


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, "{}", '{"program": {"sha256": 1}, "partitions": 3}'])
def test_no_manifest(copied: Callable[[str], Lowered], content: str) -> None:
    build = copied("neutron")
    (build.folder / paths.MANIFEST).write_text(content)
    with pytest.raises(LowerdeckError, match="is not a manifest"):
        build.open()


def test_microcode_of_nxps_converter_needs_a_stored_twin(copied: Callable[[str], Lowered]) -> None:
    build = copied("neutron")
    data = build.program.read_bytes()
    build.program.write_bytes(data.replace(b"LDNEUREF", b"\x11" * 8))
    with pytest.raises(LowerdeckError, match="has device code only"):
        open_program(build.program)


def test_stored_twin_serves_microcode_of_nxps_converter(copied: Callable[[str], Lowered]) -> None:
    """As an SDK flavor leaves it: a payload that only its twin in the manifest explains."""
    from hashlib import sha256

    from lowerdeck.formats.pte import read_pte

    build = copied("neutron")
    expected = build.open()(*build.samples[0])[0]
    build.program.write_bytes(build.program.read_bytes().replace(b"LDNEUREF", b"\x11" * 8))
    manifest = json.loads((build.folder / paths.MANIFEST).read_text())
    payload = read_pte(build.program.read_bytes())[0].delegates[0].payload
    manifest["program"]["sha256"] = sha256(build.program.read_bytes()).hexdigest()
    manifest["partitions"][0]["payload_sha256"] = sha256(payload).hexdigest()
    (build.folder / paths.MANIFEST).write_text(json.dumps(manifest))
    assert torch.equal(build.open()(*build.samples[0])[0], expected)


def test_unknown_delegate(copied: Callable[[str], Lowered]) -> None:
    build = copied("neutron")
    build.program.write_bytes(build.program.read_bytes().replace(b"NeutronBackend", b"NeutrinoBacken"))
    message = r"cannot execute partitions for 'NeutrinoBacken'.*EthosUBackend, NeutronBackend"
    with pytest.raises(LowerdeckError, match=message):
        open_program(build.program)


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError, match=r"program\.pte cannot be read: No such file"):
        open_program(tmp_path / "program.pte")


def test_unknown_resolver(lowered: Callable[..., Lowered]) -> None:
    with pytest.raises(LowerdeckError, match="no resolver 'fast'; known are: reference, optimized, xnnpack"):
        lowered("neutron", "plain").open(resolver="fast")


@pytest.mark.parametrize("target", ["neutron", "xnnpack"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), r"takes 2 inputs and got 0; it takes float32 \[1, 8, 12, 10\]; float32"),
        ((torch.zeros(1, 8, 12, 10),), "takes 2 inputs and got 1"),
        ((torch.zeros(1, 8, 12, 11), torch.zeros(1, 16, 12, 10)), r"got float32 \[1, 8, 12, 11\]"),
        ((torch.zeros(8, 12, 10), torch.zeros(1, 16, 12, 10)), r"got float32 \[8, 12, 10\]"),
        ((torch.zeros(1, 8, 12, 10), torch.zeros(1, 16, 12, 10, dtype=torch.int8)), "input 1 .* got int8"),
        ((torch.zeros(1, 8, 12, 10), 3), "input 1 of 'forward' is a tensor, .* got int"),
    ],
)
def test_wrong_inputs(lowered: Callable[..., Lowered], target: str, inputs: tuple[object, ...], message: str) -> None:
    with pytest.raises(LowerdeckError, match=message):
        lowered(target, "two").open()(*inputs)


def test_unknown_method(lowered: Callable[..., Lowered]) -> None:
    with pytest.raises(LowerdeckError, match="no method 'backward'; it has: forward"):
        lowered("neutron", "plain").open()(torch.zeros(1, 8, 12, 10), method="backward")
