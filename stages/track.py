"""Stage track: the build in build/ -> its MLflow run, build/track/lineage.json and build/recorded.json."""

from lowerdeck import preload, stage


def main() -> None:
    from lowerdeck import artifacts
    from lowerdeck.provenance import lineage

    config = stage.whole_config()
    chain = lineage.trace(config)
    if config.tracking.enabled:
        from lowerdeck.pages.explanation import files
        from lowerdeck.tracking.record import record

        recorded = record(config, chain, files.render(artifacts.read_plan(), config))
        what = "new run" if recorded.new else "updated run"
        print(f"track: {what} {recorded.run_name!r} of experiment {recorded.experiment!r}; `make ui` shows it")
    else:
        print("track: no MLflow run, as tracking.enabled is false")
    artifacts.write_json(artifacts.LINEAGE, chain)  # not before: where recording failed, the previous one stays
    artifacts.write_json(artifacts.RECORDED, {"build_key": chain["build_key"], "run": config.tracking.enabled})


stage.run(__name__, main, preloaded_within_s=20, libraries=preload.TRACKING)
