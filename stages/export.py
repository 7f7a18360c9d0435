"""Stage export: model factory and weights -> build/export/program.pt2."""

from lowerdeck import stage


def main() -> None:
    stage.fix_arithmetic()
    from lowerdeck import artifacts
    from lowerdeck.config.schema import ModelConfig
    from lowerdeck.steps.export import export

    config = stage.section(ModelConfig)
    program = export(stage.model(), config.input_shapes, config.dynamic_shapes, config.memory_format)
    artifacts.write_program(artifacts.EXPORTED, program)


# A server that is still importing has more to import than export needs.
stage.run(__name__, main, preloaded_within_s=0.2)
