"""Models of other libraries that scripts bring along: recognised by name and layout, built by no card."""
