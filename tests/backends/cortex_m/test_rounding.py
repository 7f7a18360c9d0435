"""`target.device.rounding`: the `.pte` is the same; all that executes or ships it computes as CMSIS-NN is built."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.files import read_json
from lowerdeck.artifacts.host_programs import kernel_definitions
from lowerdeck.cli.main import main
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING
from lowerdeck.devices.images import kept_image
from lowerdeck.firmware import cmsis
from lowerdeck.runtime.loading import open_made_program, open_program
from lowerdeck.runtime.twins import read_manifest
from lowerdeck.steps.convert import Converted, convert
from tests.conftest import Lowered, backend_for
from tests.firmware.test_bundle import bundled

ONCE = {"cpu": "m55", "rounding": "single"}


@dataclasses.dataclass(frozen=True)
class Both:
    """One network for a Cortex-M55, built for both ways of rounding."""

    twice: Lowered
    once: Converted
    folder: Path
    """The build that rounds once."""


@pytest.fixture(scope="module")
def both(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Both:
    base, folder = lowered("cortex_m55"), tmp_path_factory.mktemp("once")
    backend, manager = backend_for(base.target | {"device": ONCE}), base.edge()
    with chdir(folder), converter_folder() as workdir:
        converted = convert(manager, base.plan, backend, workdir)
    with chdir(folder):
        write_converted(converted, base.converter)
    return Both(base, converted, folder)


def test_the_program_is_the_same_and_its_manifest_states_the_rounding(both: Both) -> None:
    assert both.once.program == both.twice.converted.program
    assert both.once.kernel_definitions == (SINGLE_ROUNDING,)
    assert both.twice.converted.kernel_definitions == ()
    with chdir(both.folder):
        assert kernel_definitions() == (SINGLE_ROUNDING,)


def test_the_host_computes_as_the_manifest_says(both: Both) -> None:
    found = {
        name: open_program(folder / paths.PROGRAM, manifest=folder / paths.MANIFEST)
        for name, folder in (("once", both.folder), ("twice", both.twice.folder))
    }
    made = open_made_program(both.once.program, {}, kernel_definitions=both.once.kernel_definitions)
    differ = 0
    for seed in range(30):
        image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        (once,), (twice,) = (program(image.to(memory_format=torch.channels_last)) for program in found.values())
        assert torch.equal(once, made(image.to(memory_format=torch.channels_last))[0])
        differ += not torch.equal(once, twice)
    assert differ


def test_beneath_an_npu_the_fallbacks_rounding_counts() -> None:
    def needed(fallback: dict[str, Any] | None) -> Sequence[str]:
        library = None if fallback is None else {"backend": "cortex_m", "device": fallback}
        device = {"accelerator": "ethos-u55-128"}
        return backends.create("ethos_u", device=device, fallback=library).kernel_definitions

    assert (needed(ONCE), needed({"cpu": "m55"}), needed(None)) == ((SINGLE_ROUNDING,), (), ())


def test_a_runtime_that_rounds_otherwise_is_refused(
    both: Both, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "image.yaml"
    described = dataclasses.asdict(kept_image("mlek_sse_300_executorch_26_03"))
    described |= {"operators": dict.fromkeys(both.once.operators), "kernel_definitions": []}
    for program, definitions, lacking in (
        (both.folder, [], f"kernels built with {SINGLE_ROUNDING}; its kernels round twice"),
        (both.folder, [SINGLE_ROUNDING], None),
        (both.twice.folder, [SINGLE_ROUNDING], f"kernels built without {SINGLE_ROUNDING}; its kernels round once"),
        (both.twice.folder, [], None),
    ):
        image.write_text(yaml.safe_dump(json.loads(json.dumps(described | {"kernel_definitions": definitions}))))
        assert main(["check-runtime", str(program / paths.PROGRAM), str(image)]) == (lacking is not None)
        assert (lacking or "has all") in "".join(capsys.readouterr())


def test_firmware_defines_it_for_its_kernels(both: Both, tmp_path: Path) -> None:
    once, twice = bundled(both.twice, both.folder), bundled(both.twice, both.twice.folder)
    for name in ("model.cmake", cmsis.LAYER, cmsis.SOLUTION, "README.md", "metadata.json"):
        assert SINGLE_ROUNDING in once[name].decode(), name
        assert SINGLE_ROUNDING not in twice[name].decode(), name
    assert json.loads(once["metadata.json"])["requirements"]["kernel_definitions"] == [SINGLE_ROUNDING]
    assert once["program.pte"] == twice["program.pte"]
    layer, solution = (yaml.safe_load(once[name]) for name in (cmsis.LAYER, cmsis.SOLUTION))
    assert SINGLE_ROUNDING in layer["layer"]["define"]
    assert solution["solution"]["target-types"][0]["define"] == [SINGLE_ROUNDING]
    components = [entry["component"] for entry in layer["layer"]["components"]]
    assert "ARM::CMSIS:NN Lib" in components
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs cc: apt-get install gcc")
    for files, defined, compiles in (
        (once, True, True),
        (once, False, False),
        (twice, False, True),
        (twice, True, False),
    ):
        (tmp_path / "model_config.h").write_bytes(files["src/model_config.h"])
        command = [compiler, "-fsyntax-only", *([f"-D{SINGLE_ROUNDING}"] if defined else []), "model_config.h"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is compiles, done.stderr
        assert compiles or "this program was checked for kernels built" in done.stderr


def test_a_definition_of_a_later_version_is_refused(both: Both, tmp_path: Path) -> None:
    manifest = read_json(both.folder / paths.MANIFEST)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"kernel_definitions": ["CMSIS_NN_TRUNCATE"]}))
    with pytest.raises(LowerdeckError, match="CMSIS_NN_TRUNCATE, which this version does not know; it knows CMSIS_NN"):
        read_manifest(tmp_path / "manifest.json")
    del manifest["kernel_definitions"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_manifest(tmp_path / "manifest.json").kernel_definitions == ()
