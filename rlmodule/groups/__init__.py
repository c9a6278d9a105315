"""Groups of env runners and learners, in this process or in other processes."""
