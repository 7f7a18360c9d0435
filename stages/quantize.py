"""Stage quantize: exported program and observers -> build/quantize/."""

from pipeline import stage


def main() -> None:
    stage.fix_arithmetic()
    from pipeline import artifacts
    from pipeline.contracts import QuantizedTensor

    quantizer = stage.quantizer()
    program = artifacts.read_program(artifacts.EXPORTED)
    tensors: tuple[QuantizedTensor, ...] = ()
    if quantizer is not None:
        from pipeline.quantize import quantize

        program, tensors = quantize(program, quantizer, artifacts.read_observers())
    artifacts.write_program(artifacts.QUANTIZED, program)
    artifacts.write_quantization_report(tensors)


stage.run(__name__, main, preloaded_within_s=60)
