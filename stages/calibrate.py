"""Stage calibrate: representative samples through the prepared model, then optional training -> build/calibrate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import dataset, quantization, training
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import check_inputs, files, observers, paths, programs, training_checkpoints
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.datasets import choice, overlap
    from lowerdeck.steps.calibrate import calibrate

    config, data = section(QuantizationConfig), dataset.chosen_dataset(build.seed)
    overlap.check_disjoint(data.calibration, data.evaluation)
    count = config.num_calibration_samples if quantization.chosen_scheme().observes_samples else 0
    split, state = data.calibration, None
    chosen = choice.choose(split, count, config.calibration_choice, build.seed)
    if (quantizer := quantization.chosen_quantizer()) is not None:
        program, inputs = programs.read_program(paths.EXPORTED), choice.ChosenInputs(split=split, indices=chosen)
        state = calibrate(program, quantizer, inputs, len(chosen), training.chosen_training(data))
    check_inputs.write_check_inputs(choice.ChosenInputs(split=split, indices=chosen or range(len(split))))
    files.write_json(paths.CALIBRATION_SAMPLES, [split.digest(index) for index in chosen])
    observers.write_observers(state)
    training_checkpoints.remove_checkpoints()


run_stage(__name__, main, preloaded_within_s=60)
