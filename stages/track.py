"""Stage track: the build in build/ -> firmware.zip, its MLflow run, lineage.json and recorded.json."""

from lowerdeck.execution import preload
from lowerdeck.execution.resolved_config import whole_config
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_json
    from lowerdeck.provenance import lineage
    from lowerdeck.report.bundle import write_recorded_bundle

    config = whole_config()
    chain = lineage.trace(config)
    write_recorded_bundle(config, chain["build_key"])
    if config.tracking.enabled:
        from lowerdeck.pages.recorded import recorded_pages
        from lowerdeck.tracking.record import record

        run = record(config, chain, lambda address: recorded_pages(chain, address))
        what = f"{'new' if run.new else 'updated'} run {run.run_name!r} of experiment {run.experiment!r}"
        print(f"track: {what}; `lowerdeck ui` shows it")
    else:
        print("track: no MLflow run, as tracking.enabled is false")
    write_json(paths.LINEAGE, chain)  # only now: if recording fails, the previous one stays
    write_json(paths.RECORDED, {"build_key": chain["build_key"], "run": config.tracking.enabled})


run_stage(__name__, main, preloaded_within_s=20, libraries=preload.TRACKING)
