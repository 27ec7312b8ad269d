// UTC days, by the unix milliseconds of their start.
export const day_ms = 86_400_000
export const startOfDay = (time: number) => time - (time % day_ms)
export const endOfDay = (time: number) => startOfDay(time) + day_ms
