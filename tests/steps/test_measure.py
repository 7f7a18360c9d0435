"""A program on a device: what is measured, compared and refused; the device is a stand-in of a few lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge

from lowerdeck import tasks
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.artifacts.measurements import write_measurement
from lowerdeck.contracts.devices import DeviceDescription, DeviceError, DeviceTensor, Execution, Job, Provenance
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.contracts.runtime_images import RuntimeImage
from lowerdeck.devices.self_test import expected
from lowerdeck.evaluation import defects, gates
from lowerdeck.evaluation.records import ChosenTask
from lowerdeck.report.summary import device_rows
from lowerdeck.steps.device_metrics import class_scores, device_metrics, host_outputs, output_difference
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Measurement, Place, Settings

SAMPLES = expected.samples(3)
IMAGE = RuntimeImage(
    name="stand-in", version="1", sha256="ab" * 32, operators={"aten::add.out": 5, "aten::mul.out": None}, delegates=[]
)


def exact(job: Job) -> Execution:
    """x * x + x, and a latency for each repetition."""
    outputs = []
    for (sample,) in job.samples:
        x = np.frombuffer(sample.content, np.float32)
        outputs.append([DeviceTensor(dtype="float32", shape=(1, 16), content=(x * x + x).tobytes())])
    latencies = [1.0 + index for index in range(job.repetitions)]
    return Execution(outputs=outputs, latencies_ms=latencies, metrics={"method_allocator_bytes": 261.0}, log="booted")


def place(execute: Callable[[Job], Execution] = exact, **changes: Any) -> Place:
    described = DeviceDescription(
        title="a stand-in", provenance=Provenance.MEASURED, gives=("latency", "memory"), image=lambda: IMAGE
    )
    module = SimpleNamespace(
        describe=lambda options: dataclasses.replace(described, **changes),
        execute=lambda options, job: execute(job),
    )
    return Place(name="board", module=module, options=None)


def measured(**changes: Any) -> Measurement:
    return measure(expected.PROGRAM, SAMPLES, place(**changes), Settings(repetitions=9, profile=True))


def test_outputs_and_metrics_carry_their_provenance() -> None:
    found = measured()
    assert all(
        torch.equal(out[0], expected.outputs(sample)[0]) for out, sample in zip(found.outputs, SAMPLES, strict=True)
    )
    latency = found.metrics[0]
    assert (latency.key, latency.value, latency.low, latency.high) == ("measured_latency_ms", 5.0, 2.0, 8.0)
    assert found.metrics[1].key == "measured_method_allocator_bytes"
    assert [(metric.key, metric.provenance.by(metric.source)) for metric in found.estimates] == [
        ("estimated_method_allocator_bytes", "estimated by lowerdeck")
    ]
    assert not found.operators, "the device gives no profile, so that none is asked for"
    emulated = measured(provenance=Provenance.EMULATED, gives=("memory",))
    assert [metric.key for metric in emulated.metrics] == ["emulated_method_allocator_bytes"]


def test_a_program_that_the_runtime_cannot_execute_is_never_sent_there() -> None:
    def fail(job: Job) -> Execution:
        raise AssertionError("it was sent there")

    lacking = dataclasses.replace(IMAGE, operators={"aten::add.out": 4})
    found = measured(execute=fail, image=lambda: lacking)
    assert found.failure is not None
    assert "operator aten::add.out with 5 arguments; its kernel expects 4" in found.failure
    assert "operator aten::mul.out (float32)" in found.failure
    metrics = device_metrics(found, (None, ""), (), (), ())
    assert "measured_latency_ms" not in metrics
    assert defects.defects(metrics)[0].startswith("was not executed on its device: the runtime stand-in 1 cannot")


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [[]],
        [[DeviceTensor(dtype="float32", shape=(1, 16), content=b"")]] * 3,
        [[DeviceTensor(dtype="int32", shape=(1, 16), content=bytes(64))]] * 3,
        [[DeviceTensor(dtype="float32", shape=(1, 16), content=bytes(64))]] * 2,
    ],
)
def test_nonsense_is_an_error_of_the_device(outputs: list[list[DeviceTensor]]) -> None:
    with pytest.raises(DeviceError, match="returned"):
        measured(execute=lambda job: Execution(outputs=outputs))


def test_a_damaged_program_and_profile(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pte"
    damaged.write_bytes(b"\0" * 100)
    with pytest.raises(ProgramError, match="is damaged, or has no method `forward`"):
        measure(damaged, SAMPLES, place(), Settings())
    with pytest.raises(DeviceError, match="damaged profile: not an ETDump"):
        measured(execute=lambda job: dataclasses.replace(exact(job), etdump=b"ED00"))


@pytest.mark.parametrize(
    "given",
    [
        torch.zeros(1, 16, dtype=torch.int32),
        torch.zeros(1, 8, dtype=torch.float64),
        torch.zeros(16, 1),
        torch.zeros(1, 15),
        3,
    ],
)
def test_samples_that_do_not_fit_never_reach_a_device(given: Any) -> None:
    """A serial board computed something from the bytes of other element types and shapes."""

    def fail(job: Job) -> Execution:
        raise AssertionError("they were sent there")

    with pytest.raises(LowerdeckError, match=r"input 0 of 'forward' is .*float32 \[1, 16\]; got"):
        measure(expected.PROGRAM, [*SAMPLES, (given,)], place(fail), Settings())
    with pytest.raises(LowerdeckError, match="method 'forward' takes 1 inputs and got 0"):
        measure(expected.PROGRAM, [()], place(fail), Settings())


def test_a_program_that_takes_a_number_is_not_for_devices(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, factor: int) -> torch.Tensor:
            return x * factor

    program = tmp_path / "program.pte"
    program.write_bytes(to_edge(torch.export.export(Scaled(), (torch.ones(2), 3))).to_executorch().buffer)
    with pytest.raises(LowerdeckError, match="input 1 of the program is a int; devices take tensors only"):
        measure(program, [(torch.ones(2), 3)], place(), Settings())  # type: ignore[list-item]


def test_metrics_of_a_measurement_that_is_off() -> None:
    found = measured()
    host = [(output[0].clone(),) for output in found.outputs]
    host[1][0][0, 3] += 0.5
    described = [ProgramTensor(name="y", dtype="float32", shape=(1, 16), dim_order=(0, 1))]
    labels = [int(output[0].argmax()) for output in found.outputs]
    metrics = device_metrics(found, (host, "the host"), described, [0.25], labels)
    assert metrics["device_exact_share"] == 47 / 48
    assert (metrics["device_max_error"], metrics["device_error_lsb"]) == (0.5, 2.0)
    assert metrics["device_accuracy"] == 1.0
    assert metrics["num_device_samples"] == 3
    assert metrics["device_provenance"] == "measured on board"
    assert (metrics["device_runtime"], metrics["device_runtime_sha256"]) == ("stand-in 1", "ab" * 32)
    beside = device_metrics(found, (host, "the host"), described, [0.25], labels, [(h[0].numpy(),) for h in host])
    assert beside["device_quantized_exact_share"] == 47 / 48
    assert (beside["device_quantized_max_error"], beside["device_quantized_error_lsb"]) == (0.5, 2.0)
    assert not any(name.startswith("device_quantized") for name in metrics), "nothing to compare with"
    failed = gates.failed_gates({"max_device_error_lsb": 1.0, "max_measured_latency_ms": 5.0}, metrics)
    assert list(failed) == ["max_device_error_lsb"]
    other_task = device_metrics(found, (host, "the host"), described, [0.25], labels, scores=None)
    assert "device_accuracy" not in other_task, "an identity is no class"
    unknown = device_metrics(found, (None, "no kernel"), described, [None], [None] * 3)
    assert unknown["device_compared_with"] == "nothing: no kernel"
    assert not {"device_exact_share", "device_error_lsb", "device_accuracy"} & set(unknown)
    assert gates.failed_gates({"max_device_error_lsb": 1.0}, unknown), "what was not measured fails"


def test_a_device_that_returns_nan_is_infinitely_far_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stage ended in an exception, and the build had no metrics of its device."""
    monkeypatch.chdir(tmp_path)
    off = measured()
    host = [(output[0].clone(),) for output in off.outputs]
    off.outputs[1][0][0, 3] = float("nan")
    described = [ProgramTensor(name="y", dtype="float32", shape=(1, 16), dim_order=(0, 1))]
    beside = [(output[0].numpy(),) for output in host]
    for step in (None, 0.25):
        metrics = device_metrics(off, (host, "the host"), described, [step], [None] * 3, beside)
        write_measurement(metrics, off, [])
        found = read_json(paths.DEVICE_METRICS)
        assert (found["device_exact_share"], found["device_max_error"]) == (47 / 48, "infinite")
        assert (found["device_quantized_exact_share"], found["device_quantized_max_error"]) == (47 / 48, "infinite")
        assert "97.92 % of outputs equal the host's, at most infinitely far off" in capsys.readouterr().out
        assert (
            "97.92 % equal the host's, at most infinitely far off" in dict(device_rows(found))["outputs on the device"]
        )
    assert found["device_error_lsb"] == found["device_quantized_error_lsb"] == "infinite"
    assert gates.failed_gates({"max_device_error_lsb": 1e9}, found)


def test_nan_is_no_class_on_the_device() -> None:
    """Samples of class 0 were right where all scores were NaN, and a gate on the accuracy passed."""
    nan = float("nan")
    rows = [[nan, nan, nan], [0.1, nan, 0.3], [0.0, 2.0, 1.0]]
    found = dataclasses.replace(measured(), outputs=[(torch.tensor([row]),) for row in rows])
    described = [ProgramTensor(name="y", dtype="float32", shape=(1, 3), dim_order=(0, 1))]
    metrics = device_metrics(found, (None, "no kernel"), described, [None], [0, 1, 1])
    assert metrics["device_accuracy"] == 1 / 3


def test_differences_of_integers_and_of_what_is_not_finite() -> None:
    nan, inf = float("nan"), float("inf")
    found = output_difference(
        [[torch.tensor([5, -128], dtype=torch.int8)]], [[torch.tensor([4, 127], dtype=torch.int8)]], [0.5]
    )
    assert (found.exact_share, found.max_error, found.max_error_lsb) == (0.0, 127.5, 255.0)
    equal = output_difference([[torch.tensor([nan, inf, 1.0])]], [[torch.tensor([nan, inf, 1.0])]], [None])
    assert (equal.exact_share, equal.max_error, equal.max_error_lsb) == (1.0, 0.0, None)
    apart = output_difference([[torch.tensor([nan, 1.0])]], [[torch.tensor([1.0, 1.0])]], [1.0])
    assert (apart.exact_share, apart.max_error, apart.by_output) == (0.5, inf, {0: inf})


def test_the_hosts_outputs_are_those_of_a_program_just_loaded() -> None:
    calls: list[str] = []

    class Program:
        executor = "the host"

        def reset(self) -> None:
            calls.append("reset")

        def __call__(self, sample: Any) -> tuple[torch.Tensor, ...]:
            calls.append("call")
            return tuple(sample)

    outputs, executor = host_outputs(lambda: SimpleNamespace(program=Program()), SAMPLES[:2])  # type: ignore[arg-type, return-value]
    assert calls == ["reset", "call"] * 2
    assert (executor, outputs) == ("the host", [tuple(sample) for sample in SAMPLES[:2]])

    def refuse() -> Any:
        raise ProgramError("no kernel")

    assert host_outputs(refuse, SAMPLES) == (None, "no kernel")


@pytest.mark.parametrize(
    ("task", "options", "expected"),
    [("classification", {}, 0), ("classification", {"output": "b"}, 1), ("embedding", {}, None), ("anomaly", {}, None)],
)
def test_the_accuracy_is_that_of_the_output_with_class_scores(
    task: str, options: dict[str, Any], expected: int | None
) -> None:
    """Embeddings had one, too: how often the largest component was the sample's identity."""
    module = tasks.source(task)
    chosen = ChosenTask(task=module, options=module.Options(**options))
    assert class_scores(chosen, [OutputSpec(name="a"), OutputSpec(name="b")]) == expected
