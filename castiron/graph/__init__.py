"""The model as data: Graph, Node, Value types, op rules, verification, text form."""
