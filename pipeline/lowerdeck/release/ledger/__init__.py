"""The metrics of chosen builds in docs/ledger, versioned with the code so that reviews see a change."""
