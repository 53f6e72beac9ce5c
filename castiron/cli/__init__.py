"""One file per command, each from options to one call of ``api``."""
