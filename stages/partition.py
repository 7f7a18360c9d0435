"""Stage partition: quantized program -> build/partition/, the edge program and its delegation plan."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.edge_fingerprint import edge_fingerprint
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import edge_programs, paths, plans, programs

    backend, program = lowering_backend(), programs.read_program(paths.QUANTIZED)
    from lowerdeck.steps.partition import partition, preserved_ops, replan

    # Building the edge program is the costly part of the stage, so one with the same inputs is reused.
    fingerprint, options = edge_fingerprint()
    edge = edge_programs.read_matching_edge_program(fingerprint, options, lambda: preserved_ops(program, backend))
    if edge is None:
        made = partition(program, backend)
        edge_programs.write_edge_program(made.program, made.edge_config, fingerprint, options, made.preserved_ops)
    plan = made.plan if edge is None else replan(edge, backend)
    plans.write_plan(plan, paths.PLANNED)
    print(f"partition: {plan.summary}")
    for exclusion in plan.exclusions:
        print(f"partition: {exclusion}")


run_stage(__name__, main, preloaded_within_s=60)
