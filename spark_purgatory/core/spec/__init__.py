"""What a query asks for and what arrives: criteria, the engine's specification, tables of operations and events."""
