"""Stage partition: quantized program -> build/partition/, the edge program and its delegation plan."""

from pipeline import stage


def main() -> None:
    stage.fix_arithmetic()
    from pipeline import artifacts

    backend = stage.lowering_backend()
    from pipeline.partition import partition

    partitioned = partition(artifacts.read_program(artifacts.QUANTIZED), backend)
    artifacts.write_edge_program(partitioned.program, partitioned.edge_config)
    artifacts.write_plan(partitioned.plan)
    print(f"partition: {partitioned.plan.summary}")
    for exclusion in partitioned.plan.exclusions:
        print(f"partition: {exclusion}")


stage.run(__name__, main, preloaded_within_s=60)
