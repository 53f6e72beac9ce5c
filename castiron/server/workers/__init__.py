"""Several serving processes on one port: the supervisor, and what joins a worker to it."""
