"""Stage compose: params.yaml and conf/ -> build/config.yaml, validated and resolved, and build/code.json."""

from pathlib import Path

from lowerdeck.execution import preload
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    from dataclasses import asdict

    from lowerdeck.config.compose import compose, render
    from lowerdeck.config.flavor import check_installed
    from lowerdeck.config.yaml_text import plain_values
    from lowerdeck.execution import composed_inputs
    from lowerdeck.fingerprints.closures import notes_on_unwatched, stage_code_and_files

    sources = Path("params.yaml"), Path("conf")
    with composed_inputs.recorded(*sources) as read:
        config = compose(*sources)
        check_installed(config)
        code, code_files = stage_code_and_files(asdict(config), Path.cwd())
    read.write(code, code_files, render(config))
    watched = plain_values(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]["compose"]["deps"]
    for note in notes_on_unwatched(asdict(config), watched, read.given):
        print(f"compose: {note}")
    print(f"compose: {config.model.name} on {config.dataset.name}, {config.quantization.name}, {config.target.name}")


run_stage(__name__, main, starts=preload.LOWERING)
