// Notifications between the server processes of an installation: work was queued, an event was written, running work is
// to stop, what is cached has changed. They only make things fast. Who misses one sees the change in the database: at
// the next poll, or when a cached value expires.
import { EventEmitter } from 'node:events'
import type { Logger } from 'pino'
import type { Db } from '../db/open.ts'

/** Background work. `close()` waits for its end. */
export interface Running {
  close(): Promise<void>
}

/**
 * `work`: the queue has new work. `change`: the object `ref` has new events or another status. `stop`: work on `ref` is
 * to stop, for the reason `detail`. `account`: keys, sessions, members, names or models of the account `ref` have
 * changed. `download`: the download of the base `ref` has changed.
 */
type Topic = 'work' | 'change' | 'stop' | 'account' | 'download'

interface Notification {
  topic: Topic
  ref?: string | undefined
  detail?: string | undefined
}

export interface Notifications {
  /** Notifies the listeners of this process at once, and those of the others soon. Call it after the commit. */
  publish(topic: Topic, ref?: string, detail?: string): void
  /**
   * Adds a listener of this process's notifications and the others'. `ref` is undefined for what concerns no single
   * object, and after a gap, in which any may have changed.
   */
  on(topic: Topic, listener: (ref: string | undefined, detail: string | undefined) => void): void
  /** Begins to listen to the other processes. */
  start(): Promise<Running>
  /** Sends what is pending, and ends listening. */
  close(): Promise<void>
}

/** Carries notifications to other processes. */
interface Channel {
  /** Must not reject: a lost notification delays others, and nothing more. */
  send(notifications: Notification[]): Promise<void>
  /** Receives those of the other processes until closed. `onGap` is called when some may have been missed. */
  listen(onReceived: (notifications: Notification[]) => void, onGap: () => void): Promise<Running>
}

/** How long notifications are collected: a training writes many events in a row. */
const collect_ms = 5

/** Notifications over the database, if it is Postgres. On SQLite this process is the only one. */
export async function openNotifications(db: Db, log: Logger, database_url: string | undefined): Promise<Notifications> {
  if (!database_url) return createNotifications(log)
  // Loaded where it is used: the driver would slow every start on SQLite.
  const { createPostgresChannel } = await import('../db/postgres/notifications.ts')
  return createNotifications(log, createPostgresChannel(db, database_url))
}

/** Without a channel there are no other processes. */
export function createNotifications(log: Logger, channel?: Channel): Notifications {
  const listeners = new EventEmitter().setMaxListeners(0)
  /** To be sent: the same one once. */
  const pending = new Map<string, Notification>()
  let sending: Promise<void> | undefined
  let timer: NodeJS.Timeout | undefined
  let listening: Running | undefined

  function flush(): void {
    timer = undefined
    const batch = [...pending.values()]
    pending.clear()
    sending = (sending ?? Promise.resolve())
      .then(() => channel!.send(batch))
      .catch((error) => log.debug({ err: error }, 'other servers could not be notified'))
  }

  return {
    publish(topic, ref, detail) {
      listeners.emit(topic, ref, detail)
      if (!channel) return
      pending.set(JSON.stringify([topic, ref, detail]), { topic, ref, detail })
      timer ??= setTimeout(flush, collect_ms)
    },

    on: (topic, listener) => void listeners.on(topic, listener),

    async start() {
      listening = await channel?.listen(
        (received) => {
          for (const { topic, ref, detail } of received) listeners.emit(topic, ref, detail)
        },
        () => {
          for (const topic of listeners.eventNames()) listeners.emit(topic)
        },
      )
      return this
    },

    async close() {
      if (timer) {
        clearTimeout(timer)
        flush()
      }
      await sending
      await listening?.close()
    },
  }
}
