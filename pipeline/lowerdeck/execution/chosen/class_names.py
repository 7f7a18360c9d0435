"""The names of the classes that the model tells apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset
    from lowerdeck.evaluation.records import ChosenTask


def chosen_class_names(dataset: Dataset) -> tuple[str, ...]:
    """Those of the dataset, or else those that come with the model's weights; empty where neither has some."""
    from lowerdeck.contracts.samples import class_names

    return class_names(dataset) or _of_weights(dataset)


def check_class_names(dataset: Dataset, task: ChosenTask, num_scores: int | None) -> None:
    """Check that classes have the same indices in the dataset and in the model, as far as both name them.

    Either may name classes that the other lacks. What is likely wrong, but cannot be known, is printed, as are other
    indices where the task compares no classes: an embedding is judged on other identities than it was trained on.

    Args:
        dataset: The chosen one.
        task: The chosen one; decoders of detection may move classes, so that the names of theirs are not compared.
        num_scores: Number of classes that the model tells apart; None for tasks without classes.

    Raises:
        ConfigurationError: a name has one index in the dataset and another in the weights, and the task compares them,
            or a file does not name every class.
    """
    from lowerdeck.config.schema import DatasetConfig
    from lowerdeck.contracts.samples import class_names
    from lowerdeck.datasets.class_names import repeated

    given, known = class_names(dataset), _of_weights(dataset)
    if "boxes" in task.task.TARGETS:
        if given and num_scores not in (None, len(given)):
            print(
                f"export: warning: the dataset names {len(given)} classes and the decoder gives {num_scores}; class 0 "
                f"({given[0]}) is compared with the decoder's class 0. If that is another one, correct "
                "task.options.decoder (background, has_objectness; torchvision: num_classes, first_label) or "
                "dataset.options.category_ids (coco)"
            )
        return
    # ImageNet has two classes `crane`, so that a name may have several indices.
    named = frozenset(known)
    moved = [name for index, name in enumerate(given) if name in named and known[index : index + 1] != (name,)]
    if moved:
        found = (
            f"{moved[0]!r} is class {given.index(moved[0])} of the dataset and output {known.index(moved[0])} of the "
            f"model, by the names of classes that come with model.weights; {len(moved)} of {len(given)} classes have "
            "another place."
        )
        if num_scores is None and not {"mask", "array", "events"} & set(task.task.TARGETS):
            print(f"export: warning: {found} The task compares none, and the firmware bundle has those of the dataset")
            return
        raise ConfigurationError(
            f"{found} Name the classes of the dataset in the order of the model (image_table: "
            "dataset.options.classes; arrays, mask_folder: a file class_names; image_folder, audio_folder: rename the "
            "folders so that they sort in that order), or correct `class_names` in the metadata of the "
            "weights"
        )
    file = section(DatasetConfig).options.get("class_names")
    if given and file is not None and num_scores not in (None, len(given)):
        raise ConfigurationError(
            f"{file} names {len(given)} classes and the model tells {num_scores} apart (dataset.options.class_names); "
            "write the name of every class in a line, in the order of the model's scores, the background too if it has "
            "a score"
        )
    if not known and (twice := repeated(given)):
        print(f"export: warning: several classes have the names {', '.join(twice)}; they are shown by their numbers")
    if given and num_scores is not None and num_scores > len(given) and not known:
        print(
            f"export: warning: the dataset names {len(given)} classes and the model returns {num_scores} scores; class "
            f"{len(given) - 1} ({given[-1]}) is compared with score {len(given) - 1}. If the model has classes in "
            "between of which there are no samples, name them too (image_table: dataset.options.classes)"
        )


def _of_weights(dataset: Dataset) -> tuple[str, ...]:
    from lowerdeck import models
    from lowerdeck.config.schema import ModelConfig

    config = section(ModelConfig)
    source = models.source(config.source)
    names = getattr(source, "class_names", None)
    return () if names is None or dataset.structural else tuple(names(source.Options(**config.options), config.weights))
