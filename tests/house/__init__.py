"""Rules of the source tree and of its documents."""
