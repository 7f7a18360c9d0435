"""Stage convert: edge program -> build/convert/, the `.pte` with its manifest and host twins."""

from lowerdeck.execution import preload
from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts.conversion import converter_folder, write_converted
    from lowerdeck.artifacts.edge_programs import read_edge_program
    from lowerdeck.artifacts.plans import read_plan

    backend = lowering_backend()
    converter = backend.converter()
    from lowerdeck.steps.convert import convert

    plan, edge_program = read_plan(), read_edge_program()
    with converter_folder() as workdir:
        converted = convert(edge_program, plan, backend, workdir)
    write_converted(converted, converter)
    print(f"convert: {len(converted.program):,} bytes by {converter.name} {converter.version}")
    if converter.caveat:
        print(f"convert: {converter.caveat}")


run_stage(__name__, main, preloaded_within_s=60, starts=preload.TRACKING)
