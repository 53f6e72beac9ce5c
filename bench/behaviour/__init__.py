"""What servers do when calls go wrong: the same probes against castiron and its peers."""
