// The states of a session, as far as pages tell them apart.

/** Whether the session keeps what it has and nothing in it runs, until somebody uses it. */
export const isPaused = (state: string): boolean => state === "paused" || isHibernated(state);

/** Whether a paused session has given its sandbox back: its files are kept, its processes are not. */
export const isHibernated = (state: string): boolean => state === "hibernated";

/** Whether its `expires_at` is a countdown: the idle time of one that runs, or the rest of a pause. */
export const hasCountdown = (state: string): boolean => state === "running" || isPaused(state);
