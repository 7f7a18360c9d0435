"""Stage calibrate: representative samples through the prepared model -> build/calibrate/."""

from pipeline import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from pipeline import artifacts
    from pipeline.config.schema import QuantizationConfig
    from pipeline.contracts import ObserverState
    from pipeline.datasets.overlap import check_disjoint

    dataset = stage.dataset(build.seed)
    check_disjoint(dataset.calibration, dataset.evaluation)
    split = dataset.calibration
    count = min(len(split), stage.section(QuantizationConfig).num_calibration_samples or len(split))
    quantizer = stage.quantizing_backend().quantizer(stage.scheme())
    state = ObserverState(tensors={}, layout="none")
    if quantizer is not None:
        from pipeline.calibrate import calibrate

        inputs = (split[index].inputs for index in range(count))
        state = calibrate(artifacts.read_program(artifacts.EXPORTED), quantizer, inputs, count)
    artifacts.write_json(artifacts.CALIBRATION_SAMPLES, [split.digest(index) for index in range(count)])
    artifacts.write_observers(state)


stage.run(__name__, main, preloaded_within_s=60)
