"""Counters and histograms, and their Prometheus form."""
