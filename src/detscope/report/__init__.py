"""What is shown: terminal, trace; views never compute."""
