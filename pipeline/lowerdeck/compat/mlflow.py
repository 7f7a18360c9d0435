"""Replacements in MLflow."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

DEFAULT_EXPERIMENT = Replacement(
    target="mlflow.store.tracking.sqlalchemy_store:SqlAlchemyStore._create_default_experiment",
    reason="MLflow writes the working directory into SQL as Python's repr(), which is no SQL where its path has quotes "
    "of both kinds, and another path where it has a backslash.",
)
