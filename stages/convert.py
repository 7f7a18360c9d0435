"""Stage convert: edge program -> build/convert/, the `.pte` with its manifest and host twins."""

from lowerdeck import preload, stage


def main() -> None:
    stage.fix_arithmetic()
    from lowerdeck import artifacts

    backend = stage.lowering_backend()
    converter = backend.converter()
    from lowerdeck.steps.convert import convert

    plan, edge_program = artifacts.read_plan(), artifacts.read_edge_program()
    with artifacts.converter_folder() as workdir:
        converted = convert(edge_program, plan, backend, workdir)
    artifacts.write_converted(converted, converter)
    print(f"convert: {len(converted.program):,} bytes by {converter.name} {converter.version}")
    if converter.caveat:
        print(f"convert: {converter.caveat}")


stage.run(__name__, main, preloaded_within_s=60, starts=preload.TRACKING)
