"""Stage calibrate: representative samples through the prepared model, then training if any -> build/calibrate/."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.dataset import chosen_dataset
from lowerdeck.execution.chosen.quantization import chosen_quantizer, chosen_scheme
from lowerdeck.execution.chosen.training import chosen_training
from lowerdeck.execution.resolved_config import section
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_json
    from lowerdeck.artifacts.observers import write_observers
    from lowerdeck.artifacts.programs import read_program
    from lowerdeck.artifacts.training_checkpoints import remove_checkpoints
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.contracts.quantization import ObserverState
    from lowerdeck.datasets.choice import ChosenInputs, choose
    from lowerdeck.datasets.overlap import check_disjoint

    config, quantizer, dataset = section(QuantizationConfig), chosen_quantizer(), chosen_dataset(build.seed)
    check_disjoint(dataset.calibration, dataset.evaluation)
    split, count = dataset.calibration, config.num_calibration_samples
    count = count if chosen_scheme().observes_samples else 0
    chosen = choose(split, count, config.calibration_choice, build.seed)
    state = ObserverState(tensors={}, layout="none")
    if quantizer is not None:
        from lowerdeck.steps.calibrate import calibrate

        program, training = read_program(paths.EXPORTED), chosen_training(dataset)
        state = calibrate(program, quantizer, ChosenInputs(split=split, indices=chosen), len(chosen), training)
    write_json(paths.CALIBRATION_SAMPLES, [split.digest(index) for index in chosen])
    write_observers(state)
    remove_checkpoints()


run_stage(__name__, main, preloaded_within_s=60)
