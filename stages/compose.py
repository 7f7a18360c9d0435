"""Stage compose: params.yaml and conf/ -> build/config.yaml, validated and resolved, and build/code.json."""

from pathlib import Path

from lowerdeck.execution import preload
from lowerdeck.execution.stage_entry import run_stage

MAX_NAMED = 5
"""Most files and folders outside of those that DVC watches that are named one by one."""


def main() -> None:
    from dataclasses import asdict

    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_json, write_text
    from lowerdeck.config.compose import compose, render
    from lowerdeck.config.flavor import check_installed
    from lowerdeck.config.yaml_text import plain_values
    from lowerdeck.fingerprints.closures import stage_code, unwatched_by
    from lowerdeck.fingerprints.data import files_read

    with files_read() as read:
        config = compose(Path("params.yaml"), Path("conf"))
    check_installed(config)
    write_json(paths.CODE, stage_code(asdict(config), Path.cwd()))
    write_text(paths.CONFIG, render(config))
    watched = plain_values(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]["compose"]["deps"]
    outside = unwatched_by(asdict(config), watched, read)
    for path in outside[:MAX_NAMED]:
        print(f"compose: DVC does not notice changes of {path}; list it in dvc.yaml under the deps of compose")
    if len(outside) > MAX_NAMED:
        print(f"compose: nor does it notice those of {len(outside) - MAX_NAMED} more files and folders with samples")
    print(f"compose: {config.model.name} on {config.dataset.name}, {config.quantization.name}, {config.target.name}")


run_stage(__name__, main, starts=preload.LOWERING)
