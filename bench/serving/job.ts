// What a measurement is asked for and what it found, and how the process that makes the load is run.
import { spawn } from 'node:child_process'
import path from 'node:path'

export interface Job {
  /** Origin that is asked, or the unix socket. */
  url?: string
  socket?: string
  path: string
  headers: Record<string, string>
  clients: number
  /** Whether connections are used again. */
  kept: boolean
  /** Sent in this order, each once; over and over where `seconds` says for how long. */
  bodies: object[]
  seconds?: number
}
export interface RequestTiming {
  index: number
  /** Milliseconds since the measurement began; `first_ms` is the first piece of text. */
  sent_ms: number
  first_ms: number
  ended_ms: number
  /** Of every later piece. */
  arrivals_ms: number[]
  tail: string
  tokens: number
  error?: string
}
export interface Timing {
  /** Of what was asked. */
  name: string
  wall_ms: number
  requests: RequestTiming[]
}

/** Something that can be asked: this service, a peer, a mock. */
export interface Target {
  name: string
  url?: string
  socket?: string
  path: string
  headers: Record<string, string>
  model: string
  /**
   * Whether connections are used again. llama-server breaks those on which it has streamed, so beside it both sides get
   * a new one each time.
   */
  kept?: boolean
  /** What every body of this target has beside those of the others. */
  extra: object
}

export async function measure(target: Target, clients: number, bodies: object[], seconds?: number): Promise<Timing> {
  const { url, socket, headers } = target
  const sent = bodies.map((body) => ({ model: target.model, ...target.extra, ...body }))
  const job: Job = {
    url,
    socket,
    path: target.path,
    headers,
    clients,
    kept: target.kept ?? false,
    bodies: sent,
    seconds,
  }
  const child = spawn(process.execPath, [path.join(import.meta.dirname, 'load.ts')], {
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  child.stdin.end(JSON.stringify(job))
  const [out, err, status] = await Promise.all([
    new Response(child.stdout as never).text(),
    new Response(child.stderr as never).text(),
    new Promise<number | null>((resolve) => child.on('close', resolve)),
  ])
  if (status !== 0) throw new Error(`${target.name}: ${err.trim()}`)
  return { ...(JSON.parse(out) as Omit<Timing, 'name'>), name: target.name }
}

/** Output tokens a second over a whole measurement; throws where a request did not bring as many as it had to. */
export function tokensPerSecond({ name, wall_ms, requests }: Timing, each?: number): number {
  const short = each === undefined ? undefined : requests.find(({ tokens }) => tokens !== each)
  if (short)
    throw new Error(
      `${name}: request ${short.index} brought ${short.tokens} tokens, not ${each}: the sides cannot be compared`,
    )
  return requests.reduce((sum, { tokens }) => sum + tokens, 0) / (wall_ms / 1000)
}

export const firstTokens = ({ requests }: Timing) => requests.map(({ sent_ms, first_ms }) => first_ms - sent_ms)
export const durations = ({ requests }: Timing) => requests.map(({ sent_ms, ended_ms }) => ended_ms - sent_ms)

/** The value that this share of the values does not exceed. */
export function percentile(values: number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]!
}
export function median(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2
}
