"""The peer: one Python process that makes the same ExecuTorch calls in a row, as a tutorial would.

python -m benchmarks.cold_build.single_process TARGET NUM_CALIBRATION NUM_EVALUATION OUTPUT.pte
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torchvision
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

Run = Callable[[torch.Tensor], torch.Tensor]
Lowered = tuple[bytes, Run]
"""The `.pte`, and what executes its partition."""
Flow = tuple[Quantizer, Callable[[torch.export.ExportedProgram], Lowered]]


def main(target: str, num_calibration: int, num_evaluation: int, output: Path) -> None:
    """Export, quantize, lower, write and evaluate MobileNetV2 with random weights at 224x224."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as the pipeline does, for the sake of reproducible ranges
    model = torchvision.models.mobilenet_v2(weights=None).eval()
    samples = [(torch.randn(1, 3, 224, 224),) for _ in range(num_calibration + num_evaluation)]
    strict = target == "neutron_imxrt700"  # NeutronQuantizer annotates nothing otherwise
    quantizer, lower = {
        "neutron_imxrt700": neutron,
        "ethos_u55_128": ethos_u,
        "ethos_u85_256": ethos_u,
        "xnnpack_cpu": xnnpack,
    }[target](target)

    exported = torch.export.export(model, samples[0], strict=strict)
    prepared = prepare_pt2e(exported.module(check_guards=False), quantizer)
    with torch.no_grad():
        for inputs in samples[:num_calibration]:
            prepared(*inputs)
    quantized = convert_pt2e(prepared)
    program, execute = lower(torch.export.export(quantized, samples[0], strict=strict))
    output.write_bytes(program)
    evaluate([model, quantized, execute], samples[num_calibration:])


def neutron(target: str) -> Flow:
    """NXP's flow, with the project's reference converter in place of the SDK that cannot be had here."""
    from lowerdeck.backends.neutron.converter import REFERENCE
    from lowerdeck.backends.neutron.sdk import provide_sdk

    provide_sdk(REFERENCE)
    from executorch.backends.nxp.backend.neutron_converter_manager import NeutronConverterManager
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
    from executorch.backends.nxp.edge_passes.remove_additional_quantize_dequantize_nodes_pass import (
        RemoveAdditionalQDQClustersPass,
    )
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
    from executorch.backends.nxp.nxp_backend import core_aten_ops_exception_list, generate_neutron_compile_spec
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

    spec = NeutronTargetSpec("imxrt700")

    models: list[bytes] = []
    convert = NeutronConverterManager.convert

    def convert_and_keep(manager: object, model: bytes, *arguments: object) -> bytes:
        models.append(bytes(model))
        converted: bytes = convert(manager, model, *arguments)
        return converted

    NeutronConverterManager.convert = convert_and_keep

    def lower(program: torch.export.ExportedProgram) -> Lowered:
        partitioner = NeutronPartitioner(
            generate_neutron_compile_spec("imxrt700"),
            spec,
            post_quantization_state_dict=program.state_dict,
            preserve_ops=[
                torch.ops.aten.prelu.default,
                torch.ops.aten.pad.default,
                torch.ops.aten.hardswish.default,
            ],
        )
        manager = to_edge_transform_and_lower(
            program,
            transform_passes=NeutronEdgePassManager(),
            partitioner=[partitioner],
            compile_config=EdgeCompileConfig(
                _check_ir_validity=False, _core_aten_ops_exception_list=core_aten_ops_exception_list
            ),
        )
        manager = manager.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))
        load_quantized_kernels()
        buffer = manager.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False)).buffer
        return buffer, litert(models[0])

    return NeutronQuantizer(spec), lower


def ethos_u(target: str) -> Flow:
    """Arm's flow, Vela called in this process."""
    from executorch.backends.arm.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
    from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config

    system, memory = {
        "ethos_u55_128": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
        "ethos_u85_256": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
    }[target]
    spec = EthosUCompileSpec(target.replace("_", "-"), system_config=system, memory_mode=memory)

    graphs: list[bytes] = []
    compile_tosa = EthosUBackend._compile_tosa_flatbuffer

    def compile_and_keep(graph: bytes, compile_spec: object) -> bytes:
        graphs.append(graph)
        compiled: bytes = compile_tosa(graph, compile_spec)
        return compiled

    EthosUBackend._compile_tosa_flatbuffer = staticmethod(compile_and_keep)

    def lower(program: torch.export.ExportedProgram) -> Lowered:
        manager = to_edge_transform_and_lower(program, partitioner=[EthosUPartitioner(spec)])
        load_quantized_kernels()
        return manager.to_executorch().buffer, tosa(graphs[0])

    return EthosUQuantizer(spec).set_global(get_symmetric_quantization_config(is_per_channel=True)), lower


def xnnpack(target: str) -> Flow:
    """ExecuTorch's XNNPACK flow."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    def lower(program: torch.export.ExportedProgram) -> Lowered:
        manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        buffer = manager.to_executorch().buffer
        return buffer, executorch(buffer)

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True)), lower


def load_quantized_kernels() -> None:
    """Out variants for the quantize and dequantize nodes at the program's I/O boundary."""
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized  # noqa: F401


def litert(model: bytes) -> Run:
    """The partition by LiteRT's reference kernels, as the pipeline's host runtime executes it."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model, num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    (details,) = interpreter.get_input_details()

    def run(image: torch.Tensor) -> torch.Tensor:
        quantized = torch.clamp(torch.round(image * 32), -128, 127).to(torch.int8).reshape(tuple(details["shape"]))
        interpreter.set_tensor(details["index"], quantized.numpy())
        interpreter.invoke()
        return torch.from_numpy(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))

    return run


def tosa(graph: bytes) -> Run:
    """The partition by the TOSA reference model, as the pipeline's host runtime executes it."""
    import tosa_reference_model

    def run(image: torch.Tensor) -> torch.Tensor:
        quantized = torch.clamp(torch.round(image * 32), -128, 127).to(torch.int8)
        outputs, _ = tosa_reference_model.run(graph, [quantized.numpy()])
        return torch.from_numpy(outputs[0])

    return run


def executorch(program: bytes) -> Run:
    """The program by ExecuTorch's runtime."""
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    module = _load_for_executorch_from_buffer(program)
    return lambda image: module.run_method("forward", (image,))[0]


def evaluate(programs: Sequence[Run], samples: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Top-1 of the float, the quantized and the delegated program, on the same samples."""
    with torch.no_grad():
        for inputs in samples:
            for run in programs:
                run(*inputs).argmax()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
