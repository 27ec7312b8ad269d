// How the vLLM of one base falls asleep and wakes.
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { reasonIn } from './connection.ts'
import type { Instance, VllmProcess } from './process.ts'
import { type Claim, Gate, type SleepTimes } from './sleep.ts'

/** How long vLLM may take to put itself to sleep or to wake. */
const call_ms = 120_000
/** How long the exit of a process may take after a refused connection. */
const exitNotice_ms = 5000

interface Options {
  process: VllmProcess
  /** Whether vLLM can sleep by itself: its build for processors cannot. */
  hasSleepMode: boolean
  weight_bytes: number
  log: Logger
}

export class SleepMode {
  /** What requests pass. */
  readonly gate = new Gate()
  /** The training that it sleeps for. */
  claim: Claim | null = null
  private readonly options: Options
  /** `kept`: vLLM itself sleeps, with its weights in the machine's memory. `ended`: its process was ended. */
  private state: 'awake' | 'kept' | 'ended' = 'awake'
  private following: Promise<void> = Promise.resolve()
  /** What is to be done once it is awake. */
  private readonly later: (() => Promise<void>)[] = []

  constructor(options: Options) {
    this.options = options
  }

  /** Sleeps for the claim, or wakes: null. Resolves when it sleeps, or answers. */
  follow(claim: Claim | null, { grace_ms, wait_ms }: SleepTimes): Promise<void> {
    this.claim = claim
    this.gate.wait_ms = wait_ms
    if (claim) this.gate.close()
    this.following = this.following.catch(() => {}).then(() => this.settle(grace_ms))
    return this.following
  }

  /** Runs `work` when it is awake, or not at all if its process has ended by then. */
  whenAwake(work: () => Promise<void>): Promise<void> {
    if (this.gate.isOpen) return work()
    this.later.push(work)
    return Promise.resolve()
  }

  /** One step after the other: by now the claim may be another one, or gone. */
  private async settle(grace_ms: number): Promise<void> {
    if (this.claim && this.state === 'awake') await this.gate.drain(grace_ms)
    if (this.claim && this.state === 'awake') {
      const { job } = this.claim
      this.state = await this.fallAsleep(this.claim)
      this.options.log.info({ job, how: this.state }, 'vLLM sleeps while a training has its memory')
    } else if (this.claim?.end && this.state === 'kept') {
      await this.options.process.pause(true)
      this.state = 'ended'
    }
    if (this.claim) return
    if (this.state !== 'awake') await this.wake()
    for (const work of this.later.splice(0)) await work()
    this.gate.open()
  }

  private async fallAsleep({ end }: Claim): Promise<'kept' | 'ended'> {
    const { process: vllm, hasSleepMode, weight_bytes, log } = this.options
    // A vLLM that dies in its sleep must not be started beside the training.
    await vllm.pause(false)
    const instance = vllm.running()
    if (!end && hasSleepMode && instance && process.availableMemory() > 1.2 * weight_bytes) {
      const problem = await callOf(instance, '/sleep?level=1')
      if (problem === null) return 'kept'
      log.warn({ reason: problem }, 'vLLM does not sleep, so it is ended until the training has ended')
    }
    await vllm.pause(true)
    return 'ended'
  }

  private async wake(): Promise<void> {
    const { process: vllm, log } = this.options
    const instance = this.state === 'kept' ? vllm.running() : undefined
    this.state = 'awake'
    // Starts it if it was ended, or died. Requests wait for that.
    vllm.resume()
    if (!instance) return
    const problem = await callOf(instance, '/wake_up')
    if (problem === null) return
    log.error({ reason: problem }, 'vLLM does not wake: it is killed and restarted')
    vllm.kill(instance)
    await instanceEnded(instance)
  }
}

/** Resolves when the process has ended, or is not noticed to have. */
export const instanceEnded = ({ ended }: Instance) =>
  Promise.race([ended.aborted || once(ended, 'abort'), sleep(exitNotice_ms, undefined, { ref: false })])

/** Calls a route without a body. Resolves with why it failed; null: it did not. */
async function callOf({ connection, ended }: Instance, route: string): Promise<string | null> {
  try {
    const response = await connection.post(route, {}, AbortSignal.any([ended, AbortSignal.timeout(call_ms)]))
    let text = ''
    for await (const part of response.setEncoding('utf8')) text += part
    return response.statusCode === 200 ? null : `status ${response.statusCode}: ${reasonIn(text)}`
  } catch (error) {
    return (error as Error).message
  }
}
