"""What this machine lets a process have: CPUs and memory, and which limit says so."""
