"""`python -m draftwood.cli`."""

from .app import main

main()
