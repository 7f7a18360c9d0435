"""lowerdeck.firmware: what is in the bundle is true, and the test vector is what the program answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import zipfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.artifacts.firmware_bundle import write_firmware, write_firmware_zip
from lowerdeck.artifacts.firmware_status import read_firmware
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.cli.run_program import run_program
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import FrontEndVector, Sample
from lowerdeck.firmware.bundle import bundle, failed_bundle
from lowerdeck.firmware.header import Placement
from lowerdeck.firmware.metadata import MISMATCH_CAVEAT, RANDOM_CAVEAT, Target
from lowerdeck.firmware.readme import readme
from lowerdeck.firmware.vector import bundled_program, calibration_sample, execute
from lowerdeck.runtime.floats import to_program
from lowerdeck.steps.convert import Converted
from tests.conftest import Lowered
from tests.firmware.compiling import compiled
from tests.graph.test_io_boundary import TARGETS, Flagged, build
from tests.marks import quick_first

PLACEMENT = Placement(array_name="model_pte", alignment_bytes=16, section="network_model_sec")
KEY, RESULTS = "cd" * 32, [("delegated accuracy", "90.00 % of 10 samples")]
DELEGATES = {"ethos_u": "EthosUBackend", "neutron": "NeutronBackend", "xnnpack": "XnnpackBackend"}


@dataclass(frozen=True)
class Bundled:
    """The small network that takes and gives integers, as firmware gets it."""

    base: Lowered
    folder: Path
    converted: Converted
    files: dict[str, bytes]

    @property
    def metadata(self) -> Any:
        return json.loads(self.files["metadata.json"])


def bundled(base: Lowered, folder: Path, front_end: FrontEndVector | None = None, **changes: Any) -> dict[str, bytes]:
    """The bundle of the build in `folder`."""
    with chdir(folder):
        vector = execute(open_converted_program("reference"), base.samples[0], "ab" * 32, front_end)
        target = Target(**{name: base.target[name] for name in ("name", "backend", "device", "options")})
        options: dict[str, Any] = {"target": target, "placement": PLACEMENT} | changes
        return bundle(paths.PROGRAM.read_bytes(), read_json(paths.MANIFEST), vector, **options)


@pytest.fixture(scope="module")
def made(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundled]:
    """(target) -> its bundle, the files also in `folder`/build/firmware."""
    known: dict[str, Bundled] = {}

    def get(target: str) -> Bundled:
        if target not in known:
            base, folder = lowered(target), tmp_path_factory.mktemp(f"bundle_{target}")
            _, converted = build(base.quantized(), Flagged(base.backend(), inputs=True, outputs=True), folder)
            files = bundled(base, folder)
            with chdir(folder):
                write_firmware(files)
                write_firmware_zip(KEY, RESULTS)
            known[target] = Bundled(base, folder, converted, files)
        return known[target]

    return get


@pytest.mark.parametrize("target", quick_first(TARGETS))
class TestEveryTarget:
    def test_the_vector_is_a_sample_and_lowerdeck_run_gives_the_same_answer(
        self, made: Callable[[str], Bundled], tmp_path: Path, target: str
    ) -> None:
        it = made(target)
        folder = it.folder / paths.FIRMWARE
        expected = to_program(it.base.samples[0][0], it.converted.inputs[0])
        assert np.array_equal(np.load(folder / "input_0.npy"), expected.numpy())
        manifest, twins = it.folder / paths.MANIFEST, it.folder / paths.TWINS
        for suffix in ("bin", "npy"):
            out = tmp_path / suffix
            run_program(folder / "program.pte", [folder / f"input_0.{suffix}"], out, manifest=manifest, twins=twins)
            for kind in ("bin", "npy"):
                answered = (out / f"output_0.{kind}").read_bytes()
                assert answered == it.files[f"expected_output_0.{kind}"]
        assert len(set(answered)) > 5

    def test_the_bundled_program_holds_program_and_vector(self, made: Callable[[str], Bundled], target: str) -> None:
        from executorch.devtools.bundled_program.serialize import deserialize_from_flatbuffer_to_bundled_program

        it = made(target)
        schema = deserialize_from_flatbuffer_to_bundled_program(it.files["program.bpte"])
        assert bytes(schema.program) == it.files["program.pte"]
        (suite,) = schema.method_test_suites
        (case,) = suite.test_cases
        assert suite.method_name == "forward"
        for value, name in ((case.inputs[0], "input_0"), (case.expected_outputs[0], "expected_output_0")):
            assert bytes(value.val.data) == it.files[f"{name}.bin"]
            assert list(value.val.sizes) == it.metadata["test_vector"]["tensors"][name]["shape"]

    def test_metadata_is_what_the_program_says(self, made: Callable[[str], Bundled], target: str) -> None:
        it = made(target)
        metadata = it.metadata
        assert [tensor["dtype"] for tensor in metadata["inputs"] + metadata["outputs"]] == ["int8", "int8"]
        assert metadata["outputs"][0]["step"] == metadata["outputs"][0]["scale"] == it.converted.outputs[0].scale
        assert metadata["delegates"] == [DELEGATES[it.base.target["backend"]]]
        assert metadata["operators"] == list(it.converted.operators)
        assert sum(metadata["memory"]["planned_bytes"].values()) == it.converted.planned_memory_bytes
        assert metadata["program"]["constant_methods"][0] == "input0_scale"
        assert metadata["test_vector"]["sample_sha256"] == "ab" * 32
        small, large = (metadata["memory"]["method_allocator_bytes"][bits] for bits in ("32_bit", "64_bit"))
        assert 0 < small < large < 4096

    def test_every_file_has_its_hash(self, made: Callable[[str], Bundled], target: str) -> None:
        it = made(target)
        hashes = it.metadata["files"]
        assert hashes == {
            name: hashlib.sha256(content).hexdigest() for name, content in it.files.items() if name != "metadata.json"
        }
        assert hashes["program.pte"] == it.metadata["program"]["sha256"]
        assert "kernel_selection.c" not in hashes
        assert "no kernel-selection source" in it.files["README.md"].decode()


def test_scratch_comes_from_the_payload(made: Callable[[str], Bundled]) -> None:
    scratch = {target: made(target).metadata["memory"]["scratch_bytes"] for target in TARGETS}
    # With Shared_Sram, what Vela plans in SRAM is the scratch memory.
    estimated = made("ethos_u55_128").converted.partitions[0].estimates["sram_bytes"]
    assert scratch["ethos_u55_128"]["partitions"] == [estimated]
    assert scratch["neutron_imxrt700"]["partitions"] == [16]  # what the reference flavor writes
    assert scratch["xnnpack_cpu"]["largest"] is None
    assert f"| {int(estimated):,} |" in made("ethos_u55_128").files["README.md"].decode()


def test_executorchs_runtime_verifies_the_bundled_program(made: Callable[[str], Bundled]) -> None:
    from executorch.extension.pybindings import _C

    it = made("xnnpack_cpu")
    _C._load_bundled_program_from_buffer(it.files["program.bpte"]).verify_result_with_bundled_expected_output(
        "forward", 0, 0.0, 0.0
    )
    with chdir(it.folder):
        vector = execute(open_converted_program("reference"), it.base.samples[0], "ab" * 32)
    wrong = dataclasses.replace(vector, outputs=(vector.outputs[0] + 1,))
    damaged = _C._load_bundled_program_from_buffer(bundled_program(it.files["program.pte"], wrong))
    with pytest.raises(RuntimeError, match="verification failed"):
        damaged.verify_result_with_bundled_expected_output("forward", 0, 0.0, 0.0)


def test_firmware_gets_the_expected_output_from_the_header(made: Callable[[str], Bundled]) -> None:
    """With ExecuTorch's C++ runtime, the memory that metadata.json names, and some more for the delegate."""
    it = made("xnnpack_cpu")
    folder, memory = it.folder / paths.FIRMWARE, it.metadata["memory"]
    flags = [
        f"-I{folder}",
        f"-DPLANNED_BYTES={memory['planned_bytes']['1']}",
        f"-DMETHOD_ALLOCATOR_BYTES={memory['method_allocator_bytes']['64_bit'] + 512}",
    ]
    ran = subprocess.run(
        [compiled("runner.cpp", it.folder, *flags), folder / "input_0.bin"], capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stdout == it.files["expected_output_0.bin"]


def test_a_host_only_flavor_is_said_first(made: Callable[[str], Bundled]) -> None:
    neutron, ethos_u = made("neutron_imxrt700"), made("ethos_u55_128")
    assert neutron.metadata["runs_on_target"] is False
    assert ethos_u.metadata["runs_on_target"] is True
    caveat = "Reference flavor: runs on the host only, not on the NPU"
    assert neutron.files["README.md"].decode().splitlines()[2] == f"**{caveat}.**"
    assert neutron.files["model_pte.h"].decode().splitlines()[1] == f" * {caveat[0].lower()}{caveat[1:]}"
    assert neutron.metadata["caveats"] == [f"{caveat[0].lower()}{caveat[1:]}"]
    assert ethos_u.metadata["caveats"] == []
    assert "on the host only" not in ethos_u.files["README.md"].decode()


def test_programs_of_floats(lowered: Callable[[str], Lowered]) -> None:
    """Without integers at the I/O boundary; CPU kernels are listed as ExecuTorch's selective build takes them."""
    base = lowered("ethos_u55_128")
    files = bundled(base, base.folder)
    metadata = json.loads(files["metadata.json"])
    operators = ["quantized_decomposed::dequantize_per_tensor.out", "quantized_decomposed::quantize_per_tensor.out"]
    assert sorted(metadata["operators"]) == operators
    selected = yaml.safe_load(files["selected_operators.yaml"])
    assert sorted(selected["operators"]) == operators
    assert selected["et_kernel_metadata"][operators[0]] == ["v1/1;0,1|6;0,1|6;0,1"]  # int8 to float
    assert np.array_equal(np.load(BytesIO(files["input_0.npy"])), base.samples[0][0].numpy())
    assert metadata["outputs"][0]["scale"] is None
    assert metadata["outputs"][0]["step"] > 0


def test_data_files_of_the_program_are_handed_over(lowered: Callable[[str], Lowered]) -> None:
    base = lowered("ethos_u55_128")
    files = bundled(base, base.folder, data_files={"weights.ptd": b"content"})
    assert files["weights.ptd"] == b"content"
    assert json.loads(files["metadata.json"])["data_files"] == ["weights.ptd"]
    assert "It also needs `weights.ptd`" in files["README.md"].decode()


def test_inputs_of_any_size_are_given_with_their_shape(made: Callable[[str], Bundled]) -> None:
    metadata = made("xnnpack_cpu").metadata
    metadata["inputs"][0]["is_dynamic"] = True
    page = readme(metadata)
    assert "| input 0 | x | int8 | up to [1, 3, 32, 32] |" in page
    assert "--inputs input_0.npy " in page


def test_kernel_selection_and_random_samples(lowered: Callable[[str], Lowered]) -> None:
    base = lowered("neutron_imxrt700")
    files = bundled(base, base.folder, kernel_selection=b"/* kernels */\n", structural=True)
    assert files["kernel_selection.c"] == b"/* kernels */\n"
    assert "`kernel_selection.c` names the NPU's kernels" in files["README.md"].decode()
    metadata = json.loads(files["metadata.json"])
    assert metadata["kernel_selection"] == "kernel_selection.c"
    assert metadata["caveats"][1] == RANDOM_CAVEAT


def test_accepted_mismatches_are_said_first(lowered: Callable[[str], Lowered]) -> None:
    base = lowered("neutron_imxrt700")
    files = bundled(base, base.folder, mismatches=("partition tag0: conv is off by up to 9 LSB",))
    metadata, said = (
        json.loads(files["metadata.json"]),
        f"{MISMATCH_CAVEAT}: partition tag0: conv is off by up to 9 LSB",
    )
    assert metadata["mismatches"] == ["partition tag0: conv is off by up to 9 LSB"]
    assert metadata["caveats"][0] == said
    assert files["README.md"].decode().split("\n\n")[1] == f"**{said[0].upper()}{said[1:]}.**"
    assert said in files["model_pte.h"].decode()


def test_the_same_build_gives_the_same_bytes_anywhere(made: Callable[[str], Bundled], tmp_path: Path) -> None:
    it = made("ethos_u55_128")
    (tmp_path / "elsewhere").mkdir()
    with chdir(it.folder):
        before = paths.FIRMWARE_ZIP.read_bytes()
    files = bundled(it.base, it.folder)
    with chdir(tmp_path / "elsewhere"):
        write_firmware(dict(reversed(files.items())))
        write_firmware_zip(KEY, RESULTS)
        assert paths.FIRMWARE_ZIP.read_bytes() == before
    with zipfile.ZipFile(BytesIO(before)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist() == sorted(f"firmware/{name}" for name in files)
        recorded = {"README.md", "metadata.json", "src/build_record.h"}
        same = {name: content for name, content in files.items() if name not in recorded}
        assert all(archive.read(f"firmware/{name}") == content for name, content in same.items())
        assert all(KEY in archive.read(f"firmware/{name}").decode() for name in recorded)


def test_a_bundle_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    with chdir(tmp_path):
        write_firmware({"a": b"1"})
        with pytest.raises(TypeError):
            write_firmware({"a": b"2", "b": None})  # type: ignore[dict-item]  # the mistake that is tested
        assert (paths.FIRMWARE / "a").read_bytes() == b"1"
        assert sorted(path.name for path in paths.BUILD.iterdir()) == ["firmware", "firmware.json"]


def test_a_bundle_that_could_not_be_made_says_so(tmp_path: Path) -> None:
    target = Target(name="xnnpack_cpu", backend="xnnpack", device={}, options={})
    with chdir(tmp_path):
        assert write_firmware({"a": b"1"}).startswith("1 files in")
        assert read_firmware() == (None, None)
        said = write_firmware(failed_bundle(target, "no such kernel"), "no such kernel")
        assert said == "there is no bundle for this program: no such kernel"
        assert read_firmware() == ("no such kernel", None)
        assert read_json(paths.FIRMWARE / "metadata.json")["failure"] == "no such kernel"
        write_firmware_zip(KEY, RESULTS)
        with zipfile.ZipFile(paths.FIRMWARE_ZIP) as archive:
            assert "could not be made:** no such kernel" in archive.read("firmware/README.md").decode()


class Split:
    """Samples that are their own index."""

    def __len__(self) -> int:
        return 5

    def digest(self, index: int) -> str:
        return f"{index:064x}"

    def __getitem__(self, index: int) -> Sample:
        return Sample(inputs=(torch.tensor([float(index)]),), label=None, digest=self.digest(index))


def test_the_vector_is_the_first_sample_that_was_calibrated_with() -> None:
    split = Split()
    assert calibration_sample(split, [split.digest(3), split.digest(0)]).inputs[0].item() == 3
    assert calibration_sample(split, []).inputs[0].item() == 0
    with pytest.raises(LowerdeckError, match="dvc repro -f calibrate"):
        calibration_sample(split, ["f" * 64])
