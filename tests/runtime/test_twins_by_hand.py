"""lowerdeck.runtime.twins: manifests made by hand, and twins that are not a delegate's own."""

from __future__ import annotations

import importlib
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.backends.ethos_u.twin import DELEGATE_ID as ETHOS_U
from lowerdeck.backends.neutron.twin import DELEGATE_ID as NEUTRON
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import Delegate
from lowerdeck.runtime.twins import Manifest, TwinFinder, read_manifest, twin_modules

PAYLOAD = bytes(16) + b"device code"
"""With the header of a Neutron payload that takes, gives and passes nothing."""
DIGEST, GRAPH = sha256(PAYLOAD).hexdigest(), b"a graph"
TENSOR = {"name": "x", "dtype": "float32", "shape": [1, 4], "dim_order": [0, 1]}
STORED: dict[str, Any] = {
    "program": {"sha256": "p"},
    "inputs": [TENSOR],
    "outputs": [TENSOR | {"name": "y"}, TENSOR],
    "partitions": [
        {"payload_sha256": "a", "twin": "a.tosa", "twin_sha256": "b"},
        {"payload_sha256": "c", "twin": None, "twin_sha256": None},
    ],
}


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps(STORED | changed))
    return path


def test_a_manifest_is_read(tmp_path: Path) -> None:
    read = read_manifest(written(tmp_path))
    assert (read.program_sha256, read.twins) == ("p", {"a": ("a.tosa", "b")})
    assert [tensor.name for tensor in read.inputs] == ["x"]
    assert [tensor.name for tensor in read.outputs] == ["y", "x"]
    assert (read.inputs[0].shape, read.inputs[0].dim_order) == ((1, 4), (0, 1))


@pytest.mark.parametrize(
    "changed", [{"program": {}}, {"inputs": None}, {"inputs": [{"name": "x"}]}, {"partitions": [1]}]
)
def test_what_is_no_manifest(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(LowerdeckError, match=r"manifest\.json is not a manifest of the stage convert: "):
        read_manifest(written(tmp_path, **changed))


def test_what_is_no_json_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("{")
    with pytest.raises(LowerdeckError, match="text is not a manifest"):
        read_manifest(tmp_path / "text")
    with pytest.raises(LowerdeckError, match=r"none cannot be read: No such file.*`dvc repro convert` makes it"):
        read_manifest(tmp_path / "none")


def find(folder: Path | None, backend: str, twins: dict[str, tuple[str, str]] | None) -> object:
    manifest = None if twins is None else Manifest(program_sha256="", twins=twins)
    finder = TwinFinder(manifest=manifest, folder=folder, resolver="reference", num_threads=1)
    return finder(Delegate(backend, memoryview(PAYLOAD)))


def stored(folder: Path, name: str = "a.tosa") -> dict[str, tuple[str, str]]:
    (folder / name).write_bytes(GRAPH)
    return {DIGEST: (name, sha256(GRAPH).hexdigest())}


def test_twins_are_found_by_their_place() -> None:
    modules = twin_modules()
    assert {name: importlib.import_module(module).DELEGATE_ID for name, module in modules.items()} == {
        name: name for name in (ETHOS_U, NEUTRON)
    }


def test_without_manifest_or_folder_there_is_device_code_only(tmp_path: Path) -> None:
    for folder, twins in ((tmp_path, None), (None, stored(tmp_path))):
        with pytest.raises(LowerdeckError, match=f"EthosUBackend with payload {DIGEST[:12]} has device code only"):
            find(folder, ETHOS_U, twins)


@pytest.mark.parametrize(("twins", "known"), [({}, "none"), ({"f" * 64: ("x.tosa", "")}, "f" * 12 + ":")])
def test_a_manifest_of_another_build(tmp_path: Path, twins: dict[str, tuple[str, str]], known: str) -> None:
    with pytest.raises(LowerdeckError, match=f"no twin in the manifest, which has twins for {known}"):
        find(tmp_path, ETHOS_U, twins)


@pytest.mark.parametrize("name", ["../a.tosa", "a.tflite", "sub/a.tosa"])
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(LowerdeckError, match=r"a file name that ends in \.tosa is expected"):
        find(tmp_path, ETHOS_U, {DIGEST: (name, "")})


def test_a_twin_that_is_gone_or_altered(tmp_path: Path) -> None:
    twins = stored(tmp_path)
    (tmp_path / "a.tosa").write_bytes(b"altered")
    found = sha256(b"altered").hexdigest()[:12]
    with pytest.raises(LowerdeckError, match=f"has SHA-256 {found}, the manifest expects {twins[DIGEST][1][:12]}"):
        find(tmp_path, ETHOS_U, twins)
    (tmp_path / "a.tosa").unlink()
    with pytest.raises(LowerdeckError, match=r"a\.tosa cannot be read: No such file"):
        find(tmp_path, ETHOS_U, twins)


def test_a_graph_is_given_to_its_executor_whatever_the_backend(tmp_path: Path) -> None:
    """What is no TOSA graph gets as far as the reader of TOSA graphs."""
    for backend in (ETHOS_U, "SomeBackend"):
        with pytest.raises(ValueError, match="not a TOSA graph"):
            find(tmp_path, backend, stored(tmp_path))


def test_an_unknown_backend_without_a_graph(tmp_path: Path) -> None:
    for twins in (None, {}, stored(tmp_path, "a.tflite")):
        with pytest.raises(LowerdeckError, match=r"'SomeBackend': .*EthosUBackend, NeutronBackend"):
            find(tmp_path, "SomeBackend", twins)


def test_microcode_without_a_model_needs_one_in_its_own_format(tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError, match=r"a file name that ends in \.tflite is expected"):
        find(tmp_path, NEUTRON, stored(tmp_path))
