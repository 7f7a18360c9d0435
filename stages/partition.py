"""Stage partition: quantized program -> build/partition/, the edge program and its delegation plan."""

from lowerdeck import stage


def main() -> None:
    stage.fix_arithmetic()
    from lowerdeck import artifacts

    backend, program = stage.lowering_backend(), artifacts.read_program(artifacts.QUANTIZED)
    from lowerdeck.steps.partition import kept_whole, partition, plan_again

    # The dear part of the stage is to make the edge program: one that was made of the same serves again.
    made_of, options = stage.edge_ingredients()
    edge = artifacts.read_edge_program_made_of(made_of, options, lambda: kept_whole(program, backend))
    if edge is not None:
        plan = plan_again(edge, backend)
    else:
        made = partition(program, backend)
        artifacts.write_edge_program(made.program, made.edge_config, made_of, options, made.kept_whole)
        plan = made.plan
    artifacts.write_plan(plan)
    print(f"partition: {plan.summary}")
    for exclusion in plan.exclusions:
        print(f"partition: {exclusion}")


stage.run(__name__, main, preloaded_within_s=60)
