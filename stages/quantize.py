"""Stage quantize: exported program and observers, or the model itself -> build/quantize/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.model import chosen_model
from lowerdeck.execution.chosen.quantization import chosen_quantizer, chosen_scheme
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    fix_arithmetic()
    from lowerdeck.artifacts import observers, paths, programs, quantization_report
    from lowerdeck.contracts.quantization import QuantizedTensor
    from lowerdeck.execution.quantization_warning import compare_with_float

    scheme, quantizer = chosen_scheme(), chosen_quantizer()
    program = programs.read_program(paths.EXPORTED)
    tensors: tuple[QuantizedTensor, ...] = ()
    if quantizer is not None:
        from lowerdeck.steps.quantize import quantize

        program, tensors = quantize(program, quantizer, observers.read_observers())
    elif scheme.rebuilds_model:
        from lowerdeck.quantization.quantize_model import quantize_model

        program, tensors = quantize_model(chosen_model(), program, scheme)
    programs.write_program(paths.QUANTIZED, program)
    quantization_report.write_quantization_report(tensors, compare_with_float(program, tensors))


run_stage(__name__, main, preloaded_within_s=60)
