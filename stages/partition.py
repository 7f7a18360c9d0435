"""Stage partition: quantized program -> build/partition/, the edge program and its delegation plan."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.ingredients import edge_ingredients
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.edge_programs import read_edge_program_made_of, write_edge_program
    from lowerdeck.artifacts.plans import write_plan
    from lowerdeck.artifacts.programs import read_program

    backend, program = lowering_backend(), read_program(paths.QUANTIZED)
    from lowerdeck.steps.partition import kept_whole, partition, plan_again

    # The dear part of the stage is to make the edge program: one that was made of the same serves again.
    made_of, options = edge_ingredients()
    edge = read_edge_program_made_of(made_of, options, lambda: kept_whole(program, backend))
    if edge is not None:
        plan = plan_again(edge, backend)
    else:
        made = partition(program, backend)
        write_edge_program(made.program, made.edge_config, made_of, options, made.kept_whole)
        plan = made.plan
    write_plan(plan)
    print(f"partition: {plan.summary}")
    for exclusion in plan.exclusions:
        print(f"partition: {exclusion}")


run_stage(__name__, main, preloaded_within_s=60)
