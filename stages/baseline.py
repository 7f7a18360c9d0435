"""Stage baseline: float and quantized program on the evaluation set -> build/baseline/, the reference for evaluate."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.dataset import chosen_dataset
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.baseline import write_baseline
    from lowerdeck.artifacts.programs import read_program
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.evaluation.layerwise_sqnr import compare_layers, output_specs
    from lowerdeck.runtime.parallel_map import num_processors
    from lowerdeck.steps.evaluate import choose_samples, evaluate, evenly_spaced, torch_program

    config, dataset = section(EvaluationConfig), chosen_dataset(build.seed)
    exported, quantized = read_program(paths.EXPORTED), read_program(paths.QUANTIZED)
    programs = {"float": torch_program(exported), "quantized": torch_program(quantized)}
    samples = choose_samples(dataset.evaluation, config.max_samples, build.seed)
    processes = num_processors() if build.num_threads == 1 else 1  # forked processes lack PyTorch's other threads
    outputs, specs = evaluate(programs, samples, dataset, processes), output_specs(exported, quantized)
    layers = compare_layers(exported, quantized, dataset.evaluation, evenly_spaced(samples, config.layer_samples))
    write_baseline(outputs, specs, samples, layers)


run_stage(__name__, main, preloaded_within_s=60)
