"""Why nodes are not delegated, how they could be, and what changed between two plans: words, tables and a page."""
