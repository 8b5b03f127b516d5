"""What several packages need: threads, progress bars, warnings, spaces."""
