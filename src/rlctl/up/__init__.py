"""`rlctl up`: plans the processes of a run, supervises them, shows progress, reports."""
