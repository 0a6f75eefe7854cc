"""Image files: found, judged, decoded."""
