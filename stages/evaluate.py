"""Stage evaluate: the `.pte` on the evaluation set, compared with the baseline -> build/evaluate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import dataset, engine, gates
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck import metrics
    from lowerdeck.artifacts import baseline, evaluation_results, files, firmware_bundle, host_programs, paths, plans
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.evaluation.gates import check_gates
    from lowerdeck.steps.evaluate import class_metrics, evaluate_delegated, summarize

    config, data, how = section(EvaluationConfig), dataset.chosen_dataset(build.seed), engine.chosen_engine(build.seed)
    reference, samples = baseline.read_baseline()
    found = evaluate_delegated(lambda: host_programs.open_converted_program(config.resolver), samples, data, how)
    outputs, failures = reference.joined(found.outputs), (found.failure, firmware_bundle.read_firmware_failure())
    plan, manifest, layers = plans.read_plan(), files.read_json(paths.MANIFEST), baseline.read_layers(paths.LAYERS)
    measured = summarize(outputs, map(metrics.source, config.metrics), plan, manifest, layers, *failures)
    measured["executed_by"] = found.executed_by
    digests = [data.evaluation.digest(sample) for sample in samples]
    evaluation_results.write_evaluation(measured, outputs, digests, class_metrics(outputs))
    check_gates(gates.chosen_gates(), measured)  # last, so that metrics that miss a gate are written too


run_stage(__name__, main, preloaded_within_s=60)
