"""Stage evaluate: the `.pte` on the evaluation set, compared with the baseline -> build/evaluate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.dataset import chosen_dataset
from lowerdeck.execution.chosen.gates import chosen_gates
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from dataclasses import replace

    from lowerdeck import metrics
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.baseline import read_baseline, read_layers
    from lowerdeck.artifacts.evaluation_results import write_evaluation
    from lowerdeck.artifacts.files import read_json
    from lowerdeck.artifacts.host_programs import open_converted_program
    from lowerdeck.artifacts.plans import read_plan
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.evaluation.gates import check_gates
    from lowerdeck.steps.evaluate import class_metrics, evaluate, summarize

    config, dataset = section(EvaluationConfig), chosen_dataset(build.seed)
    baseline, samples = read_baseline()
    host = open_converted_program(config.resolver)
    programs = {"delegated": lambda inputs: host(*inputs)[0]}
    delegated = evaluate(programs, samples, dataset, num_processes=host.num_processes)
    outputs = replace(baseline, logits={**baseline.logits, **delegated.logits})
    plan, manifest = read_plan(), read_json(paths.MANIFEST)
    layers, metric_sources = read_layers(paths.LAYERS), [metrics.source(name) for name in config.metrics]
    measured = summarize(outputs, metric_sources, plan, manifest, layers) | {"executed_by": host.executor}
    write_evaluation(measured, outputs, list(map(dataset.evaluation.digest, samples)), class_metrics(outputs))
    check_gates(chosen_gates(), measured)  # last: the metrics are written whether they are good enough or not


run_stage(__name__, main, preloaded_within_s=60)
