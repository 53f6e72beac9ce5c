"""Names to versions to running instances."""
