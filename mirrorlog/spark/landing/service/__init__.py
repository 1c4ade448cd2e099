"""Many landings in one session: when each takes its step, and what is shown of them."""
