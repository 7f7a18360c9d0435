"""Stage partition: quantized program -> build/partition/, the edge program and its delegation plan."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.edge_fingerprint import edge_fingerprint
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.edge_programs import read_matching_edge_program, write_edge_program
    from lowerdeck.artifacts.plans import write_plan
    from lowerdeck.artifacts.programs import read_program

    backend, program = lowering_backend(), read_program(paths.QUANTIZED)
    from lowerdeck.steps.partition import partition, preserved_ops, replan

    # Building the edge program is the costly part of the stage, so one that was made from the same inputs is reused.
    fingerprint, options = edge_fingerprint()
    edge = read_matching_edge_program(fingerprint, options, lambda: preserved_ops(program, backend))
    if edge is not None:
        plan = replan(edge, backend)
    else:
        made = partition(program, backend)
        write_edge_program(made.program, made.edge_config, fingerprint, options, made.preserved_ops)
        plan = made.plan
    write_plan(plan)
    print(f"partition: {plan.summary}")
    for exclusion in plan.exclusions:
        print(f"partition: {exclusion}")


run_stage(__name__, main, preloaded_within_s=60)
