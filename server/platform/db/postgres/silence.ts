// Ends connections that have gone silent. A firewall that forgot them, or a failover without a reset, leaves sockets
// that never answer although Postgres answers new ones; TCP alone would wait for a quarter of an hour.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

/** A query without an answer for this long has its connection checked. */
const suspicious_ms = 3000
const check_ms = 1000
/** A new connection that does not answer within this time: Postgres is away. */
const answer_ms = 3000
/** An answer that was on its way during the check has arrived by then. */
const arrival_ms = 250
const end_ms = 1000

/**
 * Postgres ends a transaction whose next statement does not come, and connections whose other end is gone: their locks
 * would stop every writer.
 */
const sessionSettings = [
  "set idle_in_transaction_session_timeout = '20s'",
  "set tcp_keepalives_idle = '10s'",
  "set tcp_keepalives_interval = '5s'",
  'set tcp_keepalives_count = 3',
  "set tcp_user_timeout = '20s'",
  'select pg_backend_pid() as id',
].join('; ')

interface Waiting {
  client: pg.ClientBase
  since: number
}

interface SilenceWatch {
  /** Prepares a new connection. Each client that is passed to `ask` must have been. */
  adopt(client: pg.ClientBase): Promise<void>
  /** Runs a query. It fails once its connection has proved to be silent, or while Postgres is away. */
  ask<T>(client: pg.ClientBase, run: () => Promise<T>): Promise<T>
  close(): void
}

/** `onSilent` is called before silent connections end: other idle ones are probably as silent. */
export function watchSilence(settings: pg.ClientConfig, onSilent: () => void): SilenceWatch {
  /** The process of Postgres behind each connection. */
  const backends = new WeakMap<pg.ClientBase, number>()
  const waiting = new Set<Waiting>()
  let timer: NodeJS.Timeout | undefined
  let checking = false

  /** A connection that is being prepared has none yet. */
  const idsOf = (some: Waiting[]) => some.map(({ client }) => backends.get(client)).filter((id) => id !== undefined)

  /** Asks on a new connection. Rejects if Postgres does not answer. */
  async function askAnew<R extends pg.QueryResultRow>(text: string, ids: number[]): Promise<R[]> {
    const client = new pg.Client({ ...settings, connectionTimeoutMillis: answer_ms, query_timeout: answer_ms })
    client.on('error', () => {})
    try {
      await client.connect()
      return (await client.query<R>(text, [ids])).rows
    } finally {
      void endWithin(client)
    }
  }

  /** The processes among `ids` that work on a statement. */
  async function workingOf(ids: number[]): Promise<Set<number>> {
    const rows = await askAnew<{ pid: number }>(
      "select pid from pg_stat_activity where pid = any($1) and state = 'active'",
      ids,
    )
    return new Set(rows.map(({ pid }) => pid))
  }

  async function check(): Promise<void> {
    const suspects = [...waiting].filter(({ since }) => performance.now() - since > suspicious_ms)
    if (suspects.length === 0) return
    const working = await workingOf(idsOf(suspects)).catch(() => undefined)
    await sleep(arrival_ms)
    const isWorking = (one: Waiting) => idsOf([one]).some((id) => working?.has(id))
    const silent = suspects.filter((one) => waiting.has(one) && !isWorking(one))
    if (silent.length === 0) return
    onSilent()
    for (const { client } of silent) destroy(client)
    // Their locks would stop every writer until Postgres notices.
    const end = 'select pg_terminate_backend(pid) from unnest($1::int[]) as pid'
    if (working) await askAnew(end, idsOf(silent)).catch(() => {})
  }

  return {
    async adopt(client) {
      const results = await ask(client, () => client.query(sessionSettings))
      const { rows } = (results as unknown as pg.QueryResult<{ id: number }>[]).at(-1)!
      backends.set(client, rows[0]!.id)
    },
    ask,
    close() {
      clearInterval(timer)
    },
  }

  async function ask<T>(client: pg.ClientBase, run: () => Promise<T>): Promise<T> {
    const entry = { client, since: performance.now() }
    waiting.add(entry)
    timer ??= setInterval(() => {
      if (waiting.size === 0) {
        clearInterval(timer)
        timer = undefined
      } else if (!checking) {
        checking = true
        void check().finally(() => {
          checking = false
        })
      }
    }, check_ms).unref()
    try {
      return await run()
    } finally {
      waiting.delete(entry)
    }
  }
}

/** Ends a connection or a pool, without its consent where that takes longer than a second. */
export async function endWithin(from: pg.Client | pg.Pool, clients: Iterable<pg.ClientBase> = []): Promise<void> {
  const ended = from.end().catch(() => {})
  const late = Symbol('late')
  if ((await Promise.race([ended, sleep(end_ms, late, { ref: false })])) !== late) return
  for (const client of from instanceof pg.Client ? [from] : clients) destroy(client)
  await ended
}

/** Ends a connection without a word to the other side. What waits for it fails. */
export function destroy(client: pg.ClientBase): void {
  const { stream } = (client as unknown as { connection: { stream: { destroy(error?: Error): void } } }).connection
  stream.destroy(new Error('the connection to Postgres was silent'))
}
