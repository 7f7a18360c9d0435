"""Stage calibrate: representative samples through the prepared model, then optional training -> build/calibrate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import calibration, dataset, quantization, training
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import check_inputs, files, observers, paths, programs, training_checkpoints
    from lowerdeck.datasets import choice, overlap
    from lowerdeck.graph.state import initial_state
    from lowerdeck.steps.calibrate import calibrate

    data = dataset.chosen_dataset(build.seed)
    overlap.check_disjoint(data.calibration, data.evaluation)
    program, split, state = programs.read_program(paths.EXPORTED), data.calibration, None
    as_calls = bool(initial_state(program))
    chosen = calibration.chosen_samples(split, build.seed, as_calls=as_calls)
    if (quantizer := quantization.chosen_quantizer()) is not None:
        inputs = choice.ChosenInputs(split=split, indices=chosen)
        state = calibrate(program, quantizer, inputs, len(chosen), training.chosen_training(data, program))
    checked = chosen or choice.choose(split, None, "first", build.seed, as_calls=as_calls)
    check_inputs.write_check_inputs(choice.ChosenInputs(split=split, indices=checked))
    files.write_json(paths.CALIBRATION_SAMPLES, [split.digest(index) for index in chosen])
    observers.write_observers(state)
    training_checkpoints.remove_checkpoints()


run_stage(__name__, main, preloaded_within_s=60)
