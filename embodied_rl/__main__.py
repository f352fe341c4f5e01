"""`python -m embodied_rl` is `embodied-rl`."""

import sys

from embodied_rl.cli import main

sys.exit(main())
