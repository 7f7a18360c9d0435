"""A test vector: a real sample as inputs of the program, and the program's outputs on this host."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.contracts.samples import FrontEndVector, Sample, Split
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.tensors import strides_of


@dataclass(frozen=True, kw_only=True)
class TestVector:
    """Inputs and outputs of one execution, in the program's memory layout."""

    __test__ = False  # pytest would collect every Test*

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    executed_by: str
    """Name of the executor, e.g. `ExecuTorch runtime`."""
    sample_sha256: str
    """Digest of the calibration sample that the inputs come from."""
    keeps_state: bool = False
    """Whether the outputs are those of the first call alone, because the program keeps state between calls."""
    front_end: FrontEndVector | None = None
    """What the dataset computed the inputs from, where a front end did."""

    def named(self) -> dict[str, torch.Tensor]:
        """The tensors by the name of their files, without suffix."""
        named = {f"input_{index}": tensor for index, tensor in enumerate(self.inputs)}
        return named | {f"expected_output_{index}": tensor for index, tensor in enumerate(self.outputs)}

    def files(self) -> dict[str, bytes]:
        """`.bin` files with the bytes as in memory, and `.npy` files in logical order of dimensions."""
        files = {}
        for name, tensor in self.named().items():
            files[f"{name}.bin"] = raw_bytes(tensor)
            files[f"{name}.npy"] = _npy(tensor)
        if self.front_end is not None:
            arrays = {"signal": self.front_end.signal, "features": self.front_end.features}
            for name, array in arrays.items():
                tensor = torch.from_numpy(np.ascontiguousarray(array))
                files |= {f"front_end_{name}.bin": raw_bytes(tensor), f"front_end_{name}.npy": _npy(tensor)}
        return files


def calibration_sample(split: Split, digests: Sequence[str]) -> Sample:
    """The first sample that calibrate used, or the first of the split where the scheme observes nothing.

    Args:
        split: The calibration split.
        digests: Digests of the samples that calibrate used, in order; none where it observed nothing.

    Raises:
        LowerdeckError: the split no longer has the sample.
    """
    if not digests:
        return split[0]
    for index in range(len(split)):
        if split.digest(index) == digests[0]:
            return split[index]
    raise LowerdeckError(
        "the calibration split lacks the first sample that calibrate used; `dvc repro -f calibrate` uses the present "
        "samples"
    )


def execute(
    program: FloatProgram,
    sample: Sequence[torch.Tensor],
    sample_sha256: str,
    front_end: FrontEndVector | None = None,
) -> TestVector:
    """Execute `program` on a sample.

    Args:
        program: The program that ships.
        sample: float32 inputs in order.
        sample_sha256: Digest of the stored sample.
        front_end: What its inputs were computed from, where a front end did.

    Raises:
        ProgramError: this host cannot execute the program, or it has outputs that are not tensors.
        LowerdeckError: the sample does not fit the program.
    """
    inputs = tuple(map(_to_dim_order, program.encode(sample), program.inputs))
    program.program.reset()
    outputs = program.program(inputs)
    if not all(isinstance(output, torch.Tensor) for output in outputs):
        raise ProgramError("the program has outputs that are not tensors, which a test vector cannot represent")
    return TestVector(
        inputs=inputs,
        outputs=tuple(map(_to_dim_order, outputs, program.outputs)),
        executed_by=program.executor,
        sample_sha256=sample_sha256,
        keeps_state=program.program.has_state,
        front_end=front_end,
    )


def bundled_program(program: bytes, vector: TestVector) -> bytes:
    """ExecuTorch's BundledProgram of a `.pte` and one test case of its method `forward`."""
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.core import BundledProgram
    from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer

    case = MethodTestCase(inputs=list(vector.inputs), expected_outputs=list(vector.outputs))
    suites = [MethodTestSuite(method_name="forward", test_cases=[case])]
    with tempfile.TemporaryDirectory() as folder:  # BundledProgram needs a file or the manager that wrote it
        path = Path(folder, "program.pte")
        path.write_bytes(program)
        bundle = BundledProgram(None, suites, str(path))
        serialized: bytes = serialize_from_bundled_program_to_flatbuffer(bundle)
    return serialized


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes in memory of a tensor in any layout without gaps.

    They are little-endian, like every host that ExecuTorch has wheels for.
    """
    flat = torch.as_strided(tensor, (tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _to_dim_order(tensor: torch.Tensor, described: ProgramTensor) -> torch.Tensor:
    """`tensor` with its dimensions in the program's memory order."""
    strides = strides_of(tensor.shape, described.dim_order)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _npy(tensor: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    # NumPy has no bfloat16; float32 holds its values exactly.
    array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
