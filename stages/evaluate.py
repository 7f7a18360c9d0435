"""Stage evaluate: the `.pte` on the evaluation set, compared with the baseline -> build/evaluate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import class_names, dataset, engine, gates, metrics, task
from lowerdeck.execution.quantization_warning import warn_of_evaluation
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import baseline, evaluation_results, files, firmware_status, paths, plans
    from lowerdeck.evaluation.worst_samples import WorstSamples
    from lowerdeck.steps import evaluate as step

    data, judge = dataset.chosen_dataset(build.seed), task.chosen_task()
    (reference, samples), how = baseline.read_baseline(), engine.chosen_engine(build.seed)
    further, names = metrics.FurtherMetrics(reference, samples, data), class_names.chosen_class_names(data)
    worst, opened = WorstSamples(judge, reference.specs, samples, data.evaluation, names), engine.open_program
    found = step.evaluate_delegated(opened, samples, data, reference, judge, how, (further.keep, worst.add))
    measured = step.measure(judge, found, data.structural, further.compute(executed=found.failure is None), names)
    built = plans.read_plan(), files.read_json(paths.MANIFEST), baseline.read_layers(paths.LAYERS)
    values = step.summarize(measured.metrics, *built, found.failure, *firmware_status.read_firmware())
    evaluation_results.write_evaluation(values, measured, list(map(data.evaluation.digest, samples)), worst.pictures())
    warn_of_evaluation(values)
    gates.check_chosen_gates(values)  # last, so that metrics that miss a gate are written too


run_stage(__name__, main, preloaded_within_s=60)
