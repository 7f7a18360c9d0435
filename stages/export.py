"""Stage export: model factory and weights -> build/export/program.pt2."""

from pipeline import artifacts, stage
from pipeline.config.schema import ModelConfig


def main() -> None:
    stage.fix_arithmetic()
    from pipeline import models
    from pipeline.export import export

    config = stage.section(ModelConfig)
    source = models.source(config.source)
    model = source.build(source.Options(**config.options), config.weights)
    artifacts.write_program(artifacts.EXPORTED, export(model, config.input_shapes))


stage.run(__name__, main)
