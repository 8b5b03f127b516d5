"""What trainings use: prioritized replay."""
