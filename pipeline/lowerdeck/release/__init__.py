"""From a recorded build to a release: promotion and the ledger."""
