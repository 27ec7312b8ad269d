// Trainings that claim the memory of devices: what vLLM serves there sleeps meanwhile.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { z } from 'zod'
import { readAll, send } from '../http-client/client.ts'
import { type EngineClient, engineError } from './client.ts'
import type { EngineInstance, EngineProcess } from './process.ts'

/** How long answers in progress may go on, and how long a request waits for a model that sleeps. */
const times = { grace_ms: 60_000, wait_ms: 60_000 }
const retry_ms = 1000

const Starting = z.object({
  starting: z.array(z.object({ devices: z.array(z.string()).nullable(), device_bytes: z.number() })),
})

interface Claim {
  job: string
  devices: string[]
  end: boolean
}

const Served = z.object({
  data: z.array(
    z.object({
      id: z.string(),
      asleep_for: z.string().nullish(),
      devices: z.array(z.string()).nullish(),
      device_bytes: z.number().nullish(),
      parent: z.string().nullable(),
    }),
  ),
})

/** A base that vLLM serves and that is awake. `devices`: where; null: not known. `bytes`: on each. */
export interface AwakeBase {
  id: string
  devices: string[] | null
  bytes: number
}

/**
 * The engine ends with this process, and gets all claims whenever it starts. So nothing sleeps without a training, and
 * no training loses its memory to an engine that was started again.
 */
export class ServingSleep {
  private readonly claims = new Map<string, Claim>()
  private readonly holds = new Map<string, { devices: string[]; bytes: number }>()
  private version = 0
  private readonly engine: Pick<EngineProcess, 'current'>
  private readonly client: Pick<EngineClient, 'read'>
  private readonly log: Logger

  constructor(engine: Pick<EngineProcess, 'current'>, client: Pick<EngineClient, 'read'>, log: Logger) {
    this.engine = engine
    this.client = client
    this.log = log
  }

  /** The bases that vLLM serves and that are awake. */
  async awake(): Promise<AwakeBase[]> {
    const list = await this.client.read('/v1/models')
    const served = list === undefined ? undefined : Served.safeParse(JSON.parse(list)).data
    return (served?.data ?? [])
      .filter(({ parent, asleep_for, device_bytes }) => parent === null && !asleep_for && device_bytes)
      .map(({ id, devices, device_bytes }) => ({ id, devices: devices ?? null, bytes: device_bytes! }))
  }

  /** The bases that vLLM is being started for: `bytes` is what each will take. */
  async starting(): Promise<Omit<AwakeBase, 'id'>[]> {
    const list = await this.client.read('/internal/claim_devices')
    const bases = list === undefined ? undefined : Starting.safeParse(JSON.parse(list)).data?.starting
    return (bases ?? []).map(({ devices, device_bytes }) => ({ devices, bytes: device_bytes }))
  }

  /** A training may take so much of each of these devices: a vLLM that starts takes what is left. */
  hold(job: string, devices: string[], bytes: number): void {
    this.holds.set(job, { devices, bytes })
    void this.tellUntilHeard(++this.version)
  }

  /**
   * Puts to sleep what is served on these devices, for a job. Answers in progress end first, for a minute at most.
   * `end`: vLLM gives back all of its memory. Throws if the engine does not do it.
   */
  async claim(job: string, devices: string[], end: boolean, signal: AbortSignal): Promise<void> {
    this.claims.set(job, { job, devices, end })
    const instance = this.engine.current()
    // One that starts gets the claims before it serves anything.
    if (instance) await this.tell(instance, ++this.version, signal)
    else this.version++
    this.log.info({ job, devices, end }, 'what vLLM serves sleeps for a training')
  }

  /** The job's training has ended: what slept for it wakes. */
  release(job: string): void {
    const slept = this.claims.delete(job)
    if (!this.holds.delete(job) && !slept) return
    if (slept) this.log.info({ job }, 'what slept for a training wakes')
    void this.tellUntilHeard(++this.version)
  }

  /** For an engine that has just started. */
  async begin(instance: EngineInstance): Promise<void> {
    if (this.claims.size + this.holds.size > 0) await this.tell(instance, ++this.version)
  }

  private async tellUntilHeard(version: number): Promise<void> {
    for (;;) {
      const instance = this.engine.current()
      if (!instance || version < this.version) return
      try {
        return await this.tell(instance, version)
      } catch (error) {
        if (!instance.ended.aborted) this.log.warn({ err: error }, 'the engine was not told what trainings hold')
        await sleep(retry_ms, undefined, { ref: false })
      }
    }
  }

  private async tell(instance: EngineInstance, version: number, signal?: AbortSignal): Promise<void> {
    const payload = JSON.stringify({
      version,
      claims: [...this.claims.values()],
      holds: [...this.holds.values()],
      ...times,
    })
    const inTime = AbortSignal.any([instance.ended, ...(signal ? [signal] : [])])
    const response = await send(instance.pool, { method: 'POST', path: '/internal/claim_devices', payload }, inTime)
    const text = (await readAll(response)).toString('utf8')
    if (response.status !== 200) throw engineError(response.status, text)
  }
}
