"""Stage convert: edge program -> build/convert/, the `.pte` with its manifest, plan and host twins."""

from functools import partial

from lowerdeck.execution import preload
from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.chosen.conformance import chosen_conformance
from lowerdeck.execution.chosen.memories import memory_banks
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import check_inputs, conversion, edge_programs, paths, plans
    from lowerdeck.steps.convert_conforming import convert_conforming

    backend, say = lowering_backend(), partial(print, "convert:", flush=True)
    converter, samples = backend.converter(), check_inputs.read_check_inputs()
    how = chosen_conformance(), say, memory_banks()
    plan, edge = plans.read_plan(paths.PLANNED), edge_programs.read_edge_program()
    with conversion.converter_folder() as workdir:
        checked = convert_conforming(edge, plan, backend, samples, workdir, *how)
    conversion.write_converted(checked.converted, converter, checked)
    made = f"{len(checked.converted.program):,} bytes by {converter.name} {converter.version}"
    say("\nconvert: ".join(filter(None, (made, converter.caveat))))


run_stage(__name__, main, preloaded_within_s=60, starts=preload.TRACKING)
