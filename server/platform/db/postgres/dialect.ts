// Kysely dialect for Postgres, with the guarantee that the code was written for on SQLite: one write at a time, so that
// a transaction which reads and then writes is right as it stands (docs/decisions/023-postgres-in-turn.md).
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type CompiledQuery,
  type DataTypeNode,
  type Driver,
  PostgresDialect,
  PostgresQueryCompiler,
  type QueryResult,
  SelectQueryNode,
} from 'kysely'
import pg from 'pg'
import {
  createConnection,
  databaseAway,
  isList,
  list_ms,
  listTooSlow,
  type Connection as SharedConnection,
} from '../dialect.ts'
import { createTurns, groupSyncs } from '../turns.ts'
import { destroy, endWithin, watchSilence } from './silence.ts'

/** Connections of one process: one writes, the others read. */
const maxConnections = 6
const maxLists = 4
const connect_ms = 5000
/** Postgres ends a statement that takes longer, also one that waits for its turn. */
const statement_ms = 30_000

/** How long a sync waits for those whose turn is next: a transaction takes longer than the sync of a fast disk. */
const gather_ms = 10

/** Postgres' code for a statement that took too long. */
const queryCanceled = '57014'

/** The advisory lock of the writer, in every process of an installation. */
const writeLock = 7_202_611
const begin = `begin; select pg_advisory_xact_lock(${writeLock})`

/** Sums and counts are numbers here, as on SQLite; none is near 2^53. */
const numeric = new Set<number>([pg.types.builtins.INT8, pg.types.builtins.NUMERIC])
const getTypeParser = ((oid: number, format: 'text') =>
  numeric.has(oid) ? Number : pg.types.getTypeParser(oid, format)) as typeof pg.types.getTypeParser

/** Texts are ordered by their bytes, as on SQLite, whatever the locale of the database. */
class ByteOrderCompiler extends PostgresQueryCompiler {
  protected override visitDataType(node: DataTypeNode): void {
    super.visitDataType(node)
    if (node.dataType === 'text') this.append(' collate "C"')
  }
}

/** The open transaction: the connection that it runs on, and the function that ends its turn. */
interface Transaction {
  client: pg.PoolClient
  end: () => void
}
type Connection = SharedConnection<Transaction>

export class InTurnPostgresDialect extends PostgresDialect {
  readonly #url: string
  readonly #list_ms: number

  /** `url`: `postgres://user:password@host/database`, with the options of libpq. */
  constructor(url: string, listLimit_ms = list_ms) {
    super({ pool: () => Promise.reject(new Error('the driver makes the pool')) })
    this.#url = url
    this.#list_ms = listLimit_ms
  }

  override createDriver(): Driver {
    return new InTurnDriver(this.#url, this.#list_ms)
  }

  override createQueryCompiler() {
    return new ByteOrderCompiler()
  }
}

class InTurnDriver implements Driver {
  private readonly listLimit_ms: number
  private readonly watch: ReturnType<typeof watchSilence>
  private readonly pool: pg.Pool
  /** Lists have few connections and a deadline of their own: any number of slow ones leaves the other reads theirs. */
  private readonly lists: pg.Pool
  private readonly idle = new Set<pg.PoolClient>()
  /** Connections whose server was away at their last statement. */
  private readonly lost = new WeakSet<pg.PoolClient>()
  private readonly turns = createTurns()
  /** An empty record in the log, whose commit syncs all before it. Several commits share it. */
  private readonly synced: () => Promise<void>

  constructor(connectionString: string, listLimit_ms: number) {
    this.listLimit_ms = listLimit_ms
    this.watch = watchSilence({ connectionString, application_name: 'tunery' }, () => {
      for (const client of this.idle) destroy(client)
    })
    const settings: pg.PoolConfig = {
      connectionString,
      connectionTimeoutMillis: connect_ms,
      application_name: 'tunery',
      types: { getTypeParser },
      keepAlive: true,
      onConnect: this.watch.adopt,
    }
    this.pool = new pg.Pool({ ...settings, max: maxConnections, statement_timeout: statement_ms })
    this.lists = new pg.Pool({ ...settings, max: maxLists, statement_timeout: listLimit_ms })
    // A lost connection: its query fails by itself, and the next one opens another.
    for (const pool of [this.pool, this.lists]) {
      pool.on('error', () => {})
      pool.on('connect', (client) => client.on('error', () => {}))
      pool.on('acquire', (client) => this.idle.delete(client))
      pool.on('release', (_error, client) => this.idle.add(client))
      pool.on('remove', (client) => this.idle.delete(client))
    }
    this.synced = groupSyncs(async () => {
      for (let waited = 0; this.turns.isAwaited() && waited < gather_ms; waited++) await sleep(1)
      await this.askOnce(this.pool, "select pg_logical_emit_message(true, 'tunery', '')")
    })
  }

  async init() {}

  async acquireConnection() {
    return createConnection<Transaction>((connection, query) => this.execute(connection, query))
  }

  async beginTransaction(connection: Connection) {
    connection.transaction = await this.takeTurn()
  }

  async commitTransaction(connection: Connection) {
    const { client, end } = connection.transaction!
    const { command, durable } = await this.commit(client).catch(explain)
    connection.transaction = undefined
    end()
    await durable().catch(explain)
    if (command === 'ROLLBACK') throw new Error('the transaction was rolled back, as a statement in it had failed')
  }

  async rollbackTransaction(connection: Connection) {
    // None is open if its commit has ended it.
    if (!connection.transaction) return
    const { client, end } = connection.transaction
    connection.transaction = undefined
    // Fails only if the connection is lost, and the transaction with it. The caller should see the earlier error.
    await this.ask(client, 'rollback').catch(() => {})
    end()
  }

  async releaseConnection() {}

  async destroy() {
    await this.turns.take()
    await Promise.all([endWithin(this.pool, this.idle), endWithin(this.lists, this.idle)])
    this.watch.close()
  }

  private async ask(client: pg.PoolClient, sql: string, parameters?: readonly unknown[]): Promise<pg.QueryResult> {
    try {
      return await this.watch.ask(client, () => client.query(sql, parameters && [...parameters]))
    } catch (error) {
      if (isAway(error as Error)) this.lost.add(client)
      throw error
    }
  }

  /** Returns a connection to its pool, which ends one that is lost. */
  private giveBack(client: pg.PoolClient) {
    return client.release(this.lost.has(client))
  }

  private async askOnce(from: pg.Pool, sql: string, parameters?: readonly unknown[]): Promise<pg.QueryResult> {
    const client = await from.connect()
    return await this.ask(client, sql, parameters).finally(() => this.giveBack(client))
  }

  /** Commits. While others wait for their turn the sync comes after it. Returns what to await then. */
  private async commit(client: pg.PoolClient): Promise<{ command: string; durable: () => Promise<void> }> {
    if (!this.turns.isAwaited()) return { command: (await this.ask(client, 'commit')).command, durable: async () => {} }
    const results = (await this.ask(
      client,
      'set local synchronous_commit = off; commit',
    )) as unknown as pg.QueryResult[]
    return { command: results.at(-1)!.command, durable: this.synced }
  }

  /** Waits for its turn in this process and takes a connection only then: reads must find one meanwhile. */
  private async takeTurn(): Promise<Transaction> {
    const release = await this.turns.take()
    let client: pg.PoolClient | undefined
    try {
      client = await this.pool.connect()
      await this.ask(client, begin)
    } catch (error) {
      // It may have begun, and must not be used again.
      client?.release(true)
      release()
      return explain(error as Error)
    }
    const end = () => {
      this.giveBack(client)
      release()
    }
    return { client, end }
  }

  private async execute({ transaction }: Connection, { sql, parameters, query }: CompiledQuery) {
    if (transaction) return toResult(await this.ask(transaction.client, sql, parameters).catch(explain))
    if (isList(query))
      return toResult(
        await this.askOnce(this.lists, sql, parameters).catch((error) => {
          if (error.code === queryCanceled) throw listTooSlow(this.listLimit_ms)
          return explain(error)
        }),
      )
    if (SelectQueryNode.is(query) || /^\s*select\b|\bskip locked\b/i.test(sql))
      return toResult(await this.askOnce(this.pool, sql, parameters).catch(explain))
    // A single write takes its turn too: it must not change what an open transaction has read.
    const { client, end } = await this.takeTurn()
    let result: QueryResult<unknown>
    let committed: Awaited<ReturnType<InTurnDriver['commit']>>
    try {
      result = toResult(await this.ask(client, sql, parameters))
      committed = await this.commit(client)
    } catch (error) {
      await this.ask(client, 'rollback').catch(() => {})
      return explain(error as Error)
    } finally {
      end()
    }
    await committed.durable().catch(explain)
    return result
  }
}

/**
 * Also the errors of a server that has become a standby or is being recovered (25006, 55000): after a failover the
 * address leads to another, and connections to the old one must not stay.
 */
const awayCodes = /^(08|57P0|53300|25006|55000|E(CONN|PIPE|HOST|NET|AI_|TIMEDOUT))|^ENOTFOUND$/

const isAway = ({ code, message }: Error & { code?: string }): boolean =>
  code === undefined ? /connect|terminat/i.test(message) : awayCodes.test(code)

/** Throws the error, under one code if the database is away. */
function explain(error: Error & { code?: string }): never {
  throw isAway(error)
    ? Object.assign(new Error(`the database is away: ${error.message}`), { code: databaseAway })
    : error
}

const toResult = ({ command, rowCount, rows }: pg.QueryResult): QueryResult<unknown> =>
  ['INSERT', 'UPDATE', 'DELETE', 'MERGE'].includes(command)
    ? { rows, numAffectedRows: BigInt(rowCount ?? 0) }
    : { rows }
