"""What builds are worth, kept in docs/ledger beside the code, so that a change of it is seen like one of the code."""
