"""Stage evaluate: float, quantized and delegated program on the evaluation set -> build/evaluate/."""

from pipeline import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from pipeline import artifacts, metrics
    from pipeline.config.schema import EvaluationConfig
    from pipeline.evaluate import choose_samples, evaluate, hold_gates, summarize, torch_program
    from pipeline.runtime import open_program

    config, dataset = stage.section(EvaluationConfig), stage.dataset(build.seed)
    plan, manifest = artifacts.read_plan(), artifacts.read_json(artifacts.MANIFEST)
    programs = {
        "float": torch_program(artifacts.read_program(artifacts.EXPORTED)),
        "quantized": torch_program(artifacts.read_program(artifacts.QUANTIZED)),
    }
    host = open_program(
        artifacts.PROGRAM, manifest=artifacts.MANIFEST, twins=artifacts.TWINS, resolver=config.resolver
    )
    programs["delegated"] = lambda inputs: host(*inputs)[0]
    samples = choose_samples(dataset.evaluation, config.max_samples, build.seed)
    outputs = evaluate(programs, samples, dataset)
    print(f"evaluate: the .pte was executed by {host.executor}")
    figures = summarize(outputs, [metrics.source(name) for name in config.metrics], plan, manifest)
    artifacts.write_evaluation(figures, outputs, [dataset.evaluation.digest(index) for index in samples])
    hold_gates(stage.gates(), figures)  # last: what was measured stays, whether it is good enough or not


stage.run(__name__, main, preloaded_within_s=60)
