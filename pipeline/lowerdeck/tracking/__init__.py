"""The record of a build: its lineage, and one MLflow run for each build key. Only this package imports mlflow."""
