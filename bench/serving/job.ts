// Input and result of one load measurement, and the process that runs it.
import { spawn } from 'node:child_process'
import os from 'node:os'
import path from 'node:path'

export interface Job {
  /** Origin of the server, or its unix socket. */
  url?: string | undefined
  socket?: string | undefined
  path: string
  headers: Record<string, string>
  clients: number
  /** Whether connections are reused. */
  keepAlive: boolean
  /** Sent in this order, each once; repeated for `seconds` if set. */
  bodies: object[]
  seconds?: number | undefined
}
export interface RequestTiming {
  index: number
  /** Milliseconds since the measurement began; `first_ms`: the first piece of text, null if none came. */
  sent_ms: number
  first_ms: number | null
  ended_ms: number
  /** Times of every later piece. */
  arrivals_ms: number[]
  tail: string
  tokens: number
  error?: string
}
export interface Timing {
  /** Name of the target. */
  name: string
  wall_ms: number
  requests: RequestTiming[]
}

/** A server to measure: this service, a peer or a mock. */
export interface Target {
  name: string
  url?: string | undefined
  socket?: string | undefined
  path: string
  headers: Record<string, string>
  model: string
  /**
   * Whether connections are reused. llama-server closes connections on which it has streamed, so comparisons with it
   * use a new one per request on both sides.
   */
  keepAlive?: boolean
  /** Fields that every body for this target gets. */
  extra: object
}

/** Where the load's process runs: where the scheduler puts it, or on the last core alone, by `taskset`. */
export type Placement = 'free' | 'pinned'

export async function measure(
  target: Target,
  clients: number,
  bodies: object[],
  seconds?: number,
  placement: Placement = 'free',
): Promise<Timing> {
  const { url, socket, headers } = target
  const sent = bodies.map((body) => ({ model: target.model, ...target.extra, ...body }))
  const job: Job = {
    url,
    socket,
    path: target.path,
    headers,
    clients,
    keepAlive: target.keepAlive ?? false,
    bodies: sent,
    seconds,
  }
  const load = [process.execPath, path.join(import.meta.dirname, 'load.ts')] as const
  const [program, ...args] =
    placement === 'pinned' ? (['taskset', '-c', String(os.cpus().length - 1), ...load] as const) : load
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] })
  child.stdin.end(JSON.stringify(job))
  const [out, err, status] = await Promise.all([
    new Response(child.stdout as never).text(),
    new Response(child.stderr as never).text(),
    new Promise<number | null>((resolve, reject) => child.on('close', resolve).on('error', reject)),
  ])
  if (status !== 0) throw new Error(`${target.name}: ${err.trim()}`)
  return { ...(JSON.parse(out) as Omit<Timing, 'name'>), name: target.name }
}

/** Output tokens per second of a whole measurement. Throws if a request did not bring `each` tokens. */
export function tokensPerSecond({ name, wall_ms, requests }: Timing, each?: number): number {
  const incomplete = each === undefined ? undefined : requests.find(({ tokens }) => tokens !== each)
  if (incomplete)
    throw new Error(
      `${name}: request ${incomplete.index} brought ${incomplete.tokens} tokens, not ${each}: ` +
        'the sides cannot be compared',
    )
  return requests.reduce((sum, { tokens }) => sum + tokens, 0) / (wall_ms / 1000)
}

/** Milliseconds to the first piece of text. Throws if a request brought none: use `durations` for such answers. */
export const firstTokens = (timing: Timing) =>
  timing.requests.map((request) => firstText_ms(timing, request) - request.sent_ms)

/** Milliseconds of a further token, for each request with several. Throws if one of them brought no text. */
export const furtherTokens = (timing: Timing) =>
  timing.requests
    .filter(({ tokens }) => tokens > 1)
    .map((request) => (request.ended_ms - firstText_ms(timing, request)) / (request.tokens - 1))

function firstText_ms({ name }: Timing, { index, first_ms }: RequestTiming): number {
  if (first_ms === null)
    throw new Error(`${name}: request ${index} brought no text, so the time of its first token is not known`)
  return first_ms
}

export const durations = ({ requests }: Timing) => requests.map(({ sent_ms, ended_ms }) => ended_ms - sent_ms)

/** The nearest-rank percentile; `share` from 0 to 1. */
export function percentile(values: number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]!
}
export function median(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2
}
