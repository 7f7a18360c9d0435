"""Stage firmware: the `.pte` with everything that firmware needs -> build/firmware/ and build/firmware.zip."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen import dataset, firmware
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import conversion, files, firmware_bundle, host_programs, paths
    from lowerdeck.firmware import bundle, vector

    program, data = host_programs.open_converted_program("reference"), dataset.chosen_dataset(build.seed)
    sample = vector.calibration_sample(data.calibration, files.read_json(paths.CALIBRATION_SAMPLES))
    bundled = bundle.bundle(
        files.require_file(paths.PROGRAM).read_bytes(),
        files.read_json(paths.MANIFEST),
        vector.execute(program, sample.inputs, sample.digest),
        firmware.firmware_target(),
        firmware.firmware_placement(),
        data_files=conversion.read_data_files(),
        kernel_selection=paths.KERNEL_SELECTION.read_bytes() if paths.KERNEL_SELECTION.is_file() else None,
        structural=data.structural,
    )
    firmware_bundle.write_firmware(bundled)
    print(f"firmware: {len(bundled)} files in {paths.FIRMWARE} and {paths.FIRMWARE_ZIP}")


run_stage(__name__, main, preloaded_within_s=60)
