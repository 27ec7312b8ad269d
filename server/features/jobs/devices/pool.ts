// Which training holds which device of this machine. The record is in memory alone: trainers end with the process that
// has it, so after a restart nobody holds any.
import type { Device, DeviceList } from './list.ts'
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
  /** What each has free for it; null: not known. */
  memory_mb: number | null
  /** Gives the devices back. Only the first call counts. */
  release(): void
}

interface Request {
  job_id: string
  account_id: string
  need: Need
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
  private taking: Promise<unknown> = Promise.resolve()

  constructor(options: Options) {
    this.options = options
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
  take(request: Request): Promise<Place | { waits: string } | { refused: string }> {
    const taken = this.taking.then(() => this.takeNow(request))
    this.taking = taken.catch(() => {})
    return taken
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

  async list(): Promise<DeviceState[]> {
    const { devices } = await this.options.read()
    return devices.map((device) => ({ ...device, job_id: this.holders.get(device.name)?.job_id ?? null }))
  }

  private async takeNow(request: Request): Promise<Place | { waits: string } | { refused: string }> {
    const { job_id, account_id, need } = request
    const { now = Date.now, processes } = this.options
    const { devices, missing } = await this.options.read()
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
    if (roomy.length < plan.devices) return this.wait(request, tooFull(plan, unheld))
    this.waiting.delete(job_id)
    this.refused.delete(job_id)
    // The smallest that will do, so that larger jobs find room; among these the one that others use least.
    const order = (device: Device) => device.memory_mb ?? Number.POSITIVE_INFINITY
    return this.hold(
      request,
      plan,
      roomy.toSorted((a, b) => order(a) - order(b) || freeOf(b) - freeOf(a)).slice(0, plan.devices),
    )
  }

  private hold(request: Request, plan: Plan, devices: Device[]): Place {
    for (const { name } of devices) this.holders.set(name, request)
    let released = false
    const onCores = devices.every(({ on }) => on === 'cpu')
    return {
      devices: devices.flatMap(({ name, visible }) => (visible === undefined ? [] : [name])),
      env: envOf(devices),
      processes: onCores && !plan.sharded ? this.options.processes : devices.length,
      sharded: plan.sharded,
      memory_mb: finite(Math.min(...devices.map(freeOf))),
      release: () => {
        if (released) return
        released = true
        for (const { name } of devices) this.holders.delete(name)
        this.options.onReleased([...this.refused.keys()])
        this.refused.clear()
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
const fits = ({ needed_mb }: Plan, free_mb: number | null) =>
  needed_mb === null || free_mb === null || needed_mb <= free_mb

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
