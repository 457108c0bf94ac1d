"""What waits in the staging folder: files, the log of records beside them, the ledger of what counts."""
