"""Stage compose: params.yaml and conf/ -> build/config.yaml, validated and fully resolved."""

from pathlib import Path

from pipeline import preload, stage


def main() -> None:
    from pipeline import artifacts
    from pipeline.config.compose import compose, render

    config = compose(Path("params.yaml"), Path("conf"))
    artifacts.write_text(artifacts.CONFIG, render(config))
    print(f"compose: {config.model.name} on {config.dataset.name}, {config.quantization.name}, {config.target.name}")


stage.run(__name__, main, starts=preload.LOWERING)
