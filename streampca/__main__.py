"""``python -m streampca``."""

from streampca.cli import main

main()
