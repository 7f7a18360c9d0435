"""Stage compose: params.yaml and conf/ -> build/config.yaml, validated and fully resolved."""

from pathlib import Path

from lowerdeck.execution import preload
from lowerdeck.execution.stage_entry import run_stage


def main() -> None:
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.config.compose import compose, render

    config = compose(Path("params.yaml"), Path("conf"))
    write_text(paths.CONFIG, render(config))
    print(f"compose: {config.model.name} on {config.dataset.name}, {config.quantization.name}, {config.target.name}")


run_stage(__name__, main, starts=preload.LOWERING)
