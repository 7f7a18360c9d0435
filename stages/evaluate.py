"""Stage evaluate: the `.pte` on the evaluation set, compared with the baseline -> build/evaluate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import dataset, engine, gates, metrics, task
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import baseline, evaluation_results, files, firmware_bundle, paths, plans
    from lowerdeck.evaluation.gates import check_gates
    from lowerdeck.steps.evaluate import evaluate_delegated, measure, summarize

    data, judge = dataset.chosen_dataset(build.seed), task.chosen_task()
    reference, samples = baseline.read_baseline()
    further = metrics.FurtherMetrics(reference, samples, data)
    how = engine.chosen_engine(build.seed)
    found = evaluate_delegated(engine.open_program, samples, data, reference, judge, how, further.keep)
    measured = measure(judge, found, data.structural, further.compute(executed=found.failure is None))
    built = plans.read_plan(), files.read_json(paths.MANIFEST), baseline.read_layers(paths.LAYERS)
    values = summarize(measured.metrics, *built, found.failure, *firmware_bundle.read_firmware())
    evaluation_results.write_evaluation(values, measured, [data.evaluation.digest(sample) for sample in samples])
    check_gates(gates.chosen_gates(), values)  # last, so that metrics that miss a gate are written too


run_stage(__name__, main, preloaded_within_s=60)
