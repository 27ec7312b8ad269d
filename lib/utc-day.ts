// Times in UTC: days, by the unix milliseconds of their start, and times as responses have them.
export const hour_ms = 3_600_000
export const day_ms = 24 * hour_ms
export const startOfDay = (time: number) => time - (time % day_ms)
export const endOfDay = (time: number) => startOfDay(time) + day_ms

/** A time of the database as API responses have it. Null stays null. */
export function isoTime(time: number): string
export function isoTime(time: number | null): string | null
export function isoTime(time: number | null): string | null {
  return time === null ? null : new Date(time).toISOString()
}

/** A time of the database as OpenAI's API has it. Null stays null. */
export function unixSeconds(time: number): number
export function unixSeconds(time: number | null): number | null
export function unixSeconds(time: number | null): number | null {
  return time === null ? null : Math.floor(time / 1000)
}

/** The UTC date alone, `2026-01-31`. */
export const isoDay = (time: number) => isoTime(time).slice(0, 10)
