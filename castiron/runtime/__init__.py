"""An executable mapped onto a device and run: instance, pool, team, lane."""
