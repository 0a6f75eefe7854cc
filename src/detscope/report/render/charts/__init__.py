"""Charts of the page: descriptions drawn as inline HTML and SVG, so that they show without any script."""
