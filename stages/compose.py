"""Stage compose: params.yaml and conf/ -> build/config.yaml, validated and fully resolved."""

from pathlib import Path

from lowerdeck import preload, stage


def main() -> None:
    from lowerdeck import artifacts
    from lowerdeck.config.compose import compose, render

    config = compose(Path("params.yaml"), Path("conf"))
    artifacts.write_text(artifacts.CONFIG, render(config))
    print(f"compose: {config.model.name} on {config.dataset.name}, {config.quantization.name}, {config.target.name}")


stage.run(__name__, main, starts=preload.LOWERING)
