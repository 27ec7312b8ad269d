// The engine's log lines in the server's log, with their ids.
import type { Logger } from 'pino'

const warn = 40

/**
 * Writes an engine's lines to `log`: warnings and errors at their level with their fields (request_id, trace_id, model,
 * err), the rest, and what the library prints, as debug.
 */
export function relayEngineLog(text: string, log: Logger): void {
  for (const line of text.split('\n')) {
    if (line.trim() === '') continue
    const { level, msg, time: _, pid: __, hostname: ___, process: ____, ...fields } = parse(line)
    if (typeof level !== 'number' || level < warn) log.debug(line.trimEnd())
    else log[level === warn ? 'warn' : 'error'](fields, `engine: ${msg}`)
  }
}

function parse(line: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(line)
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
  } catch {
    return {}
  }
}
