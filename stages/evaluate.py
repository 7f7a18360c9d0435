"""Stage evaluate: float, quantized and delegated program on the evaluation set -> build/evaluate/."""

from pipeline import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from pipeline import artifacts, metrics
    from pipeline.config.schema import EvaluationConfig
    from pipeline.evaluate import choose_samples, class_figures, evaluate, spread, summarize, torch_program
    from pipeline.gates import hold_gates
    from pipeline.layers import compare_layers, output_lsb

    config, dataset = stage.section(EvaluationConfig), stage.dataset(build.seed)
    exported, quantized = artifacts.read_program(artifacts.EXPORTED), artifacts.read_program(artifacts.QUANTIZED)
    programs = {"float": torch_program(exported), "quantized": torch_program(quantized)}
    host = artifacts.open_program(config.resolver)
    programs["delegated"] = lambda inputs: host(*inputs)[0]
    split, metric_sources = dataset.evaluation, [metrics.source(name) for name in config.metrics]
    samples = choose_samples(split, config.max_samples, build.seed)
    outputs = evaluate(programs, samples, dataset, output_lsb(quantized))
    layers = compare_layers(exported, quantized, split, spread(samples, config.layer_samples))
    plan, manifest = artifacts.read_plan(), artifacts.read_json(artifacts.MANIFEST)
    figures = summarize(outputs, metric_sources, plan, manifest, layers) | {"executed_by": host.executor}
    artifacts.write_evaluation(figures, outputs, list(map(split.digest, samples)), class_figures(outputs), layers)
    hold_gates(stage.gates(), figures)  # last: what was measured stays, whether it is good enough or not


stage.run(__name__, main, preloaded_within_s=60)
