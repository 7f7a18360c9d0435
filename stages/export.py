"""Stage export: model factory and weights -> build/export/program.pt2."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.model import chosen_model
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.programs import write_program
    from lowerdeck.config.schema import ModelConfig
    from lowerdeck.steps.export import export

    config = section(ModelConfig)
    program = export(chosen_model(), config.input_shapes, config.dynamic_shapes, config.memory_format)
    write_program(paths.EXPORTED, program)


# Do not wait for a server that is still importing: it imports more than export needs.
run_stage(__name__, main, preloaded_within_s=0.2)
