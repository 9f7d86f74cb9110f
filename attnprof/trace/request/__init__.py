"""What is asked: from what is typed or passed to a target that can be run at any sizes."""
