"""Stage calibrate: representative samples through the prepared model, then training if any -> build/calibrate/."""

from lowerdeck import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from lowerdeck import artifacts
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.contracts import ObserverState
    from lowerdeck.datasets.choice import ChosenInputs, choose
    from lowerdeck.datasets.overlap import check_disjoint

    config, quantizer, dataset = stage.section(QuantizationConfig), stage.quantizer(), stage.dataset(build.seed)
    check_disjoint(dataset.calibration, dataset.evaluation)
    split, count = dataset.calibration, config.num_calibration_samples
    count = count if stage.scheme().observes_samples else 0
    chosen = choose(split, count, config.calibration_choice, build.seed)
    state = ObserverState(tensors={}, layout="none")
    if quantizer is not None:
        from lowerdeck.steps.calibrate import calibrate

        program, training = artifacts.read_program(artifacts.EXPORTED), stage.training(dataset)
        state = calibrate(program, quantizer, ChosenInputs(split=split, indices=chosen), len(chosen), training)
    artifacts.write_json(artifacts.CALIBRATION_SAMPLES, [split.digest(index) for index in chosen])
    artifacts.write_observers(state)
    artifacts.remove_checkpoints()


stage.run(__name__, main, preloaded_within_s=60)
