"""Renderers of sections: terminal, page, Markdown, CSV, pictures and TensorBoard; none knows a figure."""
