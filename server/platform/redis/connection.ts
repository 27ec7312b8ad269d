// The connection to Redis that the processes of an installation share. While Redis is away every call fails at once:
// one call may wait for it, not each.
import { createHash, randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ConfigError } from '../../config.ts'

/** Redis did not answer in time, or refused. Decide with what this process knows. */
export class RedisAway extends Error {}

/** A Lua script. It runs as one step on the server, and costs one round trip. */
export interface Script {
  text: string
  sha: string
}

const scripts: Script[] = []

export function script(text: string): Script {
  const hashed = { text, sha: createHash('sha1').update(text).digest('hex') }
  scripts.push(hashed)
  return hashed
}

type Reply = (string | number | null)[]

export interface Beat {
  /** Redis was away until now, and is used again when all listeners are done. */
  returned: boolean
  /** Redis has lost its data since it was last heard: all that it should know has to be sent again. */
  lost: boolean
  /** As `Redis.run`, also before Redis is used again. */
  run: Redis['run']
}

export interface Redis {
  /** The name of this process, new at each start. */
  readonly process: string
  /** How many processes were live when Redis was last heard, this one included. */
  processes(): number
  isAway(): boolean
  /** Calls `listener` now, and each time when Redis goes away or is back. */
  onAway(listener: (away: boolean) => void): void
  /**
   * Runs a script. All `keys` must begin with the same `{tag}`: then they are on the same node of a cluster. Throws
   * RedisAway, at once while Redis is away, else within `answer_ms`.
   */
  run(script: Script, keys: readonly string[], args: readonly (string | number)[]): Promise<Reply>
  /** Calls `listener` each second while Redis answers. One that rejects keeps Redis away. */
  onBeat(listener: (beat: Beat) => Promise<void>): void
  close(): Promise<void>
}

/** The longest that a request waits for Redis. */
const answer_ms = 250
const beat_ms = 1000
/** A process is counted as live for this long after it was last heard. */
const live_ms = 5000
/** Without a word from Redis for this long, beats included, the connection is made again. */
const silence_ms = 5000
const start_ms = 1000
const reconnect_ms = 250

/** After a loss of data Redis is used when every live process has told it again what it should know. */
const retell_ms = 2500
/** Redis' data have a name for as long as they last. */
const epoch_ms = 86_400_000

/**
 * Names this process among the live ones. KEYS: live processes, the name of the data. ARGV: process, ms for which it
 * counts as live, 'stay' or 'leave', a new name in case there is none. Replies how many are live, and the name of the
 * data.
 */
const beatScript = script(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[3] == 'leave' then redis.call('ZREM', KEYS[1], ARGV[1])
else redis.call('ZADD', KEYS[1], now, ARGV[1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 4)
redis.call('SET', KEYS[2], ARGV[4], 'NX')
redis.call('PEXPIRE', KEYS[2], ${epoch_ms})
return {redis.call('ZCARD', KEYS[1]), redis.call('GET', KEYS[2])}`)

/** Replies of a Redis that is there and does not let us in: the setting is wrong. */
const refusal = /^(WRONGPASS|NOAUTH|NOPERM|ERR (invalid DB index|DB index is out of range|AUTH |Client sent AUTH))/i

/** Slots of a cluster are assigned by hashes of keys: one of so many is on another node. */
const probeKeys = 32
const clusterNode =
  'it is a node of a Redis Cluster, which keeps most keys on other nodes, and this service asks one address only. ' +
  'Name a Redis without cluster mode, or a proxy in front of the cluster.'

/** With one tag, as they are on one node of a cluster. */
const beatKeys = ['{processes}', '{processes}:data']

/**
 * Connects to `url` (`redis://` or `rediss://`). Keys begin with the URL's `?prefix=`, or with `prefix`. Throws a
 * ConfigError if Redis refuses the password or the database, or is a node of a cluster. A Redis that is away is waited
 * for in the background; `processes` are taken to be live until it answers.
 */
export async function connectRedis(url: string, prefix: string, log: Logger, processes = 1): Promise<Redis> {
  const address = new URL(url)
  const keyPrefix = address.searchParams.get('prefix') ?? prefix
  address.search = ''
  // Loaded where it is used: installations without Redis start without it.
  const { ClientOfflineError, createClient } = await import('@redis/client')
  const client = createClient({
    url: address.href,
    name: 'tunery',
    // A command that waits for a connection would be counted long after its request.
    disableOfflineQueue: true,
    // Each would cost a timer of the client's own; `within` bounds the wait.
    commandOptions: { timeout: 0 },
    maintNotifications: 'disabled',
    socket: {
      connectTimeout: silence_ms,
      socketTimeout: silence_ms,
      reconnectStrategy: reconnect_ms,
      // With Node's 64 kB the client would write a burst of requests in pieces, one in each turn of the event loop.
      ...{ writableHighWaterMark: 4 * 1024 * 1024 },
    },
  })
  const connection = new Connection({
    send: (args) => client.sendCommand(args),
    isOffline: (error) => error instanceof ClientOfflineError,
    // The client's own limit of silence passes only while nothing is written, and each second something is.
    reconnect() {
      if (!client.isReady) return
      client.destroy()
      client.connect().catch(() => {})
    },
    destroy: () => client.destroy(),
    keyPrefix,
    log,
    processes,
  })
  const refused = new Promise<never>((_, reject) => {
    client.on('error', (error: Error) => {
      connection.leave(error)
      if (refusal.test(error.message)) reject(new ConfigError(`TUNERY_REDIS_URL: Redis refuses: ${error.message}`))
    })
  })
  refused.catch(() => {})
  const connected = client.connect()
  connected.catch(() => {})
  try {
    await Promise.race([connected, refused, sleep(start_ms)])
    await connection.start()
  } catch (error) {
    client.destroy()
    throw error
  }
  return connection
}

interface ConnectionOptions {
  send(args: string[]): Promise<unknown>
  /** Whether an error says only that there is no connection. */
  isOffline(error: unknown): boolean
  keyPrefix: string
  log: Logger
  processes: number
  /** Replaces a connection on which nothing arrives. */
  reconnect(): void
  /** Ends the client. */
  destroy(): void
}

class Connection implements Redis {
  readonly process = randomBytes(6).toString('hex')
  private readonly options: ConnectionOptions
  private readonly listeners: ((beat: Beat) => Promise<void>)[] = []
  private readonly watchers: ((away: boolean) => void)[] = []
  private away = true
  private live: number
  private epoch: string | undefined
  private usable_at = 0
  private heard_at = performance.now()
  private reason = 'it has not answered yet'
  private closed = false
  private beating: Promise<void> | undefined
  private timer: NodeJS.Timeout | undefined

  constructor(options: ConnectionOptions) {
    this.options = options
    this.live = options.processes
  }

  /** Asks Redis for the first time, then each second. Throws a ConfigError for a node of a cluster. */
  async start(): Promise<void> {
    await this.beat()
    const { away, reason } = this
    if (away && reason === clusterNode) throw new ConfigError(`TUNERY_REDIS_URL: ${clusterNode}`)
    if (away)
      this.options.log.warn(
        { reason },
        'Redis does not answer: this process counts limits by itself until it does; it asks each second',
      )
    this.timer = setInterval(() => {
      this.beating ??= this.beat().finally(() => {
        this.beating = undefined
      })
    }, beat_ms).unref()
  }

  processes(): number {
    return this.live
  }

  isAway(): boolean {
    return this.away
  }

  onAway(listener: (away: boolean) => void): void {
    this.watchers.push(listener)
    listener(this.away)
  }

  async run(script: Script, keys: readonly string[], args: readonly (string | number)[]): Promise<Reply> {
    if (this.away) throw new RedisAway(this.reason)
    return await this.attempt(script, keys, args)
  }

  onBeat(listener: (beat: Beat) => Promise<void>): void {
    this.listeners.push(listener)
  }

  async close(): Promise<void> {
    if (this.closed) return
    this.closed = true
    clearInterval(this.timer)
    await this.beating
    if (!this.away)
      await this.attempt(beatScript, beatKeys, [this.process, live_ms, 'leave', this.epoch!]).catch(() => {})
    this.away = true
    this.options.destroy()
  }

  /** From now on calls fail, until Redis answers again. */
  leave(error: unknown): void {
    const { message } = error as Error
    // What ended the connection says more than that there is none.
    if (!this.options.isOffline(error)) this.reason = message.startsWith('MOVED ') ? clusterNode : message
    if (this.away) return
    this.setAway(true)
    this.options.log.warn(
      { reason: this.reason, processes: this.live },
      'Redis is away: this process counts limits by itself, within its share, until it is back; it asks again each ' +
        'second',
    )
  }

  private setAway(away: boolean): void {
    this.away = away
    for (const listener of this.watchers) listener(away)
  }

  private send(args: string[]): Promise<unknown> {
    return this.options.send(args).finally(() => {
      this.heard_at = performance.now()
    })
  }

  private async evaluate({ text, sha }: Script, keys: readonly string[], args: readonly (string | number)[]) {
    const { keyPrefix } = this.options
    const rest = [String(keys.length), ...keys.map((key) => `${keyPrefix}:${key}`), ...args.map(String)]
    try {
      return (await this.send(['EVALSHA', sha, ...rest])) as Reply
    } catch (error) {
      if (!(error as Error).message.startsWith('NOSCRIPT')) throw error
      return (await this.send(['EVAL', text, ...rest])) as Reply
    }
  }

  private async attempt(script: Script, keys: readonly string[], args: readonly (string | number)[]): Promise<Reply> {
    try {
      return await within(answer_ms, this.evaluate(script, keys, args))
    } catch (error) {
      this.leave(error)
      throw new RedisAway(this.reason)
    }
  }

  /** Rejects with MOVED on a node of a cluster. */
  private async probe(): Promise<void> {
    const { send, keyPrefix } = this.options
    await Promise.all(Array.from({ length: probeKeys }, (_, index) => send(['GET', `${keyPrefix}:probe ${index}`])))
  }

  private async beat(): Promise<void> {
    const { send, log } = this.options
    try {
      const name = randomBytes(6).toString('hex')
      const [count, data] = await this.attempt(beatScript, beatKeys, [this.process, live_ms, 'stay', name])
      this.live = Math.max(1, Number(count))
      const lost = this.epoch !== undefined && this.epoch !== data
      this.epoch = String(data)
      if (lost) {
        this.usable_at = performance.now() + retell_ms
        this.leave(new Error('it has lost its data'))
      }
      const returned = this.away
      if (returned) await within(answer_ms, this.probe())
      // A script that Redis does not have is sent once more, behind what was to come after it.
      if (returned) await within(answer_ms, Promise.all(scripts.map(({ text }) => send(['SCRIPT', 'LOAD', text]))))
      const run: Redis['run'] = (script, keys, args) => this.attempt(script, keys, args)
      for (const listener of this.listeners) await listener({ returned, lost, run })
      if (!returned || performance.now() < this.usable_at) return
      this.setAway(false)
      log.info({ processes: this.live }, 'Redis answers: limits are shared with the other processes')
    } catch (error) {
      if (!(error instanceof RedisAway)) this.leave(error)
      if (performance.now() - this.heard_at < silence_ms) return
      this.heard_at = performance.now()
      this.options.reconnect()
    }
  }
}

/**
 * Rejects unless `work` settles in time. It waits in several steps, so that a busy thread has written the command and
 * read what has arrived: its own lateness is not that of Redis.
 */
async function within<T>(most_ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    let steps = 4
    const wait = () => {
      if (steps-- > 0) timer = setTimeout(wait, most_ms / 4)
      // Sockets are read between timers and immediates.
      else setImmediate(() => reject(new Error(`no answer within ${most_ms} ms`)))
    }
    wait()
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}
