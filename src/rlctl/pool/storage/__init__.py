"""Where the pool keeps what it acknowledged: a journal and snapshots on the local disk, or in Redis."""
