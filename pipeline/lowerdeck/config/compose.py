"""params.yaml and conf/ -> one validated, fully resolved configuration.

Hydra composes (choices). Unknown keys, wrong types and impossible combinations, which it accepts, are refused (schema,
resolution), all at once and before anything runs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lowerdeck.config.choices import Chosen, read_params, selected_values
from lowerdeck.config.problems import raise_problems, validate
from lowerdeck.config.resolution import resolved
from lowerdeck.config.schema import Config
from lowerdeck.fingerprints.closures import drop_outdated_bytecode


def compose(params_path: Path, conf_dir: Path, chosen: Chosen | None = None) -> Config:
    """The configuration that `params_path` selects from `conf_dir`; `chosen` as for `compose_params`.

    Raises:
        ConfigurationError: listing every problem found, each with its full key, the value and what is allowed.
    """
    return compose_params(read_params(params_path), conf_dir, chosen)


def compose_params(params: dict[str, Any], conf_dir: Path, chosen: Chosen | None = None) -> Config:
    """The configuration that `params`, the content of params.yaml, selects from `conf_dir`.

    Arguments are those of `choices.selected_values`; raises like `compose`.
    """
    config, problems = validate(Config, selected_values(params, conf_dir, chosen))
    raise_problems(problems)
    drop_outdated_bytecode(Path.cwd(), config.build.plugins)
    return resolved(config, conf_dir)


def render(config: Config) -> str:
    """`config` as YAML that YAML 1.1 (OmegaConf) and 1.2 (DVC) read alike: every string is quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_mapping(self, *arguments: Any, **options: Any) -> Any:
            node = super().represent_mapping(*arguments, **options)
            for key, _ in node.value:
                key.style = None  # keys are names of fields and need no quotes
            return node

    Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))
    body = yaml.dump(dataclasses.asdict(config), Dumper=Dumper, sort_keys=False, width=1 << 16, allow_unicode=True)
    note = "# Written by the stage `compose` from params.yaml and conf/. Do not edit: the next compose replaces it.\n"
    return note + body
