"""What is done to an image, by transform: pipelines found by their structure, timed where they run."""
