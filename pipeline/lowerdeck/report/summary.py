"""The description of a build that the terminal, the report and MLflow share.

`metrics` are those of metrics.json; `manifest` is that of the converted program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from lowerdeck.artifacts.measurements import largest_difference
from lowerdeck.contracts.devices import OWN_ESTIMATES, OWN_TOOL, Provenance
from lowerdeck.evaluation import gates
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.intervals import HIGH, LOW
from lowerdeck.evaluation.metric_names import DESCRIPTIONS, PRIMARY

if TYPE_CHECKING:
    from lowerdeck.config.schema import Config


PROGRAMS = ("float", "quantized", "delegated")
FIDELITY_METRIC = "cosine"
DEFECTS = "do not ship"
"""Name of the row with a build's defects."""
_SPELLINGS = {"cpu": "CPU", "dram": "DRAM", "macs": "MACs", "npu": "NPU", "shram": "SHRAM", "sram": "SRAM"}
_MAIN_ESTIMATES = (
    *("inference_time_ms", "total_cycles", "sram_bytes", "flash_bytes", "dram_bytes"),
    "memory_shortfall_bytes",
)
"""Suffixes of the compiler's estimates in the short table, in its order."""


def confusion_title(metrics: Mapping[str, Any]) -> str:
    """Title of the confusion matrix, of the delegated program if it has an accuracy, else of the quantized one."""
    program = "delegated" if isinstance(metrics.get("delegated_accuracy"), float) else "quantized"
    return f"Confusion matrix of the {program} program"


def _tensor(tensor: Mapping[str, Any]) -> str:
    """An input, e.g. `float32 up to [1, 3, 64, 64]`."""
    return f"{tensor['dtype']} {'up to ' if tensor['is_dynamic'] else ''}{list(tensor['shape'])}"


def rows(config: Config, metrics: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The metrics of a build as pairs (what, value), in the order of the table."""
    converter = manifest["converter"]
    table = [
        ("target", f"{config.target.name} ({config.target.backend})"),
        ("flavor", f"{converter['flavor']} ({converter['name']} {converter['version']})"),
        ("model", f"{config.model.name} on {config.dataset.name}, {config.quantization.name}"),
    ]
    if any(tensor["is_dynamic"] for tensor in manifest["inputs"]):
        table.append(("inputs", "; ".join(map(_tensor, manifest["inputs"]))))
    table += [*quality(metrics), *further_metrics(metrics)]
    if (against := delegated_vs_quantized(metrics)) is not None:
        table.append(("delegated against quantized", against))
    if is_number(metrics.get("worst_layer_sqnr_db")):
        table.append(("worst layer", f"{metrics['worst_layer']}: {metrics['worst_layer_sqnr_db']:.1f} dB SQNR"))
    table += [
        ("delegated nodes", delegation(metrics)),
        *coverage(metrics),
        ("size", size(metrics["program_bytes"])),
        ("planned memory", size(metrics["planned_memory_bytes"])),
    ]
    table += [estimate(key, metrics[key], converter["flavor"]) for key in _main_estimates(metrics)]
    table += device_rows(metrics)
    chosen = gates.bounds(config.gates)
    if any(bound is not None for bound in chosen.values()):
        failed = gates.failed_gates(chosen, metrics)
        verdict = f"{len(failed)} failed. " + ". ".join(failed.values()) if failed else "all passed"
        table.append((f"gates {config.gates.name}", verdict))
    if found := defects(metrics):
        table.append((DEFECTS, ". ".join(f"It {defect}" for defect in found)))
    return table


def bundle_record(config: Config, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the firmware bundle says of its build: metrics of the task, gates and defects; nothing that was timed."""
    table = [*quality(metrics), *further_metrics(metrics)]
    chosen = gates.bounds(config.gates).items()
    bounds = {name: bound for name, bound in chosen if bound is not None and not gates.is_of_device(name)}
    failed = gates.failed_gates(bounds, metrics)
    table += [
        (f"gate {name}", f"{gates.exact(bound)}: {failed.get(name, 'passed')}")
        for name, bound in sorted(bounds.items())
    ]
    return table + [(DEFECTS, f"it {defect}") for defect in defects(metrics)]


def device_rows(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the configured device found, every number with its provenance; empty without a device."""
    if "device_provenance" not in metrics:
        return []
    where, table = metrics["device_provenance"], []
    if is_number(metrics.get("device_exact_share")):
        off = largest_difference(metrics)
        equal = f"{gates.percent(metrics['device_exact_share'], 2)} equal the host's, at most {off} off"
        table.append(("outputs on the device", f"{equal} ({metrics['num_device_samples']} samples, {where})"))
    if "device_first_difference" in metrics:
        table.append(("outputs begin to differ at", str(metrics["device_first_difference"])))
    prefixes = ("measured_", "emulated_", "simulated_")
    for key in sorted(key for key in metrics if key.startswith(prefixes) and not key.endswith((LOW, HIGH))):
        value, low, high = _quantity(key, metrics[key]), metrics.get(key + LOW), metrics.get(key + HIGH)
        ends = f", 95 %: {low:,.3f} to {high:,.3f}" if is_number(low) and is_number(high) else ""
        table.append((_readable_name(key.partition("_")[2]), f"{value} ({where}{ends})"))
    return table


def primary_metric(metrics: Mapping[str, Any]) -> str:
    """The metric that gates call the drop of: the first one of the task, or the cosine for fidelity."""
    return str(metrics.get(PRIMARY, "accuracy"))


def quality(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The first metric of the task for every program, e.g. `float accuracy`."""
    name = primary_metric(metrics)
    programs = [program for program in PROGRAMS if name != FIDELITY_METRIC or program != "float"]
    return [(f"{program} {_readable_name(name)}", _of_program(metrics, f"{program}_{name}")) for program in programs]


def further_metrics(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The other metrics of the task, those of all programs in one line."""
    table = []
    for key in sorted(key for key in metrics if key.startswith(DESCRIPTIONS)):
        name = key.removeprefix(DESCRIPTIONS)
        is_share = str(metrics[key]).endswith("share")
        values = {program: metrics.get(f"{program}_{name}") for program in PROGRAMS}
        if name != primary_metric(metrics) and any(is_number(value) for value in values.values()):
            shown = [
                f"{_value(value, is_share=is_share)} {program}"
                for program, value in values.items()
                if value is not None and value != ""
            ]
            table.append((_readable_name(name), ", ".join(shown)))
    return table


def primary_is_share(metrics: Mapping[str, Any]) -> bool:
    """Whether the primary metric is a fraction, which is shown as a percentage."""
    return str(metrics.get(DESCRIPTIONS + primary_metric(metrics), "max share")).endswith("share")


def _of_program(metrics: Mapping[str, Any], name: str) -> str:
    """The primary metric with its samples and interval; a value other than a number as it is."""
    value = metrics.get(name)
    if value is None:
        return "not measured"
    if not is_number(value):
        return str(value)
    is_share = primary_is_share(metrics)
    samples = f"{'of' if is_share else 'on'} {metrics['num_samples']:,} samples"
    return f"{_value(value, is_share=is_share)} {samples}{interval(metrics, name, 100 if is_share else None)}"


def _value(value: Any, *, is_share: bool) -> str:
    if not is_number(value):
        return str(value)
    return gates.percent(value, 2) if is_share else f"{value:.4g}"


def interval(metrics: Mapping[str, Any], name: str, scale: float | None = 100) -> str:
    """The 95 % interval, e.g. ` (95 %: 97.2 to 99.6)` of a share; empty if there is none.

    Args:
        metrics: All metrics.
        name: The metric.
        scale: Factor of the ends, which have one digit behind the point; None for four significant digits.
    """
    low, high = metrics.get(name + LOW), metrics.get(name + HIGH)
    if not (is_number(low) and is_number(high)):
        return ""
    ends = f"{low:.4g} to {high:.4g}" if scale is None else f"{scale * low:.1f} to {scale * high:.1f}"
    return f" (95 %: {ends})"


def delegated_vs_quantized(metrics: Mapping[str, Any]) -> str | None:
    """E.g. `max 1 LSB, mean 0.04, 97.3 % exact`; None if it was not measured or the output is not quantized."""
    if not is_number(metrics.get("delegated_error_max_lsb")):
        return None
    largest, mean = metrics["delegated_error_max_lsb"], metrics["delegated_error_mean_lsb"]
    return f"max {largest:.4g} LSB, mean {mean:.2g}, {gates.percent(metrics['delegated_exact_share'])} exact"


def delegation(metrics: Mapping[str, Any]) -> str:
    """E.g. `9 of 9 in 1 partition`, or `0 of 9 in 0 partitions, 8 on CMSIS-NN`."""
    on_library = f", {metrics['cmsis_nn_compute_nodes']} on CMSIS-NN" if "cmsis_nn_compute_nodes" in metrics else ""
    partitions = "1 partition" if metrics["partitions"] == 1 else f"{metrics['partitions']} partitions"
    return f"{metrics['delegated_compute_nodes']} of {metrics['compute_nodes']} in {partitions}{on_library}"


def coverage(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Delegated MACs and parameters, crossings and transposes, and why the rest is not delegated."""
    if "total_macs" not in metrics:
        return []
    table = []
    for what, share, total in (
        *([("MACs on CMSIS-NN", "cmsis_nn_macs_share", "total_macs")] if "cmsis_nn_macs" in metrics else []),
        ("delegated MACs", "delegated_macs_share", "total_macs"),
        ("delegated parameters", "delegated_parameter_share", "total_parameters"),
    ):
        if metrics[total]:
            table.append((what, f"{gates.percent(metrics[share])} of {metrics[total]:,}"))
    table.append(("crossings", f"{metrics['crossings']:,} tensors, {size(metrics['crossing_bytes'])} per inference"))
    at_boundary, inserted = metrics["transposes_at_boundary"], metrics.get("transposes_inserted")
    if at_boundary or inserted:
        inside = "" if inserted is None else f", {inserted} inserted in delegates"
        table.append(("transposes", f"{at_boundary} at the boundary{inside}"))
    left = {key.removeprefix("reasons."): count for key, count in metrics.items() if key.startswith("reasons.")}
    if left:
        most_first = sorted(left.items(), key=lambda entry: (-entry[1], entry[0]))
        table.append(("left on the CPU", ", ".join(f"{count} {code.replace('_', ' ')}" for code, count in most_first)))
    return table


def size(size_bytes: int) -> str:
    """A size in bytes and, if it is at least one KiB, in KiB."""
    return f"{size_bytes:,} bytes" + (f" ({size_bytes / 1024:,.1f} KiB)" if size_bytes >= 1024 else "")


def estimates(metrics: Mapping[str, Any], flavor: str) -> list[tuple[str, str]]:
    """All estimates of the compiler, each marked as one, the main ones first."""
    first = _main_estimates(metrics)
    keys = first + sorted(key for key in metrics if key.startswith("estimated_") and key not in first)
    return [estimate(key, metrics[key], flavor) for key in keys]


def estimate(key: str, value: Any, flavor: str) -> tuple[str, str]:
    """One estimate of the compiler, marked as such."""
    author = OWN_TOOL if key.startswith(OWN_ESTIMATES) else flavor.capitalize() if flavor.isalpha() else flavor
    return _readable_name(key), f"{_quantity(key, value)} ({Provenance.ESTIMATED.by(author)})"


def _main_estimates(metrics: Mapping[str, Any]) -> list[str]:
    """The main estimates, without unused memories."""
    keys = sorted(key for key in metrics if key.startswith("estimated_") and (metrics[key] or "_bytes" not in key))
    return [key for end in _MAIN_ESTIMATES for key in keys if key.endswith(f"_{end}")]


def comparisons(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Comparisons of programs with one another: agreement, drop and SQNR."""
    pairs = []
    for key, value in sorted(metrics.items()):
        if not is_number(value) or key.endswith((LOW, HIGH)):  # the ends of an interval are shown with its share
            continue
        if key.endswith("_drop") and not primary_is_share(metrics):
            pairs.append((key.replace("_", " "), f"{_value(value, is_share=False)}{interval(metrics, key, None)}"))
        elif "_agreement_with_" in key or key.endswith("_drop"):
            pairs.append((key.replace("_", " "), f"{100 * value:.2f} %{interval(metrics, key)}"))
        elif key.endswith("_sqnr_db"):
            ends = interval(metrics, key, scale=1)
            pairs.append((key.removesuffix("_sqnr_db").replace("_", " ") + " SQNR", f"{value:.1f} dB{ends}"))
    return pairs


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is a number; True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _readable_name(key: str) -> str:
    parts = key.removesuffix("_ms").removesuffix("_bytes").split("_")  # the value shows these units
    return " ".join(_SPELLINGS.get(word, word) for word in parts)


def _quantity(key: str, value: Any) -> str:
    if not is_number(value):
        return str(value)
    if key.endswith("_bytes"):
        return size(int(value))
    if key.endswith("_ms"):
        return f"{value:,.3f} ms"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"
