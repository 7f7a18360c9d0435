"""The metrics of chosen builds, kept in docs/ledger beside the code, so that a change shows up in a review."""
