"""One rewrite of the graph per file: shapes, folding, fusion, layout."""
