"""Graph to executable: passes, plan, code generation, and their order."""
