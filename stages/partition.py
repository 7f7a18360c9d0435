"""Stage partition: quantized program -> build/partition/, the edge program and its delegation plan."""

from functools import partial

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.chosen.conformance import chosen_conformance
from lowerdeck.execution.edge_fingerprint import edge_fingerprint
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import check_inputs, edge_programs, paths, plans, programs
    from lowerdeck.steps.partition import partition_conforming, preserves_alike, replan

    backend, say = lowering_backend(), partial(print, "partition:", flush=True)
    read = partial(programs.read_program, paths.QUANTIZED)
    fingerprint, options = edge_fingerprint()  # an edge program is costly, so one with the same inputs is reused
    edge = edge_programs.read_matching_edge_program(fingerprint, partial(preserves_alike, options, read, backend))
    if edge is None:
        made = partition_conforming(read, backend, check_inputs.read_check_inputs(), chosen_conformance(), say)
        reusable = fingerprint if not made.plan.mismatches else ""  # other settings may not accept them
        edge_programs.write_edge_program(made.program, made.edge_config, reusable, made.preserved_ops.stored(options))
    plan = made.plan if edge is None else replan(edge, backend)
    plans.write_plan(plan, paths.PLANNED)
    say("\npartition: ".join((plan.summary, *plan.exclusions)))


run_stage(__name__, main, preloaded_within_s=60)
