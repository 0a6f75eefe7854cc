"""Renderers of sections: terminal, page, Markdown, CSV, pictures, TensorBoard; none of them knows a figure."""
