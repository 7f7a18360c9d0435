"""Stage export: model factory and weights -> build/export/program.pt2."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.class_names import check_class_names
from lowerdeck.execution.chosen.dataset import chosen_dataset
from lowerdeck.execution.chosen.model import chosen_model
from lowerdeck.execution.chosen.task import chosen_task
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.programs import write_program
    from lowerdeck.config.schema import ModelConfig
    from lowerdeck.steps import eager_comparison, evaluate, export

    config = section(ModelConfig)
    layout = config.memory_format, config.input_dtypes, config.sequences_as_images or False
    model, dataset, task = chosen_model(), chosen_dataset(build.seed), chosen_task()
    shapes, dynamic = config.input_shapes, config.dynamic_shapes
    answers = eager_comparison.answers(model, dataset.evaluation, config.input_dtypes, dynamic, shapes)
    program = export.export(model, shapes, dynamic, *layout, answers)
    eager_comparison.check_answers(program, answers)
    check_class_names(dataset, task, evaluate.check_task(program, dataset, task))
    write_program(paths.EXPORTED, program)


run_stage(__name__, main, preloaded_within_s=60, after_first=True)
