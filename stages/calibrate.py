"""Stage calibrate: representative samples through the prepared model -> build/calibrate/."""

from pipeline import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from pipeline import artifacts
    from pipeline.config.schema import QuantizationConfig
    from pipeline.contracts import ObserverState
    from pipeline.datasets.choice import choose
    from pipeline.datasets.overlap import check_disjoint

    config, quantizer, dataset = stage.section(QuantizationConfig), stage.quantizer(), stage.dataset(build.seed)
    check_disjoint(dataset.calibration, dataset.evaluation)
    split, count = dataset.calibration, config.num_calibration_samples
    count = count if stage.scheme().observes_samples else 0
    chosen = choose(split, count, config.calibration_choice, build.seed)
    state = ObserverState(tensors={}, layout="none")
    if quantizer is not None:
        from pipeline.calibrate import calibrate
        from pipeline.datasets.splits import ChosenInputs

        inputs = ChosenInputs(split=split, indices=chosen)
        state = calibrate(artifacts.read_program(artifacts.EXPORTED), quantizer, inputs, len(chosen))
    artifacts.write_json(artifacts.CALIBRATION_SAMPLES, [split.digest(index) for index in chosen])
    artifacts.write_observers(state)


stage.run(__name__, main, preloaded_within_s=60)
