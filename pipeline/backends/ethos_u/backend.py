"""The Ethos-U backend behind contracts.Backend."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import executorch.exir  # noqa: F401  imported first: the quantizer's imports are two seconds quicker after it
from executorch.backends.arm.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner

from pipeline.backends.ethos_u import DECLARATION, Device, Options
from pipeline.backends.ethos_u.payload import scratch_bytes
from pipeline.contracts import (
    CompiledPartition,
    ConversionError,
    Converter,
    Lowering,
    QuantizationScheme,
    UnsupportedQuantizationError,
)

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

_VELA_CONFIG = "Arm/vela.ini"


@dataclass(frozen=True, kw_only=True)
class EthosU:
    """Lowers to Arm Ethos-U with ExecuTorch's Arm backend and Vela."""

    name: ClassVar[str] = "ethos_u"
    device: Device
    options: Options | None = None
    flavor: str = "vela"
    converter_name: str = "vela"
    timeout_s: float = 600.0

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """EthosUQuantizer with symmetric 8-bit weights, and activations of 8 or 16 bits, for the whole model.

        Raises:
            UnsupportedQuantizationError: a scheme or granularity that the NPU has no arithmetic for.
        """
        from executorch.backends.arm.quantizer import (
            get_symmetric_a16w8_quantization_config,
            get_symmetric_quantization_config,
        )

        from pipeline.backends.ethos_u.quantizer import YieldingQuantizer

        if scheme.weight_granularity not in DECLARATION.schemes.get(scheme.name, ()):
            raise UnsupportedQuantizationError(
                f"ethos_u has no quantizer for {scheme.name!r} with {scheme.weight_granularity} weights; it has: "
                f"{', '.join(DECLARATION.schemes)}"
            )
        configs = {"int8": get_symmetric_quantization_config, "int16x8": get_symmetric_a16w8_quantization_config}
        config = configs[scheme.name](is_per_channel=scheme.weight_granularity != "per_tensor", is_qat=scheme.is_qat)
        quantizer: Quantizer = YieldingQuantizer(self._compile_spec()).set_global(config)
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """EthosUPartitioner for this accelerator."""
        return Lowering(partitioner=EthosUPartitioner(self._compile_spec()), reasons=_rejections)

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Run Vela for every partition in a process and folder of its own; the TOSA graph becomes the host twin."""
        compiled: list[CompiledPartition] = []

        def compile_tosa(tosa: bytes, compile_spec: EthosUCompileSpec) -> Any:
            from executorch.backends.arm.arm_vela import VelaCompileResult

            folder = workdir / f"partition_{len(compiled)}"
            payload, estimates = self._run_vela(tosa, list(compile_spec.compiler_flags), folder)
            compiled.append(
                CompiledPartition(
                    payload=payload,
                    twin=tosa,
                    twin_format="tosa",
                    estimates=estimates,
                    scratch_bytes=scratch_bytes(payload),
                )
            )
            return VelaCompileResult(payload)

        original = EthosUBackend._compile_tosa_flatbuffer
        EthosUBackend._compile_tosa_flatbuffer = staticmethod(compile_tosa)
        try:
            yield compiled
        finally:
            EthosUBackend._compile_tosa_flatbuffer = staticmethod(original)

    def converter(self) -> Converter:
        """The installed Vela."""
        return Converter(flavor=self.flavor, name="ethos-u-vela", version=importlib.metadata.version("ethos-u-vela"))

    def _compile_spec(self) -> EthosUCompileSpec:
        # The quantizer looks at the accelerator only; without options the compile spec's own defaults do.
        if self.options is None:
            return EthosUCompileSpec(self.device.accelerator)
        return EthosUCompileSpec(
            self.device.accelerator,
            system_config=self.options.system_config,
            memory_mode=self.options.memory_mode,
            config_ini=_VELA_CONFIG,
        )

    def _run_vela(self, tosa: bytes, flags: list[str], folder: Path) -> tuple[bytes, dict[str, float]]:
        """Vela's command stream for one TOSA graph, and what Vela predicts of it.

        Raises:
            ConversionError: Vela failed or exceeded the time limit; names the folder that holds its input and log.
        """
        from executorch.backends.arm import arm_vela

        folder.mkdir(parents=True)
        (folder / "model.tosa").write_bytes(tosa)
        (folder / "job.json").write_text(json.dumps({"arm_vela": arm_vela.__file__, "flags": flags}))
        command = [sys.executable, str(Path(__file__).with_name("vela_worker.py").resolve()), "job.json"]
        with (folder / "vela.log").open("wb") as log:
            try:
                code = subprocess.run(
                    command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=self.timeout_s
                ).returncode
            except subprocess.TimeoutExpired:
                raise ConversionError(
                    f"Vela did not finish {folder.name} within {self.timeout_s:g} s (flavor.timeout_s). "
                    f"Its input and log are in {folder}"
                ) from None
        if code != 0:
            tail = "\n".join((folder / "vela.log").read_text(errors="replace").strip().splitlines()[-5:])
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ConversionError(
                f"Vela {ended} on {folder.name}:\n{tail}\nReproduce it alone, in {folder}: {' '.join(command)}"
            )
        estimates: dict[str, float] = json.loads((folder / "report.json").read_text())
        if self.options is not None:
            estimates["inference_time_ms"] = (
                1e3 * estimates["total_cycles"] / _core_clock_hz(self.options.system_config)
            )
        return (folder / "payload.bin").read_bytes(), estimates


@contextmanager
def _rejections() -> Iterator[Callable[[torch.fx.Node], str | None]]:
    """Keep the reporter that the partitioner fills while it decides."""
    from executorch.backends.arm.tosa import partitioner as arm_partitioner

    reporters: list[Any] = []
    original = arm_partitioner.WhyNoPartitionReporter

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            reporters.append(self)

    arm_partitioner.WhyNoPartitionReporter = Recorded
    try:
        yield lambda node: next(
            (report._rejected_nodes[node] for report in reporters if node in report._rejected_nodes), None
        )
    finally:
        arm_partitioner.WhyNoPartitionReporter = original


def _core_clock_hz(system_config: str) -> float:
    """Clock of the NPU in a system of the vela.ini that comes with Vela."""
    import ethosu.vela

    ini = configparser.ConfigParser()
    path = Path(ethosu.vela.__file__).parents[1] / "config_files" / _VELA_CONFIG
    assert ini.read(path), f"{path} is missing"
    return float(ini[f"System_Config.{system_config}"]["core_clock"])
