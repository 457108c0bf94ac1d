"""The criteria, the engine's specification, and the tables of operations and events that arrive."""
