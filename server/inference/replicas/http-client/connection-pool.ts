// Keep-alive connection pool for one server: a new connection costs at least one round trip.
import { type Connection, openConnection, type ServerAddress } from './connection.ts'

const sweep_ms = 1000

export interface ConnectionPool {
  /** Value of the Host header. */
  readonly host: string
  /** Returns the most recently used idle connection, or a new one. */
  acquire(): Connection
  /** Opens a new connection. */
  open(): Connection
  /** Closes idle connections. */
  close(): void
}

/** `idle_ms`: how long an idle connection stays open. A shorter Keep-Alive timeout from the server takes precedence. */
export function createConnectionPool(address: ServerAddress, idle_ms: number): ConnectionPool {
  const idle: { connection: Connection; expires_at: number }[] = []
  let sweepTimer: NodeJS.Timeout | undefined

  function sweep(): void {
    const now = performance.now()
    for (const { connection, expires_at } of [...idle]) if (expires_at <= now) connection.close()
    sweepTimer = idle.length > 0 ? setTimeout(sweep, sweep_ms).unref() : undefined
  }

  function addIdle(connection: Connection): void {
    idle.push({ connection, expires_at: performance.now() + Math.min(idle_ms, connection.idle_ms) })
    if (!sweepTimer) sweepTimer = setTimeout(sweep, sweep_ms).unref()
  }
  function removeClosed(connection: Connection): void {
    const index = idle.findIndex((each) => each.connection === connection)
    if (index !== -1) idle.splice(index, 1)
  }

  const open = () => openConnection(address, addIdle, removeClosed)
  return {
    host: 'socketPath' in address ? 'localhost' : hostOf(address),
    acquire() {
      for (let last = idle.pop(); last; last = idle.pop()) {
        if (last.expires_at > performance.now()) return last.connection
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
