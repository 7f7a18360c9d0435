"""`lowerdeck sensitivity`: the accuracy that quantizing each layer costs, and the layers to leave float."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Sample
    from lowerdeck.quantization.sensitivity import AccuracyDifference, LayerSensitivity, OptOut, TrialResult, Trials

PARAMS = Path("params.yaml")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sensitivity",
        help=HELP["sensitivity"],
        description="Measures the build in build/, which must be completed through calibrate. The same "
        "command continues an interrupted run. It never uses the evaluation set, so the result can be evaluated on it.",
    )
    parser.add_argument(
        "--split", choices=("calibration", "training"), default="calibration", help="samples to measure on"
    )
    parser.add_argument("--samples", type=positive, metavar="N", help="at most N samples, stratified by class")
    parser.add_argument(
        "--metric", choices=("accuracy", "sqnr"), default="accuracy", help="rank by (default: %(default)s)"
    )
    parser.add_argument("--top", type=positive, metavar="N", help="show only the N most sensitive layers")
    parser.add_argument("--json", action="store_true", help="print JSON")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--reach", type=_fraction, metavar="ACCURACY", help="find layers to leave float, e.g. 0.985")
    goal.add_argument("--max-drop", type=_fraction, metavar="SHARE", help="the same, as a drop from the float model")
    parser.add_argument("--write", action="store_true", help="write the layers found into params.yaml")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print, and write if requested."""
    wanted = options.reach is not None or options.max_drop is not None
    if options.write and not wanted:
        raise LowerdeckError("--write needs --reach ACCURACY or --max-drop SHARE: it writes what these find")
    from lowerdeck.compat.terminal import progress_bar
    from lowerdeck.config.schema import DatasetConfig, TaskConfig
    from lowerdeck.execution.resolved_config import section
    from lowerdeck.quantization.sensitivity import ranked, search_float_layers, sensitivities

    trials, num_samples = _trials(options)
    if not trials.has_labels and (options.metric == "accuracy" or wanted):
        raise LowerdeckError(
            "accuracy needs `task: classification` and samples with meaningful labels, and the build has `task: "
            f"{section(TaskConfig).name}` and the dataset {section(DatasetConfig).name}; use --metric sqnr without "
            "--reach and --max-drop"
        )
    layers: list[LayerSensitivity] = []
    found: OptOut | None = None
    floats = quantized = None
    try:
        floats, quantized = trials.measure(()), trials.measure(trials.model.switches)
        count = len(trials.model.layers())
        for layer in progress_bar(sensitivities(trials), total=count, desc="sensitivity", unit="layer", disable=None):
            layers.append(layer)
        if wanted:
            goal = options.reach if options.reach is not None else (floats.accuracy or 0.0) - options.max_drop
            with progress_bar(desc="reach", unit="list", disable=None) as progress:
                found = search_float_layers(trials, layers, goal, lambda tried: _show_tried(progress, tried))
    except KeyboardInterrupt:
        _show(options, num_samples, ranked(layers, options.metric), floats, quantized, None, complete=False)
        raise
    _show(options, num_samples, ranked(layers, options.metric), floats, quantized, found, complete=True)
    if found is not None:
        _use(options, found, floats)


def _trials(options: argparse.Namespace) -> tuple[Trials, int]:
    """The trials of the build in build/, with earlier measurements, and the number of samples."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.observers import read_observers
    from lowerdeck.artifacts.programs import read_program
    from lowerdeck.artifacts.sensitivity_measurements import TrialResults
    from lowerdeck.datasets.choice import stratified
    from lowerdeck.datasets.overlap import check_disjoint
    from lowerdeck.execution.arithmetic import fix_arithmetic
    from lowerdeck.execution.chosen.dataset import chosen_dataset
    from lowerdeck.execution.chosen.quantization import chosen_quantizer
    from lowerdeck.execution.chosen.task import chosen_task
    from lowerdeck.graph.memory_formats import memory_format_of, to_memory_format
    from lowerdeck.graph.outputs import output_names
    from lowerdeck.graph.state import initial_state
    from lowerdeck.quantization.divisors import keep_divisors_in_float
    from lowerdeck.quantization.logarithms import keep_logarithms_in_float
    from lowerdeck.quantization.pt2e import prepare, restore_observers
    from lowerdeck.quantization.sensitivity import Trials
    from lowerdeck.tasks import classification, judged_name
    from lowerdeck.tasks.outputs import chosen_name

    build, quantizer = fix_arithmetic(), chosen_quantizer()
    if quantizer is None:
        raise LowerdeckError("the build quantizes no layer by observers; choose e.g. `quantization: int8`")
    dataset = chosen_dataset(build.seed)
    split = getattr(dataset, options.split, None)
    if split is None:
        raise LowerdeckError(f"the dataset has no {options.split} split; use --split calibration")
    check_disjoint(split, dataset.evaluation, options.split)
    indices = stratified(split, options.samples or len(split), build.seed)
    program = read_program(paths.EXPORTED)
    layout, samples = memory_format_of(program), [split[index] for index in indices]
    state = initial_state(program).values()
    samples = [
        dataclasses.replace(sample, inputs=(*to_memory_format(sample.inputs, layout), *state)) for sample in samples
    ]
    task, names = chosen_task().options, output_names(program)
    output = names.index(chosen_name(names, judged_name(task)))
    if dataset.structural or not isinstance(task, classification.Options):  # labels that are no classes of the output
        samples = [dataclasses.replace(sample, label=None) for sample in samples]
    prepared = prepare(program, quantizer)
    restore_observers(prepared, read_observers())
    keep_divisors_in_float(prepared)
    keep_logarithms_in_float(prepared)  # as quantize does
    return Trials(prepared, samples, TrialResults(_key(options.split, samples)), output), len(samples)


def _key(split: str, samples: Sequence[Sample]) -> str:
    """SHA-256 over everything that the measurements depend on."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import sha256
    from lowerdeck.execution.resolved_config import whole_config
    from lowerdeck.fingerprints.closures import Sources, closure, code_digest
    from lowerdeck.fingerprints.keys import costly_result_key

    config = whole_config()
    sections = (config.build, config.dataset, config.quantization, config.task)
    sources = Sources.of_workspace(Path.cwd(), config.build.plugins)
    return costly_result_key(
        code_digest(closure(["lowerdeck.cli.sensitivity"], dataclasses.asdict(config), sources)),
        [sha256(paths.EXPORTED), sha256(paths.OBSERVERS)],
        [
            *(dataclasses.asdict(chosen) for chosen in sections),
            [config.target.backend, config.target.device],
            [split, [(sample.digest, sample.label) for sample in samples]],
        ],
    )


def _show(
    options: argparse.Namespace,
    num_samples: int,
    layers: Sequence[LayerSensitivity],
    floats: TrialResult | None,
    quantized: TrialResult | None,
    found: OptOut | None,
    *,
    complete: bool,
) -> None:
    """Print the ranking."""
    shown = layers[: options.top]
    if options.json:
        report = {
            "split": options.split,
            "num_samples": num_samples,
            "complete": complete,
            "float_accuracy": floats.accuracy if floats else None,
            "quantized_accuracy": quantized.accuracy if quantized else None,
            "quantized_sqnr_db": quantized.sqnr_db if quantized else None,
            "layers": [_plain(layer) for layer in shown],
            "opt_out": dataclasses.asdict(found) if found else None,
        }
        print(json.dumps(report, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from lowerdeck.compat.terminal import terminal_console

    console = terminal_console()
    if floats is not None and quantized is not None:
        has_labels = floats.hits is not None
        accuracies = f": float {_percent(floats)}, all quantized {_percent(quantized)}" if has_labels else ""
        console.print(f"on {num_samples} samples of the {options.split} split{accuracies}", highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", "lost alone", "SQNR", "won float", "SQNR"):
        table.add_column(heading, overflow="fold")
    for layer in shown:
        cells = (
            layer.layer,
            _points(layer.accuracy_loss),
            f"{layer.alone_quantized.sqnr_db:.1f} dB",
            _points(layer.accuracy_gain),
            f"{layer.alone_float.sqnr_db:.1f} dB",
        )
        table.add_row(*map(Text, cells))
    console.print(table)
    console.print(
        "lost alone: accuracy lost by quantizing only this layer; won float: accuracy gained by leaving only this "
        "layer float; in parentheses the 95 % interval of the difference",
        style="dim",
        highlight=False,
    )
    if not complete:
        console.print(f"interrupted after {len(layers)} layers; the same command continues from here", style="yellow")


def _use(options: argparse.Namespace, found: OptOut, floats: TrialResult) -> None:
    """Report the layers to leave float, and write them if requested."""
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.config.params import with_override
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.execution.resolved_config import section

    kept = [*section(QuantizationConfig).keep_float, *found.layers]
    if not found.reached:
        raise LowerdeckError(
            f"the goal was not reached: the best found is {100 * found.accuracy:.2f} % with "
            f"keep_float: {json.dumps(kept)}, and the float model itself reaches {_percent(floats)} on these samples. "
            "Lower the goal, or try other observers, more calibration samples or quantization.training"
        )
    if not found.layers:
        _print(options, f"{100 * found.accuracy:.2f} % is reached with every layer quantized")
    elif not options.write:
        _print(options, f"{100 * found.accuracy:.2f} % is reached with (write it with --write):")
        _print(options, f"overrides: {{quantization: {{keep_float: {json.dumps(kept)}}}}}")
    else:
        write_text(PARAMS, with_override(PARAMS, ("quantization", "keep_float"), kept))
        _print(options, f"{100 * found.accuracy:.2f} % is reached with {', '.join(found.layers)} float")
        _print(options, f"wrote quantization.keep_float into {PARAMS}; `dvc repro` builds and evaluates it")


def _print(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text)


def _show_tried(progress: Any, tried: OptOut) -> None:
    progress.update()
    progress.set_postfix_str(f"{len(tried.layers)} layers float: {100 * tried.accuracy:.2f} %")


def _plain(layer: LayerSensitivity) -> dict[str, Any]:
    """Plain values for JSON, with metrics instead of each sample's hit."""
    results = {"alone_quantized": layer.alone_quantized, "alone_float": layer.alone_float}
    metrics = {name: {"accuracy": result.accuracy, "sqnr_db": result.sqnr_db} for name, result in results.items()}
    return dataclasses.asdict(layer) | metrics


def _percent(measured: TrialResult) -> str:
    return f"{100 * (measured.accuracy or 0.0):.2f} %"


def _points(difference: AccuracyDifference | None) -> str:
    if difference is None:
        return ""
    return f"{100 * difference.value:+.2f} % ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def positive(text: str) -> int:
    """The value of an option that counts at least one.

    Raises:
        argparse.ArgumentTypeError: it is no whole number above 0.
    """
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a fraction from 0 to 1")
    return value
