"""Stage baseline: float and quantized program on the evaluation set -> build/baseline/, to hold the `.pte` against."""

from lowerdeck import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from lowerdeck import artifacts
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.evaluation.layerwise_sqnr import compare_layers, output_lsb
    from lowerdeck.steps.evaluate import choose_samples, evaluate, spread, torch_program

    config, dataset = stage.section(EvaluationConfig), stage.dataset(build.seed)
    exported, quantized = artifacts.read_program(artifacts.EXPORTED), artifacts.read_program(artifacts.QUANTIZED)
    programs = {"float": torch_program(exported), "quantized": torch_program(quantized)}
    samples = choose_samples(dataset.evaluation, config.max_samples, build.seed)
    outputs = evaluate(programs, samples, dataset, output_lsb(quantized))
    layers = compare_layers(exported, quantized, dataset.evaluation, spread(samples, config.layer_samples))
    artifacts.write_baseline(outputs, samples, layers)


stage.run(__name__, main, preloaded_within_s=60)
