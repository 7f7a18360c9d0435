"""Stage evaluate: the `.pte` on the evaluation set, compared with the baseline -> build/evaluate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import class_names, dataset, engine, gates, metrics, task
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import baseline, evaluation_results, files, firmware_bundle, paths, plans
    from lowerdeck.evaluation.gates import check_gates
    from lowerdeck.steps import evaluate as step

    data, judge = dataset.chosen_dataset(build.seed), task.chosen_task()
    (reference, samples), how = baseline.read_baseline(), engine.chosen_engine(build.seed)
    further = metrics.FurtherMetrics(reference, samples, data)
    found = step.evaluate_delegated(engine.open_program, samples, data, reference, judge, how, further.keep)
    others = further.compute(executed=found.failure is None)
    measured = step.measure(judge, found, data.structural, others, class_names.chosen_class_names(data))
    built = plans.read_plan(), files.read_json(paths.MANIFEST), baseline.read_layers(paths.LAYERS)
    values = step.summarize(measured.metrics, *built, found.failure, *firmware_bundle.read_firmware())
    evaluation_results.write_evaluation(values, measured, [data.evaluation.digest(sample) for sample in samples])
    check_gates(gates.chosen_gates(), values)  # last, so that metrics that miss a gate are written too


run_stage(__name__, main, preloaded_within_s=60)
