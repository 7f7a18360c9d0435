"""`python -m lowerdeck.cli`: the command `lowerdeck` without its entry point."""

import sys

from lowerdeck.cli.main import main

sys.exit(main())
