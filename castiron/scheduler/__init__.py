"""Requests to batches: who runs next, who waits, who is refused. Pure; the time is passed in."""
