"""Writers of typed clients, and the files that every such client carries along."""
