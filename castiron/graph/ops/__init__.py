"""What each op means: one file per family, holding type rules and the canonical form of attrs.

``table.py`` maps op names to rules, ``rule.py`` is what a rule sees of the graph, ``bounds.py``
and ``contents.py`` are the arithmetic of symbolic sizes. Numeric meaning is the ONNX reference
evaluator's, except for ``expr.py`` trees, which ``elementwise.py`` gives for elementwise ops.
"""
