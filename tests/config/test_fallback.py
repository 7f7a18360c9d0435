"""`target.fallback`: which targets may be named for which, and what compose records of them."""

from __future__ import annotations

import pytest

from lowerdeck.config.compose import compose_params
from lowerdeck.contracts.errors import ConfigurationError
from tests.project import REPOSITORY, SELECTION

CONF = REPOSITORY / "conf"


def composed(target: str, **values: object) -> object:
    overrides = {**SELECTION.get("overrides", {}), "target": values}
    committed = {"model": "resnet8_pictures", "dataset": "cifar10_stand_in"}  # the digits may not be prepared here
    chosen = {**SELECTION, **committed, "target": target, "flavor": "default", "overrides": overrides}
    return compose_params(chosen, CONF)


@pytest.mark.parametrize("target", ["ethos_u55_128", "neutron_imxrt700"])
def test_the_device_of_the_fallback_and_its_memory_format_are_recorded(target: str) -> None:
    config = composed(target, fallback="cortex_m4")
    assert config.target.fallback_target == {  # type: ignore[attr-defined]
        "backend": "cortex_m",
        "device": {"cpu": "m4", "isa": None, "rounding": "double", "use_explicit_layout": False},
    }
    assert config.model.memory_format == "channels_last"  # type: ignore[attr-defined]
    without = composed(target)
    assert without.target.fallback_target is None  # type: ignore[attr-defined]
    assert without.model.memory_format == "contiguous"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "values", "message"),
    [
        ("ethos_u55_128", {"fallback": "cortexm55"}, "did you mean 'cortex_m55'"),
        ("ethos_u55_128", {"fallback": "xnnpack_cpu"}, "must be the conf/target option of a kernel library"),
        ("cortex_m55", {"fallback": "cortex_m55"}, "target.fallback: is for an NPU"),
        ("xnnpack_cpu", {"fallback": "cortex_m55"}, "target.fallback: is for an NPU"),
        ("ethos_u55_128", {"fallback_target": {"backend": "cortex_m"}}, "target.fallback_target: cannot be set"),
    ],
)
def test_other_choices_are_refused_with_what_is_allowed(target: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        composed(target, **values)
    assert message in str(caught.value)
