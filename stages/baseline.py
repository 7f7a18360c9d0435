"""Stage baseline: float and quantized program on the evaluation set -> build/baseline/, the reference for evaluate."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import batches, dataset
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import baseline, paths
    from lowerdeck.artifacts.programs import read_program
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.evaluation.layerwise_sqnr import compare_layers, output_specs
    from lowerdeck.runtime.parallel_map import num_processors
    from lowerdeck.steps.baseline import prepare
    from lowerdeck.steps.evaluate import choose_samples, evaluate, evenly_spaced

    config, data = section(EvaluationConfig), dataset.chosen_dataset(build.seed)
    exported, quantized = read_program(paths.EXPORTED), read_program(paths.QUANTIZED)
    specs, programs = output_specs(exported, quantized), {"float": exported, "quantized": quantized}
    samples = choose_samples(data.evaluation, config.max_samples, build.seed)
    how = prepare(programs, specs, samples, data, batches.chosen_batches(build.seed))
    processes = num_processors() if build.num_threads == 1 else 1  # forked processes lack PyTorch's other threads
    outputs = evaluate(how.programs, samples, data, processes)
    layers = compare_layers(exported, quantized, data.evaluation, evenly_spaced(samples, config.layer_samples))
    baseline.write_baseline(outputs, specs, samples, layers, how.executed_by, how.differences)


run_stage(__name__, main, preloaded_within_s=60)
