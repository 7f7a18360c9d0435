"""The command `lowerdeck`: `add` of a module adds its subcommand to the parser."""
