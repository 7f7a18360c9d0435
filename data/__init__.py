"""Scripts that prepare the bundled dataset and train the bundled model; data/dvc.yaml runs them."""
