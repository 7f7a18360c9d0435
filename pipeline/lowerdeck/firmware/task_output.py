"""The sources that turn outputs into what the task is about, where that is arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowerdeck.firmware import detection_output
from lowerdeck.firmware.source_part import SourcePart

Constants = Sequence[tuple[str, str]]


def task_sources(task: str, options: Mapping[str, Any], metadata: Mapping[str, Any]) -> SourcePart | None:
    """The postprocessing in C; None for a task whose outputs are the result, and for one of a plug-in.

    That of a classifier is in every bundle; constants say of which output the application prints the class.

    Args:
        task: Name of a module of lowerdeck.tasks.
        options: All fields of its options, plain values.
        metadata: metadata.json, of which `inputs`, `outputs` and `front_end` are read.
    """
    if task == "detection":
        return detection_output.detection_sources(options, metadata)
    if task not in _NOTES or (task == "streaming_detection" and metadata["front_end"] is None):
        return None
    output = output_index(options["output"], metadata)
    constants = [("LOWERDECK_TASK_OUTPUT", str(output)), *_constants(task, options, metadata)]
    if task == "classification":
        return SourcePart(names=(), constants=constants, note=_NOTES[task])
    return SourcePart(names=(f"{task}.c", f"{task}.h"), constants=constants, note=f"`src/{task}.h` {_NOTES[task]}")


def output_index(name: str | None, metadata: Mapping[str, Any], position: int = 0) -> int:
    """The index of the output `name`, or `position` where there is no name."""
    names = [output["name"] for output in metadata["outputs"]]
    return position if name is None else names.index(name)


_NOTES = {
    "anomaly": "computes the score of a sample: the mean squared error of a reconstruction, or the output.",
    "classification": "`src/main.cpp` prints the class of the test vector, by output `LOWERDECK_TASK_OUTPUT`.",
    "embedding": "scales the output to length 1, and compares two such vectors.",
    "multi_label": "finds the labels whose score is above the threshold.",
    "regression": "gives the real values of the output in the logical order of its dimensions.",
    "segmentation": "finds the class of every pixel.",
    "streaming_detection": "finds the calls at which an event begins.",
}


def _constants(task: str, options: Mapping[str, Any], metadata: Mapping[str, Any]) -> Constants:
    if task == "classification":
        return [("LOWERDECK_IS_CLASSIFICATION", "1")]
    if task == "multi_label":
        return [("LOWERDECK_THRESHOLD", repr(float(options["threshold"])))]
    if task == "anomaly":
        return [("LOWERDECK_IS_RECONSTRUCTION", str(int(options["score"] == "reconstruction")))]
    if task == "streaming_detection":
        return _stream(options, metadata)
    return []


def _stream(options: Mapping[str, Any], metadata: Mapping[str, Any]) -> Constants:
    front_end, first = metadata["front_end"], metadata["test_vector"]["signal_samples"]  # all of the first call's
    rate = front_end["sample_rate_hz"]
    return [
        ("LOWERDECK_EVENT_CLASS", str(options["event_class"])),
        ("LOWERDECK_HAS_PROBABILITIES", str(int(options["scores"] == "probabilities"))),
        ("LOWERDECK_THRESHOLD", repr(float(options["threshold"]))),
        ("LOWERDECK_DEBOUNCE_S", repr(float(options["debounce_s"]))),
        ("LOWERDECK_FIRST_CALL_S", repr(first / rate)),
        ("LOWERDECK_CALL_S", repr(round(rate * front_end["hop_ms"] / 1000) / rate)),
    ]
