"""Programs for `[[env]] command` that need nothing of rlctl but their task in RLCTL_TASK: they run in any Python."""
