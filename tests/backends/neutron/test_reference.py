"""The reference flavor: from a real quantized network through ExecuTorch's own Neutron backend, and back out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from executorch.exir import EdgeProgramManager
from torch import nn

from lowerdeck.backends.neutron import reference, sdk
from lowerdeck.backends.neutron.child import OUTPUT_NAME
from lowerdeck.backends.neutron.converter import (
    REFERENCE,
    REFERENCE_SDK,
    Conversion,
    ConverterFlavor,
    ConverterOptions,
    convert,
)
from lowerdeck.backends.neutron.reference import neutron_converter, neutron_library_utils
from lowerdeck.backends.neutron.reference.kernel_selection import FILE_NAME
from lowerdeck.backends.neutron.reference.litert import read_graph
from lowerdeck.backends.neutron.reference.microcode import MAGIC, pack_microcode, unpack_microcode
from lowerdeck.contracts.errors import ConversionError, LowerdeckError

PROJECT_ROOT = Path(reference.__file__).parents[4]


@dataclass(frozen=True)
class Lowered:
    """What one run of the whole flow left."""

    quantized: nn.Module
    program: torch.export.ExportedProgram
    """The quantized program, exported again."""
    sample: torch.Tensor
    litert: bytes
    converted: bytes
    log: str
    pte: bytes
    workdir: Path


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.pool(torch.relu(self.conv(x)))
        return pooled


def lower(program: torch.export.ExportedProgram, dump: bool = False, profile: bool = False) -> EdgeProgramManager:
    """Lower a quantized program for imxrt700; to be called inside `sdk.intercept_conversion`."""
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
    from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    spec = generate_neutron_compile_spec("imxrt700", dump_kernel_selection_code=dump, use_profiling=profile)
    partitioner = NeutronPartitioner(
        spec, NeutronTargetSpec("imxrt700"), post_quantization_state_dict=program.state_dict
    )
    return to_edge_transform_and_lower(
        program,
        transform_passes=NeutronEdgePassManager(),
        partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    """A small network, quantized and lowered with the reference flavor, kernel selection dumped."""
    sdk.provide_sdk(REFERENCE)
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized  # noqa: F401  registers the out variants of quantize and dequantize
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer
    from executorch.exir import ExecutorchBackendConfig
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(1)
    samples = [torch.randn(1, 8, 8, 8) for _ in range(4)]
    exported = torch.export.export(TinyNet().eval(), (samples[0],), strict=True)
    prepared = prepare_pt2e(exported.module(check_guards=False), NeutronQuantizer(NeutronTargetSpec("imxrt700")))
    for sample in samples:
        prepared(sample)
    quantized = convert_pt2e(prepared)
    program = torch.export.export(quantized, (samples[0],), strict=True)

    workdir = tmp_path_factory.mktemp("convert")
    partitions: list[tuple[str, bytes, Conversion]] = []
    with sdk.intercept_conversion(REFERENCE, workdir, lambda *partition: partitions.append(partition)):
        edge = lower(program, dump=True)
    assert [tag for tag, *_ in partitions] == [folder.name for folder in workdir.iterdir()]
    [(_, litert, conversion)] = partitions
    pte = edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False)).buffer
    return Lowered(quantized, program, samples[1], litert, conversion.model, conversion.log, bytes(pte), workdir)


def context(**options: Any) -> neutron_converter.CompilationContext:
    compilation = neutron_converter.CompilationOptions(**options)
    return neutron_converter.CompilationContext(neutron_converter.getNeutronTarget("imxrt700"), compilation)


def interface(model: bytes, which: str) -> list[tuple[Any, ...]]:
    """Names, shapes, types and quantization of the graph's inputs or outputs, read by LiteRT's own classes."""
    subgraph = schema.ModelT.InitFromPackedBuf(model, 0).subgraphs[0]
    tensors = [subgraph.tensors[index] for index in getattr(subgraph, which)]
    return [
        (t.name, list(t.shape), t.type, t.quantization.scale.tolist(), t.quantization.zeroPoint.tolist())
        for t in tensors
    ]


def test_backend_extracts_the_litert_model_from_the_converted_one(lowered: Lowered) -> None:
    from executorch.backends.nxp.neutron_node_extraction import extract_artifacts_from_neutron_node

    artifacts = extract_artifacts_from_neutron_node(lowered.converted)
    assert unpack_microcode(artifacts.microcode.tobytes()) == lowered.litert
    assert artifacts.weights.tobytes().startswith(b"REFERENCE")
    assert artifacts.kernels.tobytes().startswith(b"REFERENCE")
    assert artifacts.input_indices == [0]
    assert artifacts.output_indices == [0]
    assert artifacts.payload_version == 0


@pytest.mark.parametrize("which", ["inputs", "outputs"])
def test_converted_model_keeps_the_interface(lowered: Lowered, which: str) -> None:
    assert interface(lowered.converted, which) == interface(lowered.litert, which)
    assert interface(lowered.litert, which)[0][3], "the comparison needs a quantized tensor"


def test_converted_model_says_that_it_is_for_the_host(lowered: Lowered) -> None:
    model = schema.ModelT.InitFromPackedBuf(lowered.converted, 0)
    assert lowered.converted[4:8] == b"TFL3"
    assert b"host only" in model.description
    assert "host only" in lowered.log
    assert read_graph(lowered.converted).operators == ("NeutronGraph",)


def test_pte_carries_a_model_that_litert_executes(lowered: Lowered) -> None:
    # The payload does not say where its microcode ends: what follows in the file must not matter.
    litert = unpack_microcode(lowered.pte[lowered.pte.index(MAGIC) :])
    assert litert == lowered.litert

    interpreter = Interpreter(model_content=litert)
    interpreter.allocate_tensors()
    [given], [result] = interpreter.get_input_details(), interpreter.get_output_details()
    scale, zero_point = given["quantization"]
    values = np.clip(np.round(lowered.sample.numpy() / scale) + zero_point, -128, 127).astype(given["dtype"])
    if tuple(given["shape"]) != values.shape:
        values = values.transpose(0, 2, 3, 1)
    interpreter.set_tensor(given["index"], values)
    interpreter.invoke()
    scale, zero_point = result["quantization"]
    found = (interpreter.get_tensor(result["index"]).astype(np.float32) - zero_point) * scale
    wanted = lowered.quantized(lowered.sample).detach().numpy()
    if found.shape != wanted.shape:
        found = found.transpose(0, 3, 1, 2)
    assert np.abs(found - wanted).max() <= 1.01 * scale


def test_bytes_do_not_depend_on_process_or_hash_seed(
    lowered: Lowered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert neutron_converter.convertModel(lowered.litert, context()) == lowered.converted
    assert neutron_converter.convertModel(list(lowered.litert), context()) == lowered.converted
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        conversion = convert(REFERENCE, lowered.litert, "imxrt700", ConverterOptions(), tmp_path / seed)
        assert conversion.model == lowered.converted
        assert conversion.version == reference.__version__ == "reference-1"


def test_kernel_selection_stays_in_the_folder_of_its_partition(lowered: Lowered) -> None:
    [folder] = lowered.workdir.iterdir()
    text = (folder / OUTPUT_NAME / FILE_NAME).read_text()
    assert "CONV_2D x 1" in text
    assert "host only" in text
    assert "#error" in text
    assert not Path(FILE_NAME).exists()


def test_merged_kernel_selection_is_the_sum_in_any_order(lowered: Lowered, tmp_path: Path) -> None:
    [folder] = lowered.workdir.iterdir()
    other = tmp_path / "other.c"
    other.write_text((folder / OUTPUT_NAME / FILE_NAME).read_text().replace("CONV_2D x 1", "ADD x 2"))
    reference.merge_kernel_selection_files([str(folder / OUTPUT_NAME / FILE_NAME), str(other)], str(tmp_path / "a.c"))
    reference.merge_kernel_selection_files([other, folder / OUTPUT_NAME / FILE_NAME], tmp_path / "b.c")
    assert (tmp_path / "a.c").read_bytes() == (tmp_path / "b.c").read_bytes()
    assert " ADD x 2\n" in (tmp_path / "a.c").read_text()
    assert " MAX_POOL_2D x 2\n" in (tmp_path / "a.c").read_text()

    other.write_text("int x;")
    with pytest.raises(ValueError, match=r"other\.c is not a kernel selection file of the reference flavor"):
        reference.merge_kernel_selection_files([other], tmp_path / "c.c")
    with pytest.raises(ValueError, match="at least one"):
        reference.merge_kernel_selection_files([], tmp_path / "c.c")


def test_profiling_log_reaches_the_backend(
    lowered: Lowered, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from executorch.backends.nxp import nxp_backend

    logs: list[str] = []

    class SpyMap(nxp_backend.NeutronMap):  # type: ignore[misc]  # ExecuTorch has no types
        def __init__(self, log: str, edge_to_tflite: object) -> None:
            logs.append(log)
            super().__init__(log, edge_to_tflite)

    monkeypatch.setattr(nxp_backend, "NeutronMap", SpyMap)
    with sdk.intercept_conversion(REFERENCE, tmp_path, lambda *_: None):
        lower(lowered.program, profile=True)
        lower(lowered.program)
    assert logs == [lowered.log, ""]
    assert lowered.log not in capfd.readouterr().out
    tags = sorted(folder.name for folder in tmp_path.iterdir())
    assert len(tags) == 2
    assert tags[1] == f"{tags[0]}-2", "a tag that comes again gets a folder of its own"


def test_failure_of_the_converter_comes_out_of_the_lowering(lowered: Lowered, tmp_path: Path) -> None:
    from executorch.backends.nxp.backend.neutron_converter_manager import NeutronConverterManager

    original = NeutronConverterManager.convert
    # The same SDK for the backend, but no time for the child process.
    hurried = ConverterFlavor("hurried", REFERENCE_SDK, timeout_s=0.0)
    with (
        pytest.raises(ConversionError, match=r"Partition tag\d+ was not converted.*time limit of 0 s"),
        sdk.intercept_conversion(hurried, tmp_path, lambda *_: None),
    ):
        lower(lowered.program)
    assert NeutronConverterManager.convert is original


def test_a_flavor_that_cannot_be_used_leaves_the_one_before(lowered: Lowered) -> None:
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec

    sdk.provide_sdk(ConverterFlavor("another name", REFERENCE_SDK))
    with pytest.raises(LowerdeckError, match=r"Flavor nxp cannot be used: .*cannot import neutron_converter_NONE"):
        sdk.provide_sdk(ConverterFlavor("nxp", "neutron_converter_NONE"))
    assert NeutronTargetSpec("imxrt700").get_num_macs() == 8


def test_target_properties_suit_the_backend(lowered: Lowered) -> None:
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronHWVersion, NeutronTargetSpec

    spec = NeutronTargetSpec("imxrt700")
    assert (spec.get_name(), spec.get_num_macs(), spec.is_subsystem()) == ("imxrt700", 8, False)
    assert spec.get_hw_version() == NeutronHWVersion.N3
    assert not neutron_library_utils.isNeutronTarget("imx95")
    with pytest.raises(ValueError, match=r"'imx95', allowed: imxrt700"):
        neutron_converter.getNeutronTarget("imx95")


def test_unknown_option_is_refused_as_by_the_sdk() -> None:
    with pytest.raises(AttributeError):
        context().compilationOpts.minNumOpsPerGrpah = 1  # type: ignore[attr-defined]  # the mistake that is tested


def test_converter_refuses_what_is_no_partition(lowered: Lowered) -> None:
    with pytest.raises(ValueError, match="no target"):
        neutron_converter.convertModel(lowered.litert, neutron_converter.CompilationContext())
    with pytest.raises(ValueError, match=r"not a LiteRT model: bytes 4 to 8 are b'age'"):
        neutron_converter.convertModel(b"garbage", context())
    with pytest.raises(ValueError, match="converted already"):
        neutron_converter.convertModel(lowered.converted, context())
    with pytest.raises(ValueError, match="no operators"):
        neutron_converter.convertModel(repacked(lowered.litert, operators=0, subgraphs=1), context())
    with pytest.raises(ValueError, match="2 subgraphs"):
        neutron_converter.convertModel(repacked(lowered.litert, operators=1, subgraphs=2), context())


def test_damaged_model_never_gives_another_error(lowered: Lowered) -> None:
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(lowered.litert[: generator.integers(8, len(lowered.litert))])
        damaged[generator.integers(8, len(damaged) + 1) :] = generator.bytes(64)
        try:
            read_graph(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:20], "header of 64 bytes, got 20 bytes"),
        (lambda data: b"NEUTRON!" + data[8:], "not microcode of the reference flavor"),
        (lambda data: data[:8] + b"\x07" + data[9:], "format version 7, this code reads version 1"),
        (lambda data: data[:-1], "was cut: 5 bytes of LiteRT model announced, 4 present"),
        (lambda data: data[:-1] + b"?", "was altered"),
    ],
)
def test_unpack_microcode_says_what_is_wrong(damage: Any, message: str) -> None:
    data = pack_microcode(b"model")
    assert unpack_microcode(data + b"what follows") == b"model"
    with pytest.raises(ValueError, match=message):
        unpack_microcode(damage(data))


def test_a_conversion_imports_no_large_package(lowered: Lowered, tmp_path: Path) -> None:
    """Each partition starts a process: NumPy, which flatbuffers would import, took most of its time."""
    model = tmp_path / "model.tflite"
    model.write_bytes(lowered.litert)
    code = (
        "import sys, pathlib\n"
        f"from {REFERENCE_SDK} import neutron_converter as it\n"
        "context = it.CompilationContext(it.getNeutronTarget('imxrt700'))\n"
        f"assert it.convertModel(pathlib.Path({str(model)!r}).read_bytes(), context)\n"
        "print([m for m in ('torch', 'executorch', 'mlflow', 'numpy', 'importlib.metadata') if m in sys.modules])\n"
        "import numpy\n"
        "assert numpy.zeros(1).tobytes()"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def repacked(model: bytes, operators: int, subgraphs: int) -> bytes:
    """The model with that many of its operators, its subgraph that many times."""
    import flatbuffers

    unpacked = schema.ModelT.InitFromPackedBuf(model, 0)
    unpacked.subgraphs[0].operators = unpacked.subgraphs[0].operators[:operators]
    unpacked.subgraphs = unpacked.subgraphs * subgraphs
    builder = flatbuffers.Builder(1024)
    builder.Finish(unpacked.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.fixture(autouse=True)
def _no_files_in_the_current_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Parallel builds share the current folder, so nothing may be written there."""
    folder = tmp_path_factory.mktemp("current")
    monkeypatch.chdir(folder)
    yield
    assert list(folder.iterdir()) == []
