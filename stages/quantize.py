"""Stage quantize: exported program and observers -> build/quantize/."""

from pipeline import stage


def main() -> None:
    stage.fix_arithmetic()
    from dataclasses import asdict

    from pipeline import artifacts

    quantizer = stage.quantizer()
    program = artifacts.read_program(artifacts.EXPORTED)
    report = []
    if quantizer is not None:
        from pipeline.quantize import quantize

        program, tensors = quantize(program, quantizer, artifacts.read_observers())
        report = [asdict(tensor) for tensor in tensors]
    artifacts.write_program(artifacts.QUANTIZED, program)
    artifacts.write_json(artifacts.QUANTIZATION_REPORT, report)


stage.run(__name__, main, preloaded_within_s=60)
