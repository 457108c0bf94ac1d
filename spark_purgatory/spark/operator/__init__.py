"""`Purgatory` on Spark: inputs to engine columns, and the plan from them to the outcomes."""
