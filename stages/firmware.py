"""Stage firmware: the `.pte` with everything that firmware needs -> build/firmware/ and firmware.json."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import class_names, dataset, firmware
from lowerdeck.execution.failures import lasting_cause
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import conversion, files, firmware_bundle, host_programs, paths, plans
    from lowerdeck.firmware import bundle, vector

    data, target, failure = dataset.chosen_dataset(build.seed), firmware.firmware_target(), None
    sample = vector.calibration_sample(data.calibration, files.read_json(paths.CALIBRATION_SAMPLES, list))
    program, manifest = files.require_file(paths.PROGRAM).read_bytes(), files.read_json(paths.MANIFEST)
    files_of_converter = conversion.read_data_files(), conversion.read_kernel_selection()
    findings = data.structural, plans.read_plan().mismatches
    try:
        opened, placed = host_programs.open_converted_program("reference"), firmware.firmware_placement()
        executed = vector.execute(opened, sample.inputs, sample.digest, sample.front_end)
        said = firmware.sample_format(data, class_names.chosen_class_names(data)), firmware.firmware_twins()
        made = bundle.bundle(program, manifest, executed, target, placed, *files_of_converter, *findings, *said)
    except Exception as error:  # a finding about the build, which must be evaluated and recorded nevertheless
        failure = lasting_cause(error, "firmware")
        made = bundle.failed_bundle(target, failure)
    print(f"firmware: {firmware_bundle.write_firmware(made, failure)}")


run_stage(__name__, main, preloaded_within_s=60)
