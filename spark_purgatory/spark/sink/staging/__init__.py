"""The staging folder: files of rows, the log of entries next to them, and the ledger of everything that counts."""
