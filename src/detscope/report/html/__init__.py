"""The report as one offline HTML file: no network, opens by double click, readable with scripts off."""
