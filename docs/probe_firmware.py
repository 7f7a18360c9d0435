"""Writes devices/runtimes/mlek_sse_300_executorch_26_03.yaml: what Arm's firmware offers, found out by asking it.

The names of operators are those in the firmware's file. Each is then called without arguments on the emulated device:
the runtime answers that the operator is missing, or how many arguments its kernel expects. It takes two minutes.

    python -m docs.probe_firmware [mlek_inference_runner.axf]
"""

from __future__ import annotations

import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from lowerdeck.artifacts.files import write_text
from lowerdeck.contracts.devices import DeviceError, DeviceTensor, Job, OutputSpec
from lowerdeck.devices import emulated_cortex_m55 as device
from lowerdeck.fingerprints.digests import file_digest

KEPT = Path(device.__file__).parent / "runtimes" / "mlek_sse_300_executorch_26_03.yaml"
_NAME = rb"(?<![\w:])((?:aten|cortex_m|dim_order_ops|executorch_prim|quantized_decomposed)::\w+(?:\.\w+)?)\x00"


def program_calling(operator: str) -> bytes:
    """A `.pte` whose only instruction calls `operator` without arguments."""
    from executorch.exir import schema
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

    def tensor() -> schema.EValue:
        return schema.EValue(
            schema.Tensor(
                scalar_type=schema.ScalarType.FLOAT,
                storage_offset=0,
                sizes=[4],
                dim_order=[0],
                requires_grad=False,
                layout=0,
                data_buffer_idx=0,
                allocation_info=schema.AllocationDetails(memory_id=1, memory_offset_low=0, memory_offset_high=0),
                shape_dynamism=schema.TensorShapeDynamism.STATIC,
            )
        )

    name, _, overload = operator.partition(".")
    call = schema.Instruction(schema.KernelCall(op_index=0, args=[]))
    plan = schema.ExecutionPlan(
        name="forward",
        container_meta_type=schema.ContainerMetadata("", ""),
        values=[tensor(), tensor()],
        inputs=[0],
        outputs=[1],
        chains=[schema.Chain(inputs=[], outputs=[], instructions=[call], stacktrace=None)],
        operators=[schema.Operator(name=name, overload=overload)],
        delegates=[],
        non_const_buffer_sizes=[0, 64],
    )
    program = schema.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
        mutable_data_segments=[],
        named_data=[],
    )
    return bytes(serialize_pte_binary(PTEFile(program=program)))


def answer_to(program: bytes, options: device.Options) -> str:
    """The firmware's log of one execution of `program` on four zeros."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.pte")
        path.write_bytes(program)
        job = Job(
            program=path,
            samples=[[DeviceTensor(dtype="float32", shape=(4,), content=bytes(16))]],
            outputs=(OutputSpec(dtype="float32", shape=(4,), size_bytes=16),),
            timeout_s=60.0,
            workdir=Path(folder),
        )
        try:
            return device.execute(options, job).log
        except DeviceError as error:
            return error.log


def num_arguments(operator: str, log: str) -> int | None:
    """How many arguments the operator's kernel expects; None where it does not check them.

    Raises:
        LookupError: the firmware lacks the operator.
    """
    if f"Missing operator: [0] {operator}" in log:
        raise LookupError(operator)
    if expected := re.search(r"Check failed \(stack\.size\(\) == (\d+)\)", log):
        return int(expected[1])
    return None


def main() -> None:
    """Probe the firmware and write its description."""
    options = device.Options(image=sys.argv[1] if len(sys.argv) > 1 else None)
    image = device.firmware(options)
    if image is None:
        raise SystemExit(f"the firmware is missing: {device.describe(options).missing}")
    names = sorted({match.decode() for match in re.findall(_NAME, image.read_bytes())})
    programs = [program_calling(name) for name in names]
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda program: answer_to(program, options), programs))
    operators: dict[str, int | None] = {}
    for name, log in zip(names, logs, strict=True):
        try:
            operators[name] = num_arguments(name, log)
        except LookupError:
            print(f"{name}: in the file, and not registered")
    described = {
        "name": "Arm ML Evaluation Kit inference runner for Corstone-300, ExecuTorch, Ethos-U55",
        "version": "26.03.0",
        "sha256": file_digest(image),
        "operators": operators,
        "delegates": ["EthosUBackend"],
        "max_program_bytes": device.MAX_PROGRAM_BYTES,
        "memory_bytes": {"method": 0x200000, "temporary": 0x2000000},
        "kernel_definitions": [],  # its outputs are those of kernels that round twice: docs/cortex_m.md
    }
    comment = "# What Arm's firmware offers, as `python -m docs.probe_firmware` found out; do not edit.\n"
    write_text(KEPT, comment + yaml.safe_dump(described, sort_keys=False))
    print(f"{KEPT}: {len(operators)} operators, {sum(count is None for count in operators.values())} unchecked")


if __name__ == "__main__":
    main()
