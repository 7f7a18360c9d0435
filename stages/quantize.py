"""Stage quantize: exported program and observers, or the model itself -> build/quantize/."""

from lowerdeck import stage


def main() -> None:
    stage.fix_arithmetic()
    from lowerdeck import artifacts
    from lowerdeck.contracts import QuantizedTensor

    scheme, quantizer = stage.scheme(), stage.quantizer()
    program = artifacts.read_program(artifacts.EXPORTED)
    tensors: tuple[QuantizedTensor, ...] = ()
    if quantizer is not None:
        from lowerdeck.steps.quantize import quantize

        program, tensors = quantize(program, quantizer, artifacts.read_observers())
    elif scheme.rebuilds_model:
        from lowerdeck.quantization.quantize_model import quantize_model

        program, tensors = quantize_model(stage.model(), program, scheme)
    artifacts.write_program(artifacts.QUANTIZED, program)
    artifacts.write_quantization_report(tensors)


stage.run(__name__, main, preloaded_within_s=60)
