"""What leaves the process; loaded by api alone."""
