"""Stage measure: the `.pte` on the configured device -> build/measure/, which stays empty without a device."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import dataset, device, gates, task
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    from lowerdeck.artifacts import measurements, paths

    if (chosen := device.chosen_device()) is None:
        measurements.write_measurement({}, None, [])
        return
    build = fix_arithmetic()
    from lowerdeck.artifacts import baseline, files, host_programs
    from lowerdeck.steps import device_difference, device_metrics, measure

    data, (reference, evaluated) = dataset.chosen_dataset(build.seed), baseline.read_baseline()
    place, io = device.place_and_settings(chosen, host_programs.kernel_definitions()), host_programs.read_io()
    samples = device_metrics.encoded_samples(data, indices := device.samples(chosen, evaluated), io[0])
    measured = measure.measure(files.require_file(paths.PROGRAM), samples, *place)
    host = device_metrics.host_outputs(lambda: host_programs.open_converted_program("reference"), samples)
    known = device_metrics.known_of(data, indices, reference, evaluated, task.chosen_task())
    metrics = device_metrics.device_metrics(measured, host, io[1], io[2], *known)
    metrics |= device_difference.difference_metrics(paths.PROGRAM, samples, measured.outputs, host[0], *place, io[3])
    measurements.write_measurement(metrics, measured, [data.evaluation.digest(index) for index in indices])
    gates.check_device_gates(metrics)  # last, so that metrics that miss a gate are written too


run_stage(__name__, main, preloaded_within_s=60)
