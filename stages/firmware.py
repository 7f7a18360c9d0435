"""Stage firmware: the `.pte` with all that its use in firmware needs -> build/firmware/ and build/firmware.zip."""

from lowerdeck import stage


def main() -> None:
    build = stage.fix_arithmetic()
    from lowerdeck import artifacts
    from lowerdeck.firmware import bundle
    from lowerdeck.firmware.vector import calibration_sample, execute

    program, dataset = artifacts.open_program("reference"), stage.dataset(build.seed)
    sample = calibration_sample(dataset.calibration, artifacts.read_json(artifacts.CALIBRATION_SAMPLES))
    files = bundle(
        artifacts.existing(artifacts.PROGRAM).read_bytes(),
        artifacts.read_json(artifacts.MANIFEST),
        execute(program, sample.inputs, sample.digest),
        stage.firmware_target(),
        stage.placement(),
        data_files=artifacts.read_data_files(),
        kernel_selection=artifacts.KERNEL_SELECTION.read_bytes() if artifacts.KERNEL_SELECTION.is_file() else None,
        structural=dataset.structural,
    )
    artifacts.write_firmware(files)
    print(f"firmware: {len(files)} files in {artifacts.FIRMWARE} and {artifacts.FIRMWARE_ZIP}")


stage.run(__name__, main, preloaded_within_s=60)
