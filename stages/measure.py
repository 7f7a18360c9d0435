"""Stage measure: the `.pte` on the configured device -> build/measure/, which stays empty without a device."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import dataset, device, gates
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    from lowerdeck.artifacts import measurements, paths

    if (chosen := device.chosen_device()) is None:
        measurements.write_measurement({}, None, [])
        return
    build = fix_arithmetic()
    from lowerdeck.artifacts import baseline, files, host_programs
    from lowerdeck.evaluation.gates import check_gates
    from lowerdeck.steps import device_difference, device_metrics, measure

    data, place, program = dataset.chosen_dataset(build.seed), device.place_and_settings(chosen), paths.PROGRAM
    indices, io = device.samples(chosen, baseline.read_baseline()[1]), host_programs.read_io()
    samples = device_metrics.encoded_samples(data, indices, io[0])
    measured = measure.measure(files.require_file(program), samples, *place)
    host = device_metrics.host_outputs(lambda: host_programs.open_converted_program("reference"), samples)
    metrics = device_metrics.device_metrics(measured, host, *io[1:3], device_metrics.labels_of(data, indices))
    metrics |= device_difference.difference_metrics(program, samples, measured.outputs, host[0], *place, io[3])
    measurements.write_measurement(metrics, measured, [data.evaluation.digest(index) for index in indices])
    check_gates(gates.chosen_device_gates(), metrics)  # last, so that metrics that miss a gate are written too


run_stage(__name__, main, preloaded_within_s=60)
