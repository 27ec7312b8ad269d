// Days as the API's limits and reports count them.
export const day_ms = 86_400_000

/** The UTC day of a time: `2026-11-25`. */
export const utcDay = (time: number): string => new Date(time).toISOString().slice(0, 10)
