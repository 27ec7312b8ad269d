// The connections to one server: kept after an answer and used again, as a new one costs a round trip or more.
import { type Connection, openConnection, type Place } from './connection.ts'

const sweep_ms = 1000

export interface Connections {
  /** What requests name the server by. */
  readonly host: string
  /** The one that was used last of those that are free, or a new one. */
  take(): Connection
  open(): Connection
  /** Closes those that are free. */
  close(): void
}

/** `idle_ms`: how long one is kept without a request; less where the server says so. */
export function createConnections(place: Place, idle_ms: number): Connections {
  const idle: { connection: Connection; until: number }[] = []
  let sweeping: NodeJS.Timeout | undefined

  function sweep(): void {
    const now = performance.now()
    for (const { connection, until } of [...idle]) if (until <= now) connection.close()
    sweeping = idle.length > 0 ? setTimeout(sweep, sweep_ms).unref() : undefined
  }

  function free(connection: Connection): void {
    idle.push({ connection, until: performance.now() + Math.min(idle_ms, connection.idle_ms) })
    if (!sweeping) sweeping = setTimeout(sweep, sweep_ms).unref()
  }
  function gone(connection: Connection): void {
    const index = idle.findIndex((each) => each.connection === connection)
    if (index !== -1) idle.splice(index, 1)
  }

  const open = () => openConnection(place, free, gone)
  return {
    host: 'socketPath' in place ? 'localhost' : hostOf(place),
    take() {
      for (let last = idle.pop(); last; last = idle.pop()) {
        if (last.until > performance.now()) return last.connection
        last.connection.close()
      }
      return open()
    },
    open,
    close() {
      for (const { connection } of [...idle]) connection.close()
    },
  }
}

function hostOf({ hostname, port, secure }: { hostname: string; port: number; secure: boolean }): string {
  const name = hostname.includes(':') ? `[${hostname}]` : hostname
  return port === (secure ? 443 : 80) ? name : `${name}:${port}`
}
