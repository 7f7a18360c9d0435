"""Stage firmware: the `.pte` with everything that firmware needs -> build/firmware/ and build/firmware.zip."""

from lowerdeck.execution.arithmetic import fix_arithmetic
from lowerdeck.execution.chosen.dataset import chosen_dataset
from lowerdeck.execution.chosen.firmware import firmware_placement, firmware_target
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    build = fix_arithmetic()
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.conversion import read_data_files
    from lowerdeck.artifacts.files import read_json, require_file
    from lowerdeck.artifacts.firmware_bundle import write_firmware
    from lowerdeck.artifacts.host_programs import open_converted_program
    from lowerdeck.firmware.bundle import bundle
    from lowerdeck.firmware.vector import calibration_sample, execute

    program, dataset = open_converted_program("reference"), chosen_dataset(build.seed)
    sample = calibration_sample(dataset.calibration, read_json(paths.CALIBRATION_SAMPLES))
    files = bundle(
        require_file(paths.PROGRAM).read_bytes(),
        read_json(paths.MANIFEST),
        execute(program, sample.inputs, sample.digest),
        firmware_target(),
        firmware_placement(),
        data_files=read_data_files(),
        kernel_selection=paths.KERNEL_SELECTION.read_bytes() if paths.KERNEL_SELECTION.is_file() else None,
        structural=dataset.structural,
    )
    write_firmware(files)
    print(f"firmware: {len(files)} files in {paths.FIRMWARE} and {paths.FIRMWARE_ZIP}")


run_stage(__name__, main, preloaded_within_s=60)
