"""How long a worker is waited for, in seconds."""

ASK_SECONDS = 20.0  # for a short question
TURN_SECONDS = 3600.0  # for one that takes its turn after the jobs that wait
POLL_SECONDS = 0.2  # between two looks at a job
