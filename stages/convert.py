"""Stage convert: edge program -> build/convert/, the `.pte` with its manifest, plan and host twins."""

from lowerdeck.execution import preload
from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.backend import lowering_backend
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import check_inputs, conversion, edge_programs, paths, plans
    from lowerdeck.config.schema import EvaluationConfig

    backend, settings = lowering_backend(), section(EvaluationConfig).conformance
    converter = backend.converter()
    from lowerdeck.steps.convert_conforming import convert_conforming

    plan, edge, samples = (
        plans.read_plan(paths.PLANNED),
        edge_programs.read_edge_program(),
        check_inputs.read_check_inputs(),
    )
    with conversion.converter_folder() as workdir:
        checked = convert_conforming(
            edge, plan, backend, samples, workdir, settings, lambda line: print(f"convert: {line}", flush=True)
        )
    plans.write_plan(checked.plan)
    conversion.write_converted(checked.converted, converter, checked)
    print(f"convert: {len(checked.converted.program):,} bytes by {converter.name} {converter.version}")
    if converter.caveat:
        print(f"convert: {converter.caveat}")


run_stage(__name__, main, preloaded_within_s=60, starts=preload.TRACKING)
