// What this machine's engine says of itself: its models, its load, its memory.
import { z } from 'zod'
import type { Machine } from '../../../contract/machine.ts'
import type { EngineChoice } from '../../../lib/engine-choice.ts'

/** The engine of `createEngine`. */
export interface ReadableEngine {
  pid(): number | undefined
  /** Why it cannot answer. */
  problem(): Promise<string | undefined>
  /** The body of a GET; undefined if none runs or it does not answer in time. */
  read(path: string): Promise<string | undefined>
  /** What computes the answers of text models. */
  choice: EngineChoice
}

const Models = z.object({
  data: z.array(
    z.object({
      id: z.string(),
      parent: z.string().nullable(),
      bytes: z.number(),
      server: z.enum(['engine', 'vllm']),
      server_problem: z.string().nullable(),
      asleep_for: z.string().nullish(),
    }),
  ),
})
/** Time between two looks for a rate. */
const look_ms = { least: 1000, most: 60_000 }

/** The names of those of these models that are tuned. */
export type ModelNames = (ids: string[]) => Promise<ReadonlyMap<string, string>>

export function createEngineState(
  engine: ReadableEngine,
  namesOf: ModelNames,
  now: () => number,
): () => Promise<Machine['engine']> {
  let last: { pid: number; at: number; tokens: number; rate: number | null } | undefined

  /** Generated tokens per second since the last look. */
  function rateOf(pid: number, tokens: number): number | null {
    const at = now()
    if (!last || last.pid !== pid || at - last.at > look_ms.most) {
      last = { pid, at, tokens, rate: null }
      return null
    }
    const elapsed = at - last.at
    if (elapsed >= look_ms.least)
      last = { pid, at, tokens, rate: Number(((1000 * (tokens - last.tokens)) / elapsed).toFixed(1)) }
    return last.rate
  }

  return async () => {
    const pid = engine.pid()
    const [problem, list, metrics] = await Promise.all([
      engine.problem(),
      engine.read('/v1/models'),
      engine.read('/metrics'),
    ])
    const value = (name: string) => {
      const value = new RegExp(`^tunery_engine_${name} (.+)$`, 'm').exec(metrics ?? '')?.[1]
      return value === undefined ? undefined : Number(value)
    }
    const models = list === undefined ? [] : (Models.safeParse(JSON.parse(list)).data?.data ?? [])
    const tokens = value('generation_tokens_total')
    const names = await namesOf(models.map(({ id }) => id))
    return {
      status: problem !== undefined ? 'failing' : pid === undefined ? 'stopped' : 'running',
      problem: problem ?? null,
      pid: pid ?? null,
      memory_bytes: value('process_resident_memory_bytes') ?? null,
      context_bytes: value('kv_cache_bytes') ?? null,
      models: models.map(({ id, parent, asleep_for = null, ...model }) => ({
        id,
        name: names.get(id) ?? null,
        base: parent,
        asleep_for,
        ...model,
      })),
      chosen: engine.choice.vllm === null ? 'engine' : 'vllm',
      chosen_why: engine.choice.why,
      running: value('sequences_running') ?? 0,
      waiting: value('sequences_waiting') ?? 0,
      tokens_per_second: pid === undefined || tokens === undefined ? null : rateOf(pid, tokens),
    }
  }
}
