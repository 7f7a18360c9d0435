"""Stage evaluate: the `.pte` on the evaluation set, held against the baseline -> build/evaluate/."""

from lowerdeck import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from dataclasses import replace

    from lowerdeck import artifacts, figures, metrics
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.evaluation.gates import hold_gates
    from lowerdeck.steps.evaluate import class_figures, evaluate, summarize

    config, dataset = stage.section(EvaluationConfig), stage.dataset(build.seed)
    baseline, samples = artifacts.read_baseline()
    host = artifacts.open_program(config.resolver)
    programs = {"delegated": lambda inputs: host(*inputs)[0]}
    delegated = evaluate(programs, samples, dataset, num_processes=host.num_processes)
    outputs = replace(baseline, logits={**baseline.logits, **delegated.logits})
    plan, manifest = artifacts.read_plan(), artifacts.read_json(artifacts.MANIFEST)
    layers, metric_sources = figures.read_layers(artifacts.LAYERS), [metrics.source(name) for name in config.metrics]
    measured = summarize(outputs, metric_sources, plan, manifest, layers) | {"executed_by": host.executor}
    artifacts.write_evaluation(measured, outputs, list(map(dataset.evaluation.digest, samples)), class_figures(outputs))
    hold_gates(stage.gates(), measured)  # last: what was measured stays, whether it is good enough or not


stage.run(__name__, main, preloaded_within_s=60)
