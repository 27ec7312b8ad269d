// Which training holds which device of this machine. The record is in memory alone: trainers end with the process that
// has it, so after a restart nobody holds any.
import type { Device, DeviceList } from './list.ts'
import { fits, Pausing, type Serving } from './pausing.ts'
import { gigabytes, type Need, type Plan, planFor } from './plan.ts'

/** A training's hold on its devices. */
export interface Place {
  /** Names of the devices; none where the cores are the only one. */
  devices: string[]
  /** Added to the trainer's environment. */
  env: Record<string, string>
  /** One on each device, but on the cores, which they share. */
  processes: number
  /** Whether they share the weights. */
  sharded: boolean
  /** What it may take of each; null: not known. */
  memory_mb: number | null
  /** Whether what is served on them sleeps until they are given back. */
  pauses_serving: boolean
  /** Gives the devices back. Only the first call counts. */
  release(): void
}

interface Request {
  job_id: string
  account_id: string
  need: Need
  /** Memory of a device that it leaves to serving where there is more than it needs. */
  left_mb: number
  /** What is served must answer meanwhile: the job samples from it. */
  needs_serving?: boolean
  /** Aborts when the service stops. */
  signal: AbortSignal
}

/** A job that waits for several devices at once. */
interface Waiting {
  account_id: string
  devices: number
  asked_at: number
}

export interface DeviceState extends Device {
  /** The job that holds it. */
  job_id: string | null
}

/** A job that does not ask for its devices again for this long no longer wants them. */
const forgotten_ms = 90_000

interface Options {
  read(): Promise<DeviceList>
  /** TUNERY_TRAINER_PROCESSES. */
  processes: number
  /** What is served on the devices; undefined: nothing that can sleep. */
  serving?: Serving | undefined
  /** TUNERY_TRAINING_MAY_PAUSE_SERVING. */
  mayPause?: boolean
  /** The devices of these waiting jobs may be free now. */
  onReleased(job_ids: string[]): void
  now?: () => number
}

export class DevicePool {
  private readonly options: Options
  private readonly holders = new Map<string, Request>()
  /** Jobs that found no room, first come first. */
  private readonly refused = new Map<string, number>()
  private readonly waiting = new Map<string, Waiting>()
  private readonly pausing: Pausing | undefined
  private taking: Promise<unknown> = Promise.resolve()

  constructor(options: Options) {
    this.options = options
    const { serving, read, now = Date.now } = options
    this.pausing = serving && new Pausing({ serving, read, now })
  }

  /** How many devices have a training. */
  get held(): number {
    return this.holders.size
  }

  /** How many trainings the devices have room for, if each takes as few as it may. */
  atOnce(devices: readonly Device[]): number {
    if (devices.every(({ on }) => on === 'cpu')) return Math.max(1, devices.length)
    return Math.max(1, Math.floor(devices.length / this.options.processes))
  }

  /** On how many devices a training would run; or why it fits on none of them, and not on all together. */
  async plan(need: Need): Promise<Plan | { refused: string }> {
    const { devices } = await this.options.read()
    return planFor(need, devices, this.options.processes)
  }

  /** Takes devices for an attempt at a job, or says why it waits. One request is answered after the other. */
  async take(request: Request): Promise<Place | { waits: string } | { refused: string }> {
    const taken = this.taking.then(() => this.takeNow(request))
    this.taking = taken.catch(() => {})
    const found = await taken
    // Others need not wait until the last answers have ended.
    return 'plan' in found ? this.pauseServing(request, found) : found
  }

  /** Whether a job with this plan would put serving to sleep, if it began now. */
  async wouldPause(plan: Plan): Promise<boolean> {
    if (!this.pausing || !this.options.mayPause) return false
    const { devices } = await this.options.read()
    const roomy = devices.filter(({ free_mb }) => fits(plan, free_mb)).length
    return roomy < plan.devices && roomy + (await this.pausing.candidates(plan, devices)).length >= plan.devices
  }

  /** The environment of a trial run: on a device that nobody holds, if there is one. */
  async forTrial(): Promise<{ env: Record<string, string>; free_mb: number | null }> {
    const { devices } = await this.options.read()
    const [device] = devices.toSorted(
      (a, b) => Number(this.holders.has(a.name)) - Number(this.holders.has(b.name)) || freeOf(b) - freeOf(a),
    )
    return { env: device ? envOf([device]) : {}, free_mb: device?.free_mb ?? null }
  }

  /** Whether a job of another account waits for several devices, of which a job of this one holds some. */
  isWanted(account_id: string): boolean {
    this.forget()
    return [...this.waiting.values()].some((job) => job.account_id !== account_id)
  }

  /** Whether trainings found no room and still want it. */
  hasWaiting(): boolean {
    this.forget()
    return this.refused.size > 0 || this.waiting.size > 0
  }

  async list(): Promise<DeviceState[]> {
    const { devices } = await this.options.read()
    return devices.map((device) => ({ ...device, job_id: this.holders.get(device.name)?.job_id ?? null }))
  }

  private async takeNow(
    request: Request,
  ): Promise<Place | { waits: string } | { refused: string } | { plan: Plan; devices: Device[] }> {
    const { job_id, account_id, need } = request
    const { now = Date.now, processes } = this.options
    const list = await this.options.read()
    const { devices, missing } = (await this.pausing?.withoutStarting(list)) ?? list
    if (devices.length === 0) return this.wait(request, `The job waits: this machine has no GPU ${missing.join(', ')}.`)
    const plan = planFor(need, devices, processes)
    if ('refused' in plan) {
      this.waiting.delete(job_id)
      return plan
    }
    if (plan.devices > 1) this.waiting.set(job_id, { account_id, devices: plan.devices, asked_at: now() })
    else this.waiting.delete(job_id)
    this.forget()
    const unheld = devices.filter(({ name }) => !this.holders.has(name))
    const roomy = unheld.filter(({ free_mb }) => fits(plan, free_mb))
    const earlier = this.reservedBefore(job_id)
    if (unheld.length - earlier < plan.devices) return this.wait(request, allTaken(plan, devices, unheld, earlier))
    const candidates = roomy.length < plan.devices ? await this.pausing?.candidates(plan, unheld) : undefined
    const all = [...roomy, ...(candidates ?? []).filter((device) => !roomy.includes(device))]
    if (all.length < plan.devices) return this.wait(request, tooFull(plan, unheld))
    const refusal = candidates && this.whyNotPause(request)
    if (refusal) return this.wait(request, `${tooFull(plan, unheld)} ${refusal}`)
    this.waiting.delete(job_id)
    this.refused.delete(job_id)
    // The smallest that will do, so that larger jobs find room; among these the one that others use least.
    const order = (device: Device) => device.memory_mb ?? Number.POSITIVE_INFINITY
    const chosen = all
      .toSorted((a, b) => order(a) - order(b) || freeOf(b) - freeOf(a))
      .toSorted((a, b) => Number(!roomy.includes(a)) - Number(!roomy.includes(b)))
      .slice(0, plan.devices)
    for (const { name } of chosen) this.holders.set(name, request)
    return candidates ? { plan, devices: chosen } : this.placeOf(request, plan, chosen, false)
  }

  /** Why serving is not put to sleep for a job that would then have room; undefined: it may be. */
  private whyNotPause({ job_id, needs_serving }: Request): string | undefined {
    if (needs_serving) return 'The job samples its answers from what is served there, which must stay awake.'
    return this.options.mayPause
      ? this.pausing!.refusal(job_id)
      : 'The operator can let trainings put it to sleep (TUNERY_TRAINING_MAY_PAUSE_SERVING).'
  }

  private async pauseServing(
    request: Request,
    { plan, devices }: { plan: Plan; devices: Device[] },
  ): Promise<Place | { waits: string }> {
    const roomy = await this.pausing!.pause(request.job_id, plan, devices, request.signal)
    if (typeof roomy !== 'string') return this.placeOf(request, plan, roomy, true)
    this.free(devices)
    return this.wait(request, roomy)
  }

  private free(devices: readonly Device[]): void {
    for (const { name } of devices) this.holders.delete(name)
    this.options.onReleased([...this.refused.keys()])
    this.refused.clear()
  }

  private placeOf(request: Request, plan: Plan, devices: Device[], pauses_serving: boolean): Place {
    let released = false
    const free_mb = Math.min(...devices.map(freeOf))
    // What sleeps needs nothing until the training has ended.
    const left_mb = pauses_serving ? 0 : request.left_mb
    const onCores = devices.every(({ on }) => on === 'cpu')
    const memory_mb = finite(Math.max(free_mb - left_mb, Math.min(free_mb, plan.needed_mb ?? free_mb)))
    this.pausing?.hold(request.job_id, devices, memory_mb)
    return {
      devices: devices.flatMap(({ name, visible }) => (visible === undefined ? [] : [name])),
      env: envOf(devices),
      processes: onCores && !plan.sharded ? this.options.processes : devices.length,
      sharded: plan.sharded,
      memory_mb,
      pauses_serving,
      release: () => {
        if (released) return
        released = true
        if (pauses_serving) this.pausing!.resume(request.job_id)
        else this.pausing?.release(request.job_id)
        this.free(devices)
      },
    }
  }

  private wait({ job_id }: Request, waits: string): { waits: string } {
    const { now = Date.now } = this.options
    this.refused.set(job_id, now())
    return { waits }
  }

  /** Devices that are kept for jobs that wait for several and came before this one. */
  private reservedBefore(job_id: string): number {
    let sum = 0
    for (const [id, { devices }] of this.waiting) {
      if (id === job_id) return sum
      sum += devices
    }
    return sum
  }

  private forget(): void {
    const { now = Date.now } = this.options
    for (const [id, { asked_at }] of this.waiting) if (now() - asked_at > forgotten_ms) this.waiting.delete(id)
    for (const [id, asked_at] of this.refused) if (now() - asked_at > forgotten_ms) this.refused.delete(id)
  }
}

const freeOf = ({ free_mb }: Device) => free_mb ?? Number.POSITIVE_INFINITY
const finite = (mb: number) => (mb === Number.POSITIVE_INFINITY ? null : mb)

function envOf(devices: readonly Device[]): Record<string, string> {
  const visible = devices.flatMap((device) => (device.visible === undefined ? [] : [device.visible]))
  if (visible.length === 0) return {}
  return { CUDA_VISIBLE_DEVICES: visible.filter(Boolean).join(',') }
}

function allTaken(plan: Plan, devices: readonly Device[], unheld: readonly Device[], reserved: number): string {
  if (plan.devices > 1)
    return (
      `The job waits: it needs ${plan.devices} devices at once, and ${unheld.length} of ${devices.length} have no ` +
      'training.'
    )
  if (unheld.length > 0 && reserved > 0)
    return 'The job waits: the free devices are kept for a job that needs several at once and came before.'
  const others = devices.length === 1 ? `another job trains on ${devices[0]!.name}` : 'other jobs train on all devices'
  return `The job waits: ${others}.`
}

function tooFull({ needed_mb, devices }: Plan, unheld: readonly Device[]): string {
  const most = Math.max(...unheld.map(freeOf))
  const roomiest = unheld.find((device) => freeOf(device) === most)!
  const where = devices > 1 ? `of each of ${devices} devices` : 'of memory'
  return (
    `The job waits: it takes about ${gigabytes(needed_mb!)} ${where}, and of the devices without a training ` +
    `${roomiest.name} has most free, ${gigabytes(most)}. What is served there takes the rest.`
  )
}
