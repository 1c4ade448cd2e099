"""Who is in, which logs exist, who masters them: one small state machine, replicated under a majority."""
